package codingtest

// Script is what the model does in the tests of every adapter.
const Script = `
models: [m1]
rules:
  - when: "write hello"
    steps:
      - {thinking: "I will write the file.", text: "Writing.", calls: [{write: {path: hello.txt, content: "hi\n"}}]}
      - text: "Wrote hello.txt."
  - when: "parallel and fail"
    steps:
      - calls: [{shell: "echo out; exit 7"}, {shell: "echo two"}]
      - text: "Both ran."
  - when: "unknown tool"
    steps:
      - calls: [{tool: nonsense, input: {a: 1}}]
      - text: "gave up"
  - {when: "count", steps: [{text: "You said {userMessages} things."}]}
  - when: "mcp echo"
    steps:
      - calls: [{mcp: {server: echo, tool: say, input: {text: "hey"}}}]
      - text: "echoed"
  - when: "mcp far"
    steps:
      - calls: [{mcp: {server: far, tool: say, input: {text: "hey"}}}]
      - text: "heard"
  - when: "load skill"
    steps:
      - calls: [{skill: greet}]
      - text: "greeted"
  - when: "show key"
    steps:
      - calls: [{shell: "env | sha256sum >/dev/null; echo ran"}]
      - text: "shown"
  - when: "hang tool"
    steps:
      - calls: [{shell: "touch started; tail -f /dev/null & setsid tail -f /dev/null"}]
      - text: "never"
  - {when: "e401", steps: [{fail: {status: 401}}]}
  - {when: "e429once", steps: [{text: "after retry", fail: {status: 429, retryAfter: 1, times: 1}}]}
  - {when: "e429", steps: [{fail: {status: 429, retryAfter: 1}}]}
  - {when: "e500", steps: [{fail: {status: 500}}]}
  - {when: "e529", steps: [{fail: {status: 529}}]}
  - {when: "e404", steps: [{fail: {status: 404}}]}
  - {when: "quota", steps: [{fail: {status: 429, type: insufficient_quota, message: "You exceeded your current quota exceeded"}}]}
  - {when: "cut stream", steps: [{fail: {cut: true}}]}
  - {when: "stream error", steps: [{fail: {streamError: true}}]}
  - {when: "silence", steps: [{fail: {silence: true}}]}
  - when: "work then cut"
    steps:
      - calls: [{shell: "echo one"}]
      - fail: {cut: true}
  - {when: "refusal", steps: [{text: "I cannot", stop: refusal}]}
  - when: "loop"
    loop: true
    steps:
      - calls: [{shell: "echo again"}]
`

// EchoServer is an MCP server in JavaScript with the tool say.
const EchoServer = `
const rl = require('readline').createInterface({input: process.stdin});
const send = m => process.stdout.write(JSON.stringify({jsonrpc: '2.0', ...m}) + '\n');
rl.on('line', l => {
  let m; try { m = JSON.parse(l) } catch { return }
  if (m.method === 'initialize') send({id: m.id, result: {protocolVersion: m.params.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: 'echo', version: '1'}}});
  else if (m.method === 'tools/list') send({id: m.id, result: {tools: [{name: 'say', description: 'says it', inputSchema: {type: 'object', properties: {text: {type: 'string'}}, required: ['text']}}]}});
  else if (m.method === 'tools/call') send({id: m.id, result: {content: [{type: 'text', text: 'echo: ' + m.params.arguments.text}]}});
  else if (m.id !== undefined) send({id: m.id, result: {}});
});
`

package modeltest

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// api is one of the three dialects.
type api interface {
	reply(w http.ResponseWriter, req request, out reply)
	// broken begins a streamed reply and breaks it.
	broken(w http.ResponseWriter, req request, f Fail)
}

// request is what the dialects have in common.
type request struct {
	model   string
	stream  bool
	tools   []tool
	history []entry
	cwd     string
}

// tool is one tool that the client offers.
type tool struct {
	name      string
	namespace string
	custom    bool // takes free text instead of an object
	props     map[string]any
}

// entry is one message of the conversation.
type entry struct {
	role string // "user", "assistant", "tool"
	text string
	ids  []string // of the calls an assistant made
}

// reply is a step made concrete for one client.
type reply struct {
	id       string
	thinking string
	text     string
	calls    []call
	stop     string
	usage    Usage
}

// call is a tool call in the client's own terms.
type call struct {
	id    string
	tool  tool
	input map[string]any
	free  string // input of a custom tool
}

func (r request) toolNames() []string {
	names := make([]string, 0, len(r.tools))
	for _, t := range r.tools {
		if t.namespace != "" {
			names = append(names, t.namespace+"/"+t.name)
		} else {
			names = append(names, t.name)
		}
	}
	return names
}

// user is the newest user message.
func (r request) user() string {
	for _, e := range slices.Backward(r.history) {
		if e.role == "user" && e.text != "" {
			return e.text
		}
	}
	return ""
}

func (r request) userMessages() int {
	n := 0
	for _, e := range r.history {
		if e.role == "user" && e.text != "" {
			n++
		}
	}
	return n
}

var (
	reminder = regexp.MustCompile(`(?s)<system-reminder>.*?</system-reminder>`)
	// cwds are the ways in which clients tell the model where it works.
	cwds   = regexp.MustCompile(`(?:Primary working directory:|Working directory:|<cwd>|Workspace Directories:)\s*([^\s<"\\]+)`)
	callID = regexp.MustCompile(`^(?:call|toolu)_\d+_(\d+)_\d+$`)
)

// userText is a user message without what clients put into it themselves.
func userText(s string) string {
	s = strings.TrimSpace(reminder.ReplaceAllString(s, ""))
	for _, own := range []string{"<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<permissions instructions>", "<skills_instructions>", "<INSTRUCTIONS>"} {
		if strings.HasPrefix(s, own) {
			return ""
		}
	}
	return s
}

func findCwd(body string) string {
	// The body is JSON, in which a line break is written as \n.
	if m := cwds.FindStringSubmatch(strings.ReplaceAll(body, `\n`, " ")); m != nil {
		return m[1]
	}
	return ""
}

// choose finds the rule and the step that answer a request.
func (s *Server) choose(r request) (rule, step int, out Step) {
	for i, e := range slices.Backward(r.history) {
		if e.role != "user" || e.text == "" {
			continue
		}
		for n, rule := range s.script.Rules {
			if !strings.Contains(e.text, rule.When) || rule.Plain != (len(r.tools) == 0) {
				continue
			}
			step := replies(r.history[i+1:])
			if rule.Loop && len(rule.Steps) > 0 {
				return n, step, rule.Steps[step%len(rule.Steps)]
			}
			if step >= len(rule.Steps) {
				return n, step, Step{Text: "The script has no further step."}
			}
			return n, step, rule.Steps[step]
		}
	}
	if len(r.tools) == 0 {
		return -1, 0, Step{Text: "ok"} // a side call: a title, a summary, a probe
	}
	return -1, 0, Step{Text: "No rule of the script matches."}
}

// replies counts the model's replies in a part of a conversation. The ids of
// calls tell it exactly; clients split and join the rest as they like.
func replies(history []entry) int {
	n := 0
	for _, e := range history {
		if e.role != "assistant" {
			continue
		}
		known := false
		for _, id := range e.ids {
			if m := callID.FindStringSubmatch(id); m != nil {
				if k, err := strconv.Atoi(m[1]); err == nil {
					n, known = max(n, k+1), true
				}
			}
		}
		if !known {
			n++
		}
	}
	return n
}

// render makes a step concrete for a client.
func (s *Server) render(r request, step int, st Step) reply {
	out := reply{
		id: fmt.Sprintf("%d_%d", len(r.history), step), thinking: st.Thinking,
		text: strings.ReplaceAll(st.Text, "{userMessages}", strconv.Itoa(r.userMessages())), stop: st.Stop, usage: DefaultUsage(),
	}
	if st.Usage != nil {
		out.usage = *st.Usage
	}
	for i, c := range st.Calls {
		made, ok := r.resolve(c)
		if !ok {
			out.text = strings.TrimSpace(out.text + " The client offers no tool for this call.")
			continue
		}
		made.id = fmt.Sprintf("call_%d_%d_%d", len(r.history), step, i)
		out.calls = append(out.calls, made)
	}
	return out
}

func (r request) tool(names ...string) (tool, bool) {
	for _, n := range names {
		for _, t := range r.tools {
			if t.name == n || t.namespace+"/"+t.name == n || t.namespace != "" && t.namespace+"__"+t.name == n {
				return t, true
			}
		}
	}
	return tool{}, false
}

// resolve maps an abstract call to what the client offers.
func (r request) resolve(c Call) (call, bool) {
	switch {
	case c.Shell != "":
		return r.shell(c.Shell)
	case c.Write != nil:
		return r.write(*c.Write)
	case c.MCP != nil:
		t, ok := r.tool("mcp__"+c.MCP.Server+"__"+c.MCP.Tool, c.MCP.Server+"_"+c.MCP.Tool)
		return call{tool: t, input: c.MCP.Input}, ok
	case c.Skill != "":
		t, ok := r.tool("Skill", "skill")
		for _, p := range []string{"skill", "name", "command"} {
			if _, has := t.props[p]; has {
				return call{tool: t, input: map[string]any{p: c.Skill}}, ok
			}
		}
		return call{}, false
	default:
		// A tool that the client did not offer is called all the same: what a
		// client makes of it is a thing to test.
		t, ok := r.tool(c.Tool)
		if !ok {
			t = tool{name: c.Tool}
		}
		return call{tool: t, input: c.Input}, true
	}
}

func (r request) shell(line string) (call, bool) {
	t, ok := r.tool("Bash", "bash", "exec_command", "shell_command", "run_shell_command", "shell", "exec")
	if !ok {
		return call{}, false
	}
	if t.custom {
		return call{tool: t, free: fmt.Sprintf("const r = await tools.exec_command({\"cmd\":%s}); text(r)", strconv.Quote(line))}, true
	}
	in := map[string]any{}
	switch {
	case t.name == "exec_command":
		in["cmd"] = line
	case t.name == "shell":
		in["command"] = []string{"bash", "-c", line}
	default:
		in["command"] = line
	}
	if _, ok := t.props["description"]; ok {
		in["description"] = "run a command"
	}
	return call{tool: t, input: in}, true
}

func (r request) write(f Write) (call, bool) {
	abs := f.Path
	if !strings.HasPrefix(abs, "/") && r.cwd != "" {
		abs = r.cwd + "/" + f.Path
	}
	if t, ok := r.tool("Write"); ok {
		return call{tool: t, input: map[string]any{"file_path": abs, "content": f.Content}}, true
	}
	if t, ok := r.tool("write"); ok {
		key := "path"
		if _, ok := t.props["filePath"]; ok {
			key = "filePath"
		}
		return call{tool: t, input: map[string]any{key: abs, "content": f.Content}}, true
	}
	if t, ok := r.tool("apply_patch"); ok && t.custom {
		lines := strings.Split(strings.TrimSuffix(f.Content, "\n"), "\n")
		return call{tool: t, free: "*** Begin Patch\n*** Add File: " + f.Path + "\n+" + strings.Join(lines, "\n+") + "\n*** End Patch\n"}, true
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return r.shell("printf %s " + quote(f.Content) + " > " + quote(f.Path))
}

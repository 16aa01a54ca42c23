// Package modeltest is a model server that plays a script: it speaks the
// Anthropic Messages, the OpenAI Responses and the OpenAI Chat Completions
// APIs, streamed or not, so that real agents run against it without a network.
//
// What it answers is a function of the request alone, so that resumed
// conversations, parallel attempts and repeated requests need no state: the
// newest user message that a rule matches chooses the rule, and the number of
// replies given since chooses the step. Only injected failures count.
package modeltest

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"

	"assay/fault"
)

// Script says what the server answers.
type Script struct {
	// Rules are tried in order for each user message, newest message first.
	Rules []Rule `yaml:"rules"`
	// Models are listed by GET /v1/models.
	Models []string `yaml:"models"`
}

// Rule answers one user message.
type Rule struct {
	// When is a part of the user message; "" matches every message.
	When string `yaml:"when"`
	// Plain rules answer the requests that offer no tools, such as those of a
	// judge; the others answer those that offer some. An agent's side calls, such
	// as for a title, match no plain rule and get a short text.
	Plain bool `yaml:"plain"`
	// Steps are the model's replies, one per request. A request past the last
	// one gets a short text.
	Steps []Step `yaml:"steps"`
	// Loop starts again at the first step after the last one.
	Loop bool `yaml:"loop"`
}

// Step is one reply of the model.
type Step struct {
	Thinking string `yaml:"thinking"`
	// Text is the reply's text; {userMessages} in it is the number of user
	// messages in the request.
	Text string `yaml:"text"`
	// Calls are the tool calls of this reply.
	Calls []Call `yaml:"calls"`
	// Stop is why the model stopped when it is neither the end of its turn nor
	// a call: "max_tokens" or "refusal".
	Stop  string `yaml:"stop"`
	Usage *Usage `yaml:"usage"`
	// Fail goes wrong instead of, or before, the reply.
	Fail *Fail `yaml:"fail"`
}

// Call is one tool call. Exactly one of Shell, Write, MCP, Skill and Tool is
// set; all but Tool are mapped to what the client offers for it.
type Call struct {
	// Shell runs a command line.
	Shell string `yaml:"shell"`
	// Write writes a file below the working directory of the request.
	Write *Write `yaml:"write"`
	// MCP calls a tool of an MCP server.
	MCP *MCP `yaml:"mcp"`
	// Skill loads a skill by name.
	Skill string `yaml:"skill"`
	// Tool is a tool by the client's own name, with Input.
	Tool  string         `yaml:"tool"`
	Input map[string]any `yaml:"input"`
}

// Write is a file to write.
type Write struct {
	Path    string `yaml:"path"`
	Content string `yaml:"content"`
}

// MCP is a tool of an MCP server.
type MCP struct {
	Server string         `yaml:"server"`
	Tool   string         `yaml:"tool"`
	Input  map[string]any `yaml:"input"`
}

// Usage is what the reply reports, in tokens. Input excludes what was cached;
// Reasoning is a part of Output.
type Usage struct {
	Input      int64 `yaml:"input"`
	CacheRead  int64 `yaml:"cacheRead"`
	CacheWrite int64 `yaml:"cacheWrite"`
	Output     int64 `yaml:"output"`
	Reasoning  int64 `yaml:"reasoning"`
}

// DefaultUsage is reported by steps that name none.
func DefaultUsage() Usage { return Usage{Input: 400, CacheRead: 800, Output: 34, Reasoning: 7} }

// Fail is an injected failure.
type Fail struct {
	// Status is an HTTP status to answer with, such as 401, 429, 500 or 529.
	Status int `yaml:"status"`
	// RetryAfter is the Retry-After header, in seconds.
	RetryAfter int `yaml:"retryAfter"`
	// Message and Type are those of the error document; both have defaults.
	Message string `yaml:"message"`
	Type    string `yaml:"type"`
	// Cut ends the connection in the middle of a streamed reply.
	Cut bool `yaml:"cut"`
	// StreamError sends an error event in the middle of a streamed reply.
	StreamError bool `yaml:"streamError"`
	// Silence accepts the request and never answers.
	Silence bool `yaml:"silence"`
	// Times is how many requests of this step, per working directory and key,
	// fail; 0 is all.
	Times int `yaml:"times"`
}

// ParseScript reads a script; unknown fields are errors.
func ParseScript(r io.Reader) (Script, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return Script{}, err
	}
	var s Script
	dec := yaml.NewDecoder(bytes.NewReader(body), yaml.Strict())
	if err := dec.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return Script{}, &fault.Error{Class: fault.Config, Code: "model-script", What: "read the model's script", Fix: "Correct the script; see docs/agents/modelserver.md.", Err: err}
	}
	return s, s.check()
}

func (s Script) check() error {
	bad := func(rule, step int, format string, a ...any) error {
		return fault.Configf("model-script", "Correct the script; see docs/agents/modelserver.md.", "rule %d, step %d: %s", rule+1, step+1, fmt.Sprintf(format, a...))
	}
	for i, r := range s.Rules {
		for j, st := range r.Steps {
			for _, c := range st.Calls {
				n := 0
				for _, set := range []bool{c.Shell != "", c.Write != nil, c.MCP != nil, c.Skill != "", c.Tool != ""} {
					if set {
						n++
					}
				}
				if n != 1 {
					return bad(i, j, "a call has exactly one of shell, write, mcp, skill and tool")
				}
			}
			if st.Stop != "" && st.Stop != "max_tokens" && st.Stop != "refusal" {
				return bad(i, j, "stop is max_tokens or refusal, not %q", st.Stop)
			}
			if f := st.Fail; f != nil && f.Status == 0 && !f.Cut && !f.StreamError && !f.Silence {
				return bad(i, j, "fail has one of status, cut, streamError and silence")
			}
		}
	}
	return nil
}

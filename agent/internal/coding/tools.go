package coding

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

func plural(n int, what string) string { return fmt.Sprintf("%d %s", n, what) }

// The canonical tool names. One eval reads the same with every agent; a tool
// that is not listed keeps the agent's own name, and tools of MCP servers are
// mcp__SERVER__TOOL.
const (
	ToolBash      = "bash"       // {command}
	ToolRead      = "read"       // {path}
	ToolWrite     = "write"      // {path, content}
	ToolEdit      = "edit"       // {path}
	ToolDelete    = "delete"     // {path}
	ToolGlob      = "glob"       // {pattern}
	ToolGrep      = "grep"       // {pattern}
	ToolList      = "list"       // {path}
	ToolWebFetch  = "web_fetch"  // {url}
	ToolWebSearch = "web_search" // {query}
	ToolTodo      = "todo"
	ToolSkill     = "skill" // {name}
	ToolSubagent  = "agent"
)

// Canonical returns the canonical name of an agent's own tool name.
func Canonical(name string) string {
	switch strings.ToLower(name) {
	case "bash", "shell", "exec_command", "local_shell", "run_shell_command", "shell_command", "execute":
		return ToolBash
	case "read", "read_file", "fs.read", "view_image", "notebookread":
		return ToolRead
	case "write", "write_file", "fs.write":
		return ToolWrite
	case "edit", "multiedit", "notebookedit", "apply_patch", "replace", "patch", "fs.edit", "str_replace":
		return ToolEdit
	case "glob", "find_files":
		return ToolGlob
	case "grep", "search_file_content":
		return ToolGrep
	case "ls", "list", "list_directory":
		return ToolList
	case "webfetch", "web_fetch", "web.fetch":
		return ToolWebFetch
	case "websearch", "web_search", "web.search":
		return ToolWebSearch
	case "todowrite", "todoread", "todo_list", "update_plan", "taskcreate", "taskupdate":
		return ToolTodo
	case "skill":
		return ToolSkill
	case "task", "agent", "spawn_agent":
		return ToolSubagent
	default:
		return name
	}
}

// MCPTool is the canonical name of a tool of an MCP server.
func MCPTool(server, tool string) string { return "mcp__" + server + "__" + tool }

// renamed are fields that agents spell in their own way.
var renamed = map[string]string{
	"file_path": "path", "filePath": "path", "notebook_path": "path", "cmd": "command", "old_str": "old", "new_str": "new",
}

// CanonicalInput renames the fields of a tool's input that agents spell
// differently; a field that is there under both names is left alone.
func CanonicalInput(name string, input json.RawMessage) json.RawMessage {
	switch name {
	case ToolBash, ToolRead, ToolWrite, ToolEdit, ToolDelete, ToolList, ToolSkill:
	default:
		return input
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(input, &m) != nil {
		return input
	}
	rename := func(from, to string) {
		v, ok := m[from]
		if _, taken := m[to]; ok && !taken {
			m[to] = v
			delete(m, from)
		}
	}
	for from, to := range renamed {
		rename(from, to)
	}
	if name == ToolSkill {
		rename("skill", "name")
		rename("command", "name")
	}
	return Document(m)
}

var wrapped = regexp.MustCompile(`^(?:/usr)?(?:/bin/)?(?:ba|z|da)?sh -l?c (.*)$`)

// Unwrap returns the command line inside `bash -lc '…'`, which is how some
// agents report a shell command.
func Unwrap(line string) string {
	m := wrapped.FindStringSubmatch(strings.ReplaceAll(line, "\n", "\x00"))
	if m == nil {
		return line
	}
	inner, ok := unquote(strings.ReplaceAll(m[1], "\x00", "\n"))
	if !ok {
		return line
	}
	return inner
}

// unquote reads one shell word; ok is false when s is more than one.
func unquote(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; c {
		case '\'':
			j := strings.IndexByte(s[i+1:], '\'')
			if j < 0 {
				return "", false
			}
			b.WriteString(s[i+1 : i+1+j])
			i += j + 2
		case '"':
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("$`\"\\\n", s[i+1]) >= 0 {
					i++
				}
				b.WriteByte(s[i])
			}
			if i >= len(s) {
				return "", false
			}
			i++
		case '\\':
			if i+1 >= len(s) {
				return "", false
			}
			b.WriteByte(s[i+1])
			i += 2
		case ' ', '\t', '\n', ';', '&', '|', '<', '>', '(', ')', '$', '`':
			return "", false
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String(), true
}

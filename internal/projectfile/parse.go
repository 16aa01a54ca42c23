package projectfile

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of one file. They keep a file that was made to hurt from hurting.
const (
	// MaxFile is the largest file that is read, in bytes.
	MaxFile = 4 << 20
	// maxDepth is how deep values may be nested.
	maxDepth = 64
	// maxNodes is the number of values of a file after its aliases were
	// followed.
	maxNodes = 200_000
	// maxProblems of one file are kept.
	maxProblems = 100
)

// Parse reads one YAML document. Without a document the node is nil, and there
// is at least one problem. Problems name no file.
func Parse(data []byte) (root *Node, problems []Problem) {
	// The library has panicked on odd input before.
	defer func() {
		if p := recover(); p != nil {
			root, problems = nil, []Problem{{Line: 1, Column: 1, Code: "yaml-syntax", Message: fmt.Sprintf("the file cannot be read as YAML: %v", p), Fix: "Simplify the file."}}
		}
	}()
	if len(data) > MaxFile {
		return nil, []Problem{{Code: "file-too-large", Message: fmt.Sprintf("the file has %d bytes, the limit is %d", len(data), MaxFile), Fix: "Move long texts into files of their own."}}
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	if p, bad := badText(data); bad {
		return nil, []Problem{p}
	}
	text := string(data)
	if root, ok := quick(text); ok {
		return root, nil
	}
	return parseAll(text)
}

// parseAll reads a document of any form with the library.
func parseAll(text string) (*Node, []Problem) {
	tokens := lexer.Tokenize(text)
	if p, bad := badTokens(tokens); bad {
		return nil, []Problem{p}
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, []Problem{syntax(err)}
	}
	b := builder{anchors: map[string]*Node{}}
	body := b.document(file)
	if body == nil {
		if len(b.problems) == 0 {
			b.report(1, 1, nil, "file-empty", "the file is empty", "Fill it or remove it.")
		}
		return nil, b.problems
	}
	return b.node(body, nil, 0), b.problems
}

// badText finds what is not text at all.
func badText(data []byte) (Problem, bool) {
	line, start := 1, 0
	for i := 0; i < len(data); {
		c := data[i]
		switch {
		case c == '\n':
			line, start = line+1, i+1
		case c < 0x20 && c != '\t' && c != '\r' || c == 0x7f:
			return Problem{Line: line, Column: i - start + 1, Code: "file-encoding", Message: fmt.Sprintf("the file has the control character 0x%02x", c), Fix: "Remove it, or write it as an escape in double quotes."}, true
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && size <= 1 {
				return Problem{Line: line, Column: i - start + 1, Code: "file-encoding", Message: "the file is not UTF-8", Fix: "Save it as UTF-8."}, true
			}
			i += size
			continue
		}
		i++
	}
	return Problem{}, false
}

// badTokens refuses, before the recursive parser sees them, documents that are
// nested too deeply, and what this format does not use.
func badTokens(tokens token.Tokens) (Problem, bool) {
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		at := func(code, message, fix string) (Problem, bool) {
			return Problem{Line: t.Position.Line, Column: t.Position.Column, Code: code, Message: message, Fix: fix}, true
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType:
			if t.Position.Line != line {
				dashes, line = 0, t.Position.Line
			}
			dashes++
		case token.MappingKeyType:
			return at("yaml-unsupported", "keys after `?` are not supported", "Write `key: value`.")
		}
		if flow > maxDepth || dashes > maxDepth {
			return at("yaml-too-deep", fmt.Sprintf("values are nested more than %d deep", maxDepth), "Flatten the file.")
		}
	}
	return Problem{}, false
}

func syntax(err error) Problem {
	p := Problem{Line: 1, Column: 1, Code: "yaml-syntax", Message: "the file is no YAML: " + firstLine(err.Error())}
	var se *yaml.SyntaxError
	if errors.As(err, &se) {
		p.Message = "the file is no YAML: " + firstLine(se.Message)
		if se.Token != nil && se.Token.Position != nil {
			p.Line, p.Column = max(1, se.Token.Position.Line), max(1, se.Token.Position.Column)
		}
	}
	p.Fix = "Check indentation and quotes there."
	return p
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// builder turns the parser's tree into Nodes.
type builder struct {
	anchors  map[string]*Node
	problems []Problem
	nodes    int
}

func (b *builder) report(line, column int, f *Field, code, message, fix string) {
	if len(b.problems) < maxProblems {
		b.problems = append(b.problems, Problem{Line: line, Column: column, Field: f.String(), Code: code, Message: message, Fix: fix})
	}
}

// document picks the one document of a file.
func (b *builder) document(file *ast.File) ast.Node {
	var body ast.Node
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		if dir, ok := d.Body.(*ast.DirectiveNode); ok {
			if t := dir.GetToken(); t != nil && !strings.Contains(dir.String(), "YAML 1.2") {
				b.report(t.Position.Line, t.Position.Column, nil, "yaml-unsupported", "only the directive %YAML 1.2 is supported", "Remove the directive.")
			}
			continue
		}
		if body != nil {
			t := d.Body.GetToken()
			b.report(t.Position.Line, t.Position.Column, nil, "yaml-unsupported", "the file has more than one document", "Put each document into a file of its own.")
			break
		}
		body = d.Body
	}
	return body
}

// node returns nil only after it has reported why.
func (b *builder) node(in ast.Node, f *Field, depth int) *Node {
	t := in.GetToken()
	n := &Node{}
	if t != nil && t.Position != nil {
		n.Line, n.Column = t.Position.Line, t.Position.Column
	}
	if depth > maxDepth {
		n.Kind = Invalid
		b.report(n.Line, n.Column, f, "yaml-too-deep", fmt.Sprintf("values are nested more than %d deep", maxDepth), "Flatten the file.")
		return n
	}
	if b.nodes++; b.nodes > maxNodes {
		n.Kind = Invalid
		if b.nodes == maxNodes+1 {
			b.report(n.Line, n.Column, f, "yaml-too-large", fmt.Sprintf("the file has more than %d values", maxNodes), "Split the file.")
		}
		return n
	}
	switch v := in.(type) {
	case *ast.StringNode:
		n.Kind, n.Text = Text, v.Value
		if v.Token.Type != token.SingleQuoteType && v.Token.Type != token.DoubleQuoteType {
			n.Kind, n.Text = resolve(v.Value)
		}
	case *ast.LiteralNode:
		n.Kind, n.Text = Text, v.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		if t != nil && t.Type != token.ImplicitNullType {
			n.Kind, n.Text = resolve(t.Value)
		}
	case *ast.SequenceNode:
		n.Kind = List
		n.Items = make([]*Node, 0, len(v.Values))
		for i, item := range v.Values {
			n.Items = append(n.Items, b.node(item, f.Index(i), depth+1))
		}
	case *ast.MappingNode:
		if v.IsFlowStyle && v.Start != nil {
			n.Line, n.Column = v.Start.Position.Line, v.Start.Position.Column
		}
		b.mapping(n, v.Values, f, depth)
	case *ast.MappingValueNode:
		b.mapping(n, []*ast.MappingValueNode{v}, f, depth)
	case *ast.AnchorNode:
		n = b.node(v.Value, f, depth+1)
		if v.Name != nil {
			b.anchors[v.Name.String()] = n
		}
	case *ast.AliasNode:
		return b.alias(n, v, f)
	case *ast.TagNode:
		n.Kind = Invalid
		b.report(n.Line, n.Column, f, "yaml-unsupported", fmt.Sprintf("the tag %s is not supported", v.Start.Value), "Remove it; put text in quotes.")
	default:
		n.Kind = Invalid
		b.report(n.Line, n.Column, f, "yaml-unsupported", "this kind of value is not supported", "Write text, a number, true, false, a list or a map.")
	}
	return n
}

func (b *builder) alias(n *Node, v *ast.AliasNode, f *Field) *Node {
	name := ""
	if v.Value != nil {
		name = v.Value.String()
	}
	to, ok := b.anchors[name]
	n.Kind = Invalid
	if !ok {
		b.report(n.Line, n.Column, f, "yaml-syntax", fmt.Sprintf("the alias *%s has no anchor before it", name), fmt.Sprintf("Define &%s earlier in the file.", name))
		return n
	}
	// What an alias stands for counts each time, so that a few lines cannot
	// stand for billions of values.
	before := b.nodes
	b.nodes += size(to, maxNodes)
	if before <= maxNodes && b.nodes > maxNodes {
		b.report(n.Line, n.Column, f, "yaml-too-large", fmt.Sprintf("with its aliases the file has more than %d values", maxNodes), "Write fewer aliases.")
	}
	if b.nodes > maxNodes {
		return n
	}
	return to
}

// size counts the values of a tree, up to limit.
func size(n *Node, limit int) int {
	sum := 1
	for _, item := range n.Items {
		if sum >= limit {
			break
		}
		sum += size(item, limit-sum)
	}
	return sum
}

func (b *builder) mapping(n *Node, values []*ast.MappingValueNode, f *Field, depth int) {
	n.Kind = Map
	n.Keys = make([]Key, 0, len(values))
	n.Items = make([]*Node, 0, len(values))
	var seen map[string]bool // only for maps that are too large to look through
	for _, v := range values {
		key, ok := b.key(v.Key, f)
		if !ok {
			continue
		}
		duplicate := n.Get(key.Name) != nil
		if len(values) > 16 {
			if seen == nil {
				seen = make(map[string]bool, len(values))
			}
			duplicate = seen[key.Name]
			seen[key.Name] = true
		}
		if duplicate {
			b.report(key.Line, key.Column, f.Key(key.Name), "yaml-duplicate-key", fmt.Sprintf("the key %q is there twice", key.Name), "Keep one of them.")
			continue
		}
		var item *Node
		if v.Value == nil {
			item = &Node{Line: key.Line, Column: key.Column}
		} else {
			item = b.node(v.Value, f.Key(key.Name), depth+1)
		}
		if item.Line == 0 || item.Kind == Null {
			item = &Node{Line: key.Line, Column: key.Column}
		}
		n.Keys = append(n.Keys, key)
		n.Items = append(n.Items, item)
	}
	if len(n.Keys) > 0 && (n.Line == 0 || n.Line > n.Keys[0].Line || n.Line == n.Keys[0].Line && n.Column > n.Keys[0].Column) {
		n.Line, n.Column = n.Keys[0].Line, n.Keys[0].Column
	}
}

// key reads a map key: a scalar, as its text.
func (b *builder) key(k ast.MapKeyNode, f *Field) (Key, bool) {
	t := k.GetToken()
	key := Key{Line: t.Position.Line, Column: t.Position.Column}
	switch v := k.(type) {
	case *ast.StringNode:
		key.Name = v.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		key.Name = t.Value
	case *ast.MergeKeyNode:
		b.report(key.Line, key.Column, f, "yaml-unsupported", "merge keys (`<<`) are no part of YAML 1.2", "Repeat the fields, or use `defaults:` and `profiles:` of assay.yaml.")
		return key, false
	default:
		b.report(key.Line, key.Column, f, "yaml-unsupported", "this kind of key is not supported", "Write a name.")
		return key, false
	}
	return key, true
}

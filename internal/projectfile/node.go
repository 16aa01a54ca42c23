// Package projectfile is the outside form of a project: the shape of assay.yaml,
// of experiments, evals and groups, and the strict reader that fills those
// shapes from YAML 1.2.
//
// The reader reports every problem of a file at once, each with line, column,
// field and the nearest valid name. The shapes carry their constraints and
// descriptions as struct tags, so that the JSON Schemas come from the same
// source as the reader. Package discover turns the shapes into a suite.
package projectfile

import (
	"fmt"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong with a project.
type Problem struct {
	// File is relative to the project root, with slashes.
	File string `json:"file"`
	// Line and Column count from 1; 0 is the file as a whole.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Field is the path inside the file, such as "turns[0].prompt.file".
	Field string `json:"field,omitempty"`
	// Code is a stable token.
	Code string `json:"code"`
	// Message says what is wrong, in lower case, without a full stop.
	Message string `json:"message"`
	// Fix is one imperative sentence, or "".
	Fix string `json:"fix,omitempty"`
}

// String returns "file:line:column: field: message. Fix".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	if p.Fix != "" {
		b.WriteString(". " + p.Fix)
	}
	return b.String()
}

// Kind is the kind of a YAML value, resolved by the core schema of YAML 1.2.
type Kind uint8

// The kinds.
const (
	Null Kind = iota
	Bool
	Int
	Float
	Text
	List
	Map
	// Invalid is a value that was reported already; readers pass it over.
	Invalid
)

// String names the kind as messages do.
func (k Kind) String() string {
	return [...]string{"nothing", "true or false", "a whole number", "a number", "text", "a list", "a map", "an invalid value"}[k]
}

// Node is one value of a file and where it stands. Nodes that an alias repeats
// are shared, so nobody changes a Node.
type Node struct {
	Kind Kind
	// Text is the content of a scalar.
	Text string
	// Line and Column count from 1.
	Line, Column int
	// Keys name the Items of a Map; they are distinct.
	Keys  []Key
	Items []*Node
}

// Key is one key of a map and where it stands.
type Key struct {
	Name         string
	Line, Column int
}

// Get returns the value of a key, or nil.
func (n *Node) Get(key string) *Node {
	if n == nil || n.Kind != Map {
		return nil
	}
	for i, k := range n.Keys {
		if k.Name == key {
			return n.Items[i]
		}
	}
	return nil
}

// keyPosition is where a key of a map stands.
func (n *Node) keyPosition(key string) (line, column int) {
	for _, k := range n.Keys {
		if k.Name == key {
			return k.Line, k.Column
		}
	}
	return n.Line, n.Column
}

// Field is a place inside a file: a chain of keys and indexes from the root. A
// nil Field is the root.
type Field struct {
	parent *Field
	key    string
	index  int // used when key is ""
}

// Key returns the place of a key below f.
func (f *Field) Key(k string) *Field { return &Field{parent: f, key: k} }

// Index returns the place of an item below f.
func (f *Field) Index(i int) *Field { return &Field{parent: f, index: i} }

// String returns the path, such as "turns[0].prompt.file"; "" is the root.
func (f *Field) String() string {
	if f == nil {
		return ""
	}
	before := f.parent.String()
	switch {
	case f.key == "":
		return before + "[" + strconv.Itoa(f.index) + "]"
	case before == "":
		return f.key
	default:
		return before + "." + f.key
	}
}

// Position finds where f stands below root: the position of its value, or of
// the nearest parent that is there.
func (f *Field) Position(root *Node) (line, column int) {
	if n := f.find(root); n != nil {
		return n.Line, n.Column
	}
	if f == nil {
		return 1, 1
	}
	return f.parent.Position(root)
}

func (f *Field) find(root *Node) *Node {
	if f == nil {
		return root
	}
	n := f.parent.find(root)
	if f.key != "" {
		return n.Get(f.key)
	}
	if n == nil || n.Kind != List || f.index >= len(n.Items) {
		return nil
	}
	return n.Items[f.index]
}

// Value returns a node as what package encoding/json would give, except that
// whole numbers are int64. It is false for a number that is not finite or does
// not fit.
func (n *Node) Value() (any, bool) {
	switch n.Kind {
	case Bool:
		return n.Text == "true", true
	case Int:
		i, err := parseInt(n.Text)
		return i, err == nil
	case Float:
		f, err := parseFloat(n.Text)
		return f, err == nil
	case Text:
		return n.Text, true
	case List:
		out := make([]any, len(n.Items))
		for i, item := range n.Items {
			v, ok := item.Value()
			if !ok {
				return nil, false
			}
			out[i] = v
		}
		return out, true
	case Map:
		out := make(map[string]any, len(n.Items))
		for i, item := range n.Items {
			v, ok := item.Value()
			if !ok {
				return nil, false
			}
			out[n.Keys[i].Name] = v
		}
		return out, true
	default:
		return nil, true
	}
}

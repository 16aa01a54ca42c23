package projectfile

import (
	"strings"
	"unicode/utf8"
)

// The files of large projects are thousands, and almost all of them are written
// in a small part of YAML. quick reads that part about ten times faster than
// the library. Whatever else it meets, a mistake above all, it leaves to the
// library: what it does return is what the library would have returned, with
// the same positions. A fuzz test holds the two together.

// maxQuick is the largest file that quick tries, in bytes.
const maxQuick = 64 << 10

// quick returns the document, or false for a file that the library must read.
func quick(data string) (*Node, bool) {
	if len(data) > maxQuick || !strings.HasSuffix(data, "\n") || strings.ContainsRune(data, '\r') {
		return nil, false
	}
	q := quickReader{lines: strings.Split(data[:len(data)-1], "\n")}
	indent, ok := q.next()
	if !ok || q.bad {
		return nil, false
	}
	root := q.block(indent, 0)
	if _, more := q.next(); more || q.bad {
		return nil, false
	}
	return root, true
}

// quickReader walks over lines. bad is set at the first thing that is not for
// it, and everything returned afterwards is thrown away.
type quickReader struct {
	lines []string
	at    int // the current line
	bad   bool
}

func (q *quickReader) give() *Node {
	q.bad = true
	return &Node{}
}

// next moves to the next line with content and returns its indentation.
func (q *quickReader) next() (indent int, ok bool) {
	for ; q.at < len(q.lines); q.at++ {
		line := q.lines[q.at]
		rest := strings.TrimLeft(line, " ")
		if rest == "" || rest[0] == '#' {
			continue
		}
		if rest[0] == '\t' || rest[len(rest)-1] == ' ' || line[0] == '%' || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "...") {
			q.bad = true
			return 0, false
		}
		return len(line) - len(rest), true
	}
	return 0, false
}

// block reads the mapping or sequence that starts on the current line.
func (q *quickReader) block(indent, depth int) *Node {
	if depth > maxDepth/2 {
		return q.give()
	}
	if isDash(q.lines[q.at][indent:]) {
		return q.sequence(indent, depth)
	}
	return q.mapping(indent, indent, depth)
}

func isDash(s string) bool { return strings.HasPrefix(s, "- ") }

func (q *quickReader) sequence(indent, depth int) *Node {
	n := &Node{Kind: List, Line: q.at + 1, Column: indent + 1}
	for !q.bad {
		line := q.lines[q.at]
		start := indent + 1
		for start < len(line) && line[start] == ' ' {
			start++
		}
		if start == len(line) || line[start] == '#' || isDash(line[start:]) {
			return q.give()
		}
		if _, _, ok := key(line, start); ok {
			n.Items = append(n.Items, q.mapping(start, start, depth+1))
		} else {
			n.Items = append(n.Items, q.inline(line, start, indent, depth+1))
		}
		in, ok := q.next()
		if q.bad || !ok || in < indent {
			return n
		}
		if in > indent {
			return q.give()
		}
		if !isDash(q.lines[q.at][indent:]) {
			return n // the next key of the mapping around it
		}
	}
	return n
}

// mapping reads block keys at an indentation; the first stands at start of the
// current line, which may follow a dash.
func (q *quickReader) mapping(indent, start, depth int) *Node {
	if depth > maxDepth/2 {
		return q.give()
	}
	n := &Node{Kind: Map, Line: q.at + 1, Column: start + 1}
	for !q.bad {
		line := q.lines[q.at]
		name, after, ok := key(line, indent)
		if !ok || n.Get(name) != nil || len(n.Keys) >= 64 {
			return q.give()
		}
		k := Key{Name: name, Line: q.at + 1, Column: indent + 1}
		item := q.keyed(line, after, indent, depth)
		if item.Kind == Null {
			item = &Node{Line: k.Line, Column: k.Column}
		}
		n.Keys, n.Items = append(n.Keys, k), append(n.Items, item)
		in, ok := q.next()
		if q.bad || !ok || in < indent {
			return n
		}
		if in > indent || isDash(q.lines[q.at][in:]) {
			return q.give()
		}
	}
	return n
}

// keyed reads the value of a block key whose text begins at after.
func (q *quickReader) keyed(line string, after, indent, depth int) *Node {
	for after < len(line) && line[after] == ' ' {
		after++
	}
	if after < len(line) && line[after] != '#' {
		return q.inline(line, after, indent, depth+1)
	}
	if after < len(line) && line[after-1] != ' ' {
		return q.give()
	}
	q.at++
	in, ok := q.next()
	if q.bad {
		return &Node{}
	}
	if ok && (in > indent || in == indent && isDash(q.lines[q.at][in:])) {
		return q.block(in, depth+1)
	}
	return &Node{}
}

// key reads "name:" at a place and returns what follows the colon.
func key(line string, at int) (name string, after int, ok bool) {
	i := at
	for i < len(line) && nameByte(line[i]) {
		i++
	}
	if i == at || i >= len(line) || line[i] != ':' || i+1 < len(line) && line[i+1] != ' ' || line[at] == '-' || line[at] == '.' {
		return "", 0, false
	}
	return line[at:i], i + 1, true
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' || c == '/'
}

// column counts from 1 in characters.
func column(line string, at int) int { return utf8.RuneCountInString(line[:at]) + 1 }

// inline reads a value that begins on the current line, and moves behind it.
func (q *quickReader) inline(line string, at, indent, depth int) *Node {
	n := &Node{Kind: Text, Line: q.at + 1, Column: column(line, at)}
	end := 0
	switch line[at] {
	case '|':
		return q.literal(n, line[at:], indent)
	case '[', '{':
		n, end = q.flow(line, at, depth)
	case '\'', '"':
		n.Text, end = q.quoted(line, at)
	default:
		s := line[at:]
		if i := strings.Index(s, " #"); i >= 0 {
			s = s[:i]
		}
		s = strings.TrimRight(s, " ")
		if !plainStart(s) || strings.Contains(s, ": ") || strings.HasSuffix(s, ":") || strings.ContainsRune(s, '\t') {
			return q.give()
		}
		n.Kind, n.Text = resolve(s)
		end = at + len(s)
	}
	if q.bad || !onlyComment(line[end:]) {
		return q.give()
	}
	q.at++
	// A deeper line would continue a plain value.
	if in, ok := q.next(); ok && in > indent {
		return q.give()
	}
	return n
}

// plainStart reports whether a plain value may begin like s, and begins with
// nothing that has a meaning of its own.
func plainStart(s string) bool {
	if s == "" || strings.IndexByte("!&*|>%@`\"'#{}[],?:=<~", s[0]) >= 0 {
		return false
	}
	return s[0] != '-' || len(s) > 1 && s[1] != ' '
}

func onlyComment(s string) bool {
	t := strings.TrimLeft(s, " ")
	return t == "" || t[0] == '#' && len(t) < len(s)
}

// literal reads a block scalar of the simplest forms, "|" and "|-".
func (q *quickReader) literal(n *Node, header string, indent int) *Node {
	if header != "|" && header != "|-" {
		return q.give()
	}
	q.at++
	var b strings.Builder
	width, blank := 0, 0
	for ; q.at < len(q.lines); q.at++ {
		line := q.lines[q.at]
		text := strings.TrimLeft(line, " ")
		in := len(line) - len(text)
		if text == "" {
			if width == 0 || in > width {
				return q.give()
			}
			blank++
			continue
		}
		if width == 0 {
			if width = in; width <= indent || width == 0 {
				return q.give()
			}
		}
		if in < width {
			if in > indent || text[0] == '#' {
				return q.give()
			}
			break
		}
		if strings.ContainsRune(line, '\t') || strings.HasSuffix(line, " ") {
			return q.give()
		}
		for ; blank > 0; blank-- {
			b.WriteByte('\n')
		}
		b.WriteString(line[width:])
		b.WriteByte('\n')
	}
	if width == 0 {
		return q.give()
	}
	n.Text = b.String()
	if header == "|-" {
		n.Text = strings.TrimSuffix(n.Text, "\n")
	}
	return n
}

// quoted reads a quoted text that ends on its line; end is behind it.
func (q *quickReader) quoted(line string, at int) (text string, end int) {
	mark := line[at]
	var b strings.Builder
	for i := at + 1; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\t':
			q.bad = true
			return "", len(line)
		case c == mark && mark == '\'' && i+1 < len(line) && line[i+1] == '\'':
			i++
			b.WriteByte('\'')
		case c == mark:
			return b.String(), i + 1
		case c == '\\' && mark == '"':
			i++
			if i == len(line) {
				q.bad = true
				return "", i
			}
			j := strings.IndexByte(`nt"\`, line[i])
			if j < 0 {
				q.bad = true
				return "", len(line)
			}
			b.WriteByte("\n\t\"\\"[j])
		default:
			b.WriteByte(c)
		}
	}
	q.bad = true
	return "", len(line)
}

// flow reads a list or map in brackets that ends on its line.
func (q *quickReader) flow(line string, at, depth int) (n *Node, end int) {
	open := line[at]
	n = &Node{Kind: List, Line: q.at + 1, Column: column(line, at)}
	closing := byte(']')
	if open == '{' {
		n.Kind, closing = Map, '}'
	}
	i := skip(line, at+1)
	if depth > maxDepth/2 || i >= len(line) {
		return q.give(), len(line)
	}
	if line[i] == closing {
		n.Items = []*Node{}
		if open == '{' {
			n.Keys = []Key{}
		}
		return n, i + 1
	}
	for !q.bad {
		var k Key
		if open == '{' {
			name, after, ok := key(line, i)
			if !ok || n.Get(name) != nil || after >= len(line) || len(n.Keys) >= 64 {
				return q.give(), len(line)
			}
			k = Key{Name: name, Line: q.at + 1, Column: column(line, i)}
			i = skip(line, after)
		}
		if i >= len(line) {
			return q.give(), len(line)
		}
		item, after := q.flowValue(line, i, depth)
		if open == '{' {
			if item.Kind == Null {
				item = &Node{Line: k.Line, Column: k.Column}
			}
			n.Keys = append(n.Keys, k)
		}
		n.Items = append(n.Items, item)
		i = skip(line, after)
		if q.bad || i >= len(line) {
			return q.give(), len(line)
		}
		if line[i] == closing {
			return n, i + 1
		}
		if line[i] != ',' || i+1 >= len(line) || line[i+1] != ' ' {
			return q.give(), len(line)
		}
		i = skip(line, i+1)
	}
	return n, len(line)
}

func (q *quickReader) flowValue(line string, at, depth int) (n *Node, end int) {
	switch line[at] {
	case '[', '{':
		return q.flow(line, at, depth+1)
	case '\'', '"':
		n = &Node{Kind: Text, Line: q.at + 1, Column: column(line, at)}
		n.Text, end = q.quoted(line, at)
		return n, end
	}
	end = at
	for end < len(line) && strings.IndexByte(",]}[{\"'#:&*!|>%@`?\t", line[end]) < 0 {
		end++
	}
	s := strings.TrimRight(line[at:end], " ")
	// Only these end a plain value; the others have meanings of their own.
	if end == len(line) || strings.IndexByte(",]}", line[end]) < 0 || !plainStart(s) {
		return q.give(), len(line)
	}
	n = &Node{Line: q.at + 1, Column: column(line, at)}
	n.Kind, n.Text = resolve(s)
	return n, end
}

func skip(line string, i int) int {
	for i < len(line) && line[i] == ' ' {
		i++
	}
	return i
}

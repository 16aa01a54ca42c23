package fake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// basicRegexp turns a POSIX basic expression into Go's syntax.
func basicRegexp(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			if i+1 < len(s) {
				i++
				if strings.IndexByte("(){}|+?", s[i]) >= 0 {
					b.WriteByte(s[i])
				} else {
					b.WriteString(`\` + s[i:i+1])
				}
			}
		case '(', ')', '{', '}', '|', '+', '?':
			b.WriteString(`\` + string(c))
		case '*':
			if b.Len() == 0 {
				b.WriteByte('\\')
			}
			b.WriteByte('*')
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func compile(expr string, extended, fold bool) (*regexp.Regexp, error) {
	if !extended {
		expr = basicRegexp(expr)
	}
	if fold {
		expr = "(?i)" + expr
	}
	return regexp.Compile(expr)
}

func grepCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "EFGivnclLqrRxwoe:hHsPam:", "include", "exclude-dir", "color")
	if err != nil {
		return usage(p, argv, err)
	}
	expr, hasExpr := o["e"], has(o, "e")
	if !hasExpr {
		if len(names) == 0 {
			return usage(p, argv, errors.New("a pattern is needed"))
		}
		expr, names = names[0], names[1:]
	}
	base := path.Base(argv[0])
	var alts []string
	for e := range strings.SplitSeq(expr, "\n") {
		switch {
		case base == "fgrep" || has(o, "F"):
			e = regexp.QuoteMeta(e)
		case base != "egrep" && !has(o, "E", "P"):
			e = basicRegexp(e)
		}
		alts = append(alts, e)
	}
	full := strings.Join(alts, "|")
	switch {
	case has(o, "x"):
		full = "^(?:" + full + ")$"
	case has(o, "w"):
		full = `\b(?:` + full + `)\b`
	}
	re, err := compile(full, true, has(o, "i"))
	if err != nil {
		return usage(p, argv, err)
	}
	g := grep{p: p, o: o, re: re}
	if names, err = g.expand(argv, names); err != nil {
		return usage(p, argv, err)
	}
	g.prefix = (len(names) > 1 || has(o, "r", "R", "H")) && !has(o, "h")
	code := 0
	if len(names) > 0 || !has(o, "r", "R") {
		code = p.each(argv, names, g.input)
	}
	if code != 0 && !(g.hit && has(o, "q")) {
		return 2
	}
	return b2i(!g.hit)
}

type grep struct {
	p      *proc
	o      map[string]string
	re     *regexp.Regexp
	prefix bool
	hit    bool
}

// expand turns directories into their files for a recursive search.
func (g *grep) expand(argv, names []string) ([]string, error) {
	if !has(g.o, "r", "R") {
		return names, nil
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	var out []string
	for _, n := range names {
		err := g.p.walkTree(n, func(name string, i info) error {
			if i.kind == regular && (g.o["include"] == "" || matches(g.o["include"], path.Base(name))) &&
				(g.o["exclude-dir"] == "" || !strings.Contains("/"+name, "/"+g.o["exclude-dir"]+"/")) {
				out = append(out, name)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (g *grep) input(name string, r io.Reader) error {
	br := bufio.NewReaderSize(r, 32<<10)
	n, hits := 0, 0
	limit := 1 << 62
	if has(g.o, "m") {
		limit, _ = strconv.Atoi(g.o["m"])
	}
	label := ""
	if g.prefix {
		label = name + ":"
	}
	for hits < limit {
		line, err := br.ReadString('\n')
		if line == "" && err != nil {
			if !errors.Is(err, io.EOF) {
				return err
			}
			break
		}
		n++
		line = strings.TrimSuffix(line, "\n")
		if g.re.MatchString(line) == has(g.o, "v") {
			continue
		}
		hits++
		g.hit = true
		if has(g.o, "q") {
			return nil
		}
		if has(g.o, "c", "l", "L") {
			continue
		}
		num := ""
		if has(g.o, "n") {
			num = strconv.Itoa(n) + ":"
		}
		out := []string{line}
		if has(g.o, "o") {
			out = g.re.FindAllString(line, -1)
		}
		for _, l := range out {
			if !g.p.print(1, label+num+l+"\n") {
				return nil
			}
		}
	}
	switch {
	case has(g.o, "l") && hits > 0, has(g.o, "L") && hits == 0:
		g.p.print(1, name+"\n")
	case has(g.o, "c"):
		g.p.print(1, label+strconv.Itoa(hits)+"\n")
	}
	return nil
}

// sedCommand is one command of the small sed: addresses and s, p, d or q.
type sedCommand struct {
	from, to *sedAddress
	negate   bool
	inside   bool
	do       byte
	re       *regexp.Regexp
	with     string
	global   bool
	print    bool
	nth      int
}

type sedAddress struct {
	line int
	last bool
	re   *regexp.Regexp
}

func (a *sedAddress) hits(n int, last bool, text string) bool {
	switch {
	case a.re != nil:
		return a.re.MatchString(text)
	case a.last:
		return last
	default:
		return n == a.line
	}
}

func sedCmd(p *proc, argv []string) int {
	fixed := []string{argv[0]}
	inPlace := false
	for _, a := range argv[1:] {
		if a == "-i" || a == "--in-place" {
			inPlace = true
			continue
		}
		fixed = append(fixed, a)
	}
	o, names, err := flags(fixed, "nEre:s")
	if err != nil {
		return usage(p, argv, err)
	}
	var scripts []string
	for i, a := range fixed {
		if a == "-e" && i+1 < len(fixed) {
			scripts = append(scripts, fixed[i+1])
		}
	}
	if len(scripts) == 0 {
		if len(names) == 0 {
			return usage(p, argv, errors.New("a script is needed"))
		}
		scripts, names = names[:1], names[1:]
	}
	var cmds []*sedCommand
	for _, s := range scripts {
		got, err := parseSed(s, has(o, "E", "r"))
		if err != nil {
			return usage(p, argv, fmt.Errorf("%w (this sed knows s, p, d and q with addresses)", err))
		}
		cmds = append(cmds, got...)
	}
	if !inPlace {
		all, code := p.allLines(argv, names)
		p.print(1, runSed(cmds, all, has(o, "n")))
		return code
	}
	return p.each(argv, names, func(name string, r io.Reader) error {
		b, err := readAll(r)
		if err != nil {
			return err
		}
		out := runSed(cmds, lines(b), has(o, "n"))
		if len(b) > 0 && b[len(b)-1] != '\n' {
			out = strings.TrimSuffix(out, "\n")
		}
		f, err := p.m.tree.open(p.abs(name), openMode{write: true, trunc: true}, 0, p.cred())
		if err != nil {
			return err
		}
		_, err = f.Write([]byte(out))
		return err
	})
}

func parseSed(s string, extended bool) ([]*sedCommand, error) {
	var out []*sedCommand
	for {
		s = strings.TrimLeft(s, " \t\n;")
		if s == "" {
			return out, nil
		}
		c := &sedCommand{nth: 1}
		var err error
		if c.from, s, err = parseSedAddress(s, extended); err != nil {
			return nil, err
		}
		if c.from != nil && strings.HasPrefix(s, ",") {
			if c.to, s, err = parseSedAddress(s[1:], extended); err != nil || c.to == nil {
				return nil, errors.Join(err, errors.New("a second address is missing"))
			}
		}
		s = strings.TrimLeft(s, " ")
		if strings.HasPrefix(s, "!") {
			c.negate, s = true, s[1:]
		}
		if s == "" {
			return nil, errors.New("a command is missing")
		}
		c.do, s = s[0], s[1:]
		switch c.do {
		case 'p', 'd', 'q':
		case 's':
			if s, err = c.parseSubstitution(s, extended); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("command %q is not supported", c.do)
		}
		if s = strings.TrimLeft(s, " "); s != "" && s[0] != ';' && s[0] != '\n' {
			return nil, fmt.Errorf("extra characters %q", s)
		}
		out = append(out, c)
	}
}

func parseSedAddress(s string, extended bool) (*sedAddress, string, error) {
	switch {
	case s == "":
		return nil, s, nil
	case s[0] == '$':
		return &sedAddress{last: true}, s[1:], nil
	case s[0] == '/':
		expr, rest, ok := delimited(s[1:], '/')
		if !ok {
			return nil, s, errors.New("an address has no end")
		}
		re, err := compile(expr, extended, false)
		return &sedAddress{re: re}, rest, err
	case s[0] >= '0' && s[0] <= '9':
		end := 0
		for end < len(s) && s[end] >= '0' && s[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(s[:end])
		return &sedAddress{line: n}, s[end:], err
	}
	return nil, s, nil
}

// delimited cuts s at the next delimiter that no backslash protects.
func delimited(s string, d byte) (part, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			if s[i+1] != d {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i+1])
			i++
		case s[i] == d:
			return b.String(), s[i+1:], true
		default:
			b.WriteByte(s[i])
		}
	}
	return "", s, false
}

func (c *sedCommand) parseSubstitution(s string, extended bool) (string, error) {
	if s == "" {
		return s, errors.New("an expression is missing")
	}
	d := s[0]
	expr, s, ok := delimited(s[1:], d)
	with, s, ok2 := delimited(s, d)
	if !ok || !ok2 {
		return s, errors.New("an s command has no end")
	}
	fold := false
	for s != "" && s[0] != ';' && s[0] != '\n' && s[0] != ' ' {
		switch f := s[0]; {
		case f == 'g':
			c.global = true
		case f == 'p':
			c.print = true
		case f == 'i' || f == 'I':
			fold = true
		case f >= '1' && f <= '9':
			c.nth = int(f - '0')
		default:
			return s, fmt.Errorf("flag %q is not supported", f)
		}
		s = s[1:]
	}
	var err error
	c.re, err = compile(expr, extended, fold)
	c.with = with
	return s, err
}

// replace does one s command on a line.
func (c *sedCommand) replace(line string) (string, bool) {
	var b strings.Builder
	at, n, done := 0, 0, false
	for _, m := range c.re.FindAllStringSubmatchIndex(line, -1) {
		n++
		if n < c.nth || done && !c.global {
			continue
		}
		b.WriteString(line[at:m[0]])
		for i := 0; i < len(c.with); i++ {
			switch w := c.with[i]; {
			case w == '&':
				b.WriteString(line[m[0]:m[1]])
			case w == '\\' && i+1 < len(c.with):
				i++
				k := int(c.with[i] - '0')
				switch {
				case k >= 0 && k <= 9 && 2*k+1 < len(m):
					if m[2*k] >= 0 {
						b.WriteString(line[m[2*k]:m[2*k+1]])
					}
				case c.with[i] == 'n':
					b.WriteByte('\n')
				case c.with[i] == 't':
					b.WriteByte('\t')
				default:
					b.WriteByte(c.with[i])
				}
			default:
				b.WriteByte(w)
			}
		}
		at, done = m[1], true
	}
	b.WriteString(line[at:])
	return b.String(), done
}

func (c *sedCommand) applies(n int, last bool, line string) bool {
	hit := true
	switch {
	case c.from == nil:
	case c.to == nil:
		hit = c.from.hits(n, last, line)
	case c.inside:
		c.inside = !c.to.hits(n, last, line) && (c.to.line == 0 || n < c.to.line)
	default:
		hit = c.from.hits(n, last, line)
		c.inside = hit && (c.to.line == 0 || n < c.to.line) && !(c.to.last && last)
	}
	return hit != c.negate
}

func runSed(cmds []*sedCommand, in []string, quiet bool) string {
	var b strings.Builder
lines:
	for i, line := range in {
		for _, c := range cmds {
			if !c.applies(i+1, i == len(in)-1, line) {
				continue
			}
			switch c.do {
			case 'd':
				continue lines
			case 'p':
				b.WriteString(line + "\n")
			case 'q':
				if !quiet {
					b.WriteString(line + "\n")
				}
				return b.String()
			case 's':
				var done bool
				if line, done = c.replace(line); done && c.print {
					b.WriteString(line + "\n")
				}
			}
		}
		if !quiet {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

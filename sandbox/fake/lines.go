package fake

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

func catCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "nu")
	if err != nil {
		return usage(p, argv, err)
	}
	n := 0
	return p.each(argv, names, func(_ string, r io.Reader) error {
		if !has(o, "n") {
			_, err := io.CopyBuffer(onlyWriter{fdio{p, 1}}, r, make([]byte, 32<<10))
			return err
		}
		b, err := readAll(r)
		for _, l := range lines(b) {
			n++
			p.print(1, fmt.Sprintf("%6d\t%s\n", n, l))
		}
		return err
	})
}

// onlyWriter hides other methods, so that io.Copy uses the given buffer.
type onlyWriter struct{ io.Writer }

// count reads -n or -c values; the old form -5 is taken too.
func count(argv []string) ([]string, map[string]string, []string, error) {
	fixed := []string{argv[0]}
	for _, a := range argv[1:] {
		if _, err := strconv.Atoi(a); err == nil && len(a) > 1 && a[0] == '-' && (len(fixed) == 1 || fixed[len(fixed)-1] != "-n" && fixed[len(fixed)-1] != "-c") {
			a = "-n" + a[1:]
		}
		fixed = append(fixed, a)
	}
	o, names, err := flags(fixed, "n:c:qv")
	return fixed, o, names, err
}

func headCmd(p *proc, argv []string) int {
	_, o, names, err := count(argv)
	if err != nil {
		return usage(p, argv, err)
	}
	value, bytesWanted := o["c"], has(o, "c")
	if !bytesWanted {
		value = o["n"]
		if value == "" {
			value = "10"
		}
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return usage(p, argv, fmt.Errorf("%s is no number", value))
	}
	return p.each(argv, names, func(name string, r io.Reader) error {
		if len(names) > 1 && !has(o, "q") {
			p.print(1, "==> "+name+" <==\n")
		}
		if bytesWanted && n >= 0 {
			_, err := io.CopyBuffer(onlyWriter{fdio{p, 1}}, io.LimitReader(r, n), make([]byte, 64<<10))
			return err
		}
		if n < 0 {
			b, err := readAll(r)
			l := lines(b)
			for _, s := range l[:max(len(l)+int(n), 0)] {
				p.print(1, s+"\n")
			}
			return err
		}
		br := bufio.NewReaderSize(r, chunk)
		for range n {
			l, err := br.ReadString('\n')
			if l != "" && !p.print(1, l) || errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func tailCmd(p *proc, argv []string) int {
	_, o, names, err := count(argv)
	if err != nil {
		return usage(p, argv, err)
	}
	value := o["n"]
	if has(o, "c") {
		value = o["c"]
	} else if value == "" {
		value = "10"
	}
	n, err := strconv.Atoi(strings.TrimPrefix(value, "-"))
	if err != nil {
		return usage(p, argv, fmt.Errorf("%s is no number", value))
	}
	fromStart := strings.HasPrefix(value, "+")
	return p.each(argv, names, func(name string, r io.Reader) error {
		if len(names) > 1 && !has(o, "q") {
			p.print(1, "==> "+name+" <==\n")
		}
		b, err := readAll(r)
		units := strings.SplitAfter(string(b), "\n")
		if has(o, "c") {
			units = strings.Split(string(b), "")
			if len(units) != len(b) {
				units = nil
				for _, c := range b {
					units = append(units, string([]byte{c}))
				}
			}
		} else if len(units) > 0 && units[len(units)-1] == "" {
			units = units[:len(units)-1]
		}
		from := max(len(units)-n, 0)
		if fromStart {
			from = min(max(n-1, 0), len(units))
		}
		p.print(1, strings.Join(units[from:], ""))
		return err
	})
}

func wcCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "lwcm")
	if err != nil {
		return usage(p, argv, err)
	}
	if len(o) == 0 {
		o = map[string]string{"l": "", "w": "", "c": ""}
	}
	var total [3]int
	show := func(n [3]int, name string) {
		var f []string
		for i, k := range []string{"l", "w", "c"} {
			if has(o, k) || k == "c" && has(o, "m") {
				f = append(f, strconv.Itoa(n[i]))
			}
		}
		if name != "-" {
			f = append(f, name)
		}
		p.print(1, strings.Join(f, " ")+"\n")
	}
	code := p.each(argv, names, func(name string, r io.Reader) error {
		var n [3]int
		inWord := false
		buf := make([]byte, 32<<10)
		for {
			k, err := r.Read(buf)
			for _, c := range buf[:k] {
				if c == '\n' {
					n[0]++
				}
				space := c == ' ' || c >= '\t' && c <= '\r'
				if !space && !inWord {
					n[1]++
				}
				inWord = !space
			}
			n[2] += k
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		for i := range total {
			total[i] += n[i]
		}
		show(n, name)
		return nil
	})
	if len(names) > 1 {
		show(total, "total")
	}
	return code
}

func teeCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "a")
	if err != nil {
		return usage(p, argv, err)
	}
	code := 0
	writers := []io.Writer{fdio{p, 1}}
	for _, n := range names {
		f, err := p.open(n, openMode{write: true, create: true, trunc: !has(o, "a"), appending: has(o, "a")})
		if err != nil {
			code = p.complain(argv, err)
			continue
		}
		f.retain()
		defer f.release()
		writers = append(writers, streamWriter{p, f})
	}
	if _, err := io.Copy(io.MultiWriter(writers...), fdio{p, 0}); err != nil {
		return p.complain(argv, err)
	}
	return code
}

type streamWriter struct {
	p *proc
	s stream
}

func (w streamWriter) Write(b []byte) (int, error) { return w.s.write(w.p, b) }

func sortCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "nrubfk:t:sc")
	if err != nil {
		return usage(p, argv, err)
	}
	all, code := p.allLines(argv, names)
	field := func(l string) string { return l }
	if has(o, "k") {
		first, _, _ := strings.Cut(o["k"], ",")
		first, _, _ = strings.Cut(first, ".")
		num := strings.TrimRight(first, "nrbf")
		if first != num {
			for _, c := range first[len(num):] {
				o[string(c)] = ""
			}
		}
		k, err := strconv.Atoi(num)
		if err != nil || k < 1 {
			return usage(p, argv, fmt.Errorf("key %q is not understood", o["k"]))
		}
		field = func(l string) string {
			f := strings.Fields(l)
			if has(o, "t") {
				f = strings.Split(l, o["t"])
			}
			if k > len(f) {
				return ""
			}
			return f[k-1]
		}
	}
	cmp := func(a, b string) int {
		x, y := field(a), field(b)
		r := 0
		if has(o, "n") {
			r = compareFloat(leadingNumber(x), leadingNumber(y))
		} else {
			if has(o, "f") {
				x, y = strings.ToUpper(x), strings.ToUpper(y)
			}
			r = strings.Compare(x, y)
		}
		if r == 0 && !has(o, "s", "u") {
			r = strings.Compare(a, b)
		}
		if has(o, "r") {
			r = -r
		}
		return r
	}
	if has(o, "c") {
		return b2i(!slices.IsSortedFunc(all, cmp))
	}
	slices.SortStableFunc(all, cmp)
	if has(o, "u") {
		all = slices.CompactFunc(all, func(a, b string) bool { return cmp(a, b) == 0 })
	}
	return max(code, p.sayLines(all))
}

func compareFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func leadingNumber(s string) float64 {
	s = strings.TrimLeft(s, " \t")
	end := 0
	for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[end] == '.' || end == 0 && s[end] == '-') {
		end++
	}
	f, _ := strconv.ParseFloat(s[:end], 64)
	return f
}

func (p *proc) sayLines(all []string) int {
	if len(all) == 0 {
		return 0
	}
	return p.say(strings.Join(all, "\n") + "\n")
}

func uniqCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "cdu")
	if err != nil {
		return usage(p, argv, err)
	}
	all, code := p.allLines(argv, names)
	var out []string
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j] == all[i] {
			j++
		}
		n := j - i
		if !(has(o, "d") && n < 2 || has(o, "u") && n > 1) {
			l := all[i]
			if has(o, "c") {
				l = fmt.Sprintf("%7d %s", n, l)
			}
			out = append(out, l)
		}
		i = j
	}
	return max(code, p.sayLines(out))
}

// positions reads a list such as "1,3-5,7-".
func positions(list string) (func(n int) bool, error) {
	type span struct{ from, to int }
	var spans []span
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, dash := strings.Cut(part, "-")
		s := span{1, 1 << 30}
		var err error
		if lo != "" {
			if s.from, err = strconv.Atoi(lo); err != nil {
				return nil, fmt.Errorf("list %q is not understood", list)
			}
		}
		if !dash {
			s.to = s.from
		} else if hi != "" {
			if s.to, err = strconv.Atoi(hi); err != nil {
				return nil, fmt.Errorf("list %q is not understood", list)
			}
		}
		spans = append(spans, s)
	}
	return func(n int) bool {
		return slices.ContainsFunc(spans, func(s span) bool { return n >= s.from && n <= s.to })
	}, nil
}

func cutCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "d:f:c:b:s")
	if err != nil {
		return usage(p, argv, err)
	}
	list := o["f"] + o["c"] + o["b"]
	want, err := positions(list)
	if err != nil || list == "" {
		return usage(p, argv, fmt.Errorf("list %q is not understood", list))
	}
	sep := "\t"
	if has(o, "d") {
		sep = o["d"]
	}
	all, code := p.allLines(argv, names)
	var out []string
	for _, l := range all {
		parts, join := strings.Split(l, ""), ""
		if has(o, "b") {
			parts = nil
			for i := range len(l) {
				parts = append(parts, l[i:i+1])
			}
		}
		if has(o, "f") {
			if parts, join = strings.Split(l, sep), sep; len(parts) == 1 {
				if !has(o, "s") {
					out = append(out, l)
				}
				continue
			}
		}
		var keep []string
		for i, f := range parts {
			if want(i + 1) {
				keep = append(keep, f)
			}
		}
		out = append(out, strings.Join(keep, join))
	}
	return max(code, p.sayLines(out))
}

// byteSet expands the argument of tr.
func byteSet(s string) []byte {
	class := map[string]string{
		"[:upper:]": "A-Z", "[:lower:]": "a-z", "[:digit:]": "0-9", "[:alpha:]": "A-Za-z", "[:alnum:]": "A-Za-z0-9",
		"[:space:]": " \t\n\r\v\f", "[:blank:]": " \t", "[:punct:]": "!-/:-@[-`{-~",
	}
	for k, v := range class {
		s = strings.ReplaceAll(s, k, v)
	}
	raw := []byte(strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\r`, "\r", `\\`, `\`, `\0`, "\x00").Replace(s))
	var out []byte
	for i := 0; i < len(raw); i++ {
		if i+2 < len(raw) && raw[i+1] == '-' && raw[i+2] >= raw[i] {
			for c := int(raw[i]); c <= int(raw[i+2]); c++ {
				out = append(out, byte(c))
			}
			i += 2
			continue
		}
		out = append(out, raw[i])
	}
	return out
}

func trCmd(p *proc, argv []string) int {
	o, sets, err := flags(argv, "dscC")
	if err != nil || len(sets) == 0 || len(sets) == 1 && !has(o, "d", "s") {
		return usage(p, argv, errors.Join(err, errors.New("the sets are not understood")))
	}
	from := byteSet(sets[0])
	if has(o, "c", "C") {
		var rest []byte
		for c := range 256 {
			if bytes.IndexByte(from, byte(c)) < 0 {
				rest = append(rest, byte(c))
			}
		}
		from = rest
	}
	var to []byte
	if len(sets) > 1 {
		to = byteSet(sets[1])
	}
	squeeze := from
	if len(to) > 0 {
		squeeze = to
	}
	var table [256]int
	for i := range table {
		table[i] = i
	}
	for i, c := range from {
		switch {
		case has(o, "d"):
			table[c] = -1
		case len(to) > 0:
			table[c] = int(to[min(i, len(to)-1)])
		}
	}
	last := -1
	buf := make([]byte, 32<<10)
	for {
		n, err := (fdio{p, 0}).Read(buf)
		out := make([]byte, 0, n)
		for _, c := range buf[:n] {
			m := table[c]
			if m < 0 || has(o, "s") && m == last && bytes.IndexByte(squeeze, byte(m)) >= 0 {
				continue
			}
			last = m
			out = append(out, byte(m))
		}
		if len(out) > 0 && !p.print(1, string(out)) {
			return 1
		}
		if err != nil {
			return b2i(!errors.Is(err, io.EOF))
		}
	}
}

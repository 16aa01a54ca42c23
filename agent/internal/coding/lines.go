package coding

import "bytes"

// lines splits a stream into lines in bounded memory. It is an io.Writer.
type lines struct {
	// each gets every line without its end; the slice is only good until it
	// returns.
	each func([]byte)
	// long is told of each line over limit, which is skipped.
	long  func()
	limit int

	part []byte
	over bool
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.add(p)
			return n, nil
		}
		if len(l.part) == 0 && !l.over && i <= l.limit {
			l.each(p[:i]) // the usual case: no copy
		} else {
			l.add(p[:i])
			l.end()
		}
		p = p[i+1:]
	}
}

func (l *lines) add(p []byte) {
	if l.over {
		return
	}
	if len(l.part)+len(p) > l.limit {
		l.part, l.over = nil, true
		return
	}
	l.part = append(l.part, p...)
}

func (l *lines) end() {
	if l.over {
		l.long()
	} else {
		l.each(l.part)
	}
	l.part, l.over = l.part[:0], false
}

// close hands over a last line without an end.
func (l *lines) close() {
	if len(l.part) > 0 || l.over {
		l.end()
	}
}

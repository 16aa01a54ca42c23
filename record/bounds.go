package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"assay/internal/atomicfile"
)

// The bounds of one attempt's parts, in bytes where not said otherwise.
const (
	maxAttempt  = 4 << 20   // attempt.json without its facts
	maxString   = 256 << 10 // one text in attempt.json
	maxEvents   = 16 << 20  // events.ndjson
	maxEvent    = 1 << 20   // one event; longer texts in it are cut
	maxEventStr = 64 << 10  // one text in an event that is too long
	maxCommands = 64 << 20  // commands.ndjson: failed output is kept whole below it
	maxWindows  = 256       // windows
	maxRows     = 1_000     // changed paths, over all windows
	maxBlob     = 1 << 20   // text of one side
	maxDiffText = 12 << 20  // text of all sides
	maxDiff     = 16 << 20  // diff.json
)

// CapReached is the reason of a diff that is partial because of a bound.
const CapReached = "collection-cap-reached"

// attemptFiles encodes an attempt. Parts that are empty have no file.
func attemptFiles(s Sealed) ([]atomicfile.File, error) {
	a := s.Attempt
	a.Diff = boundSummary(a.Diff)
	doc, err := encodeAttempt(&a)
	if err != nil {
		return nil, err
	}
	files := []atomicfile.File{{Name: attemptFile, Data: append(doc, '\n')}}
	if len(s.Events) > 0 {
		files = append(files, atomicfile.File{Name: eventsFile, Data: boundLines(s.Events, maxEvents, maxEvent)})
	}
	if len(s.Commands) > 0 {
		files = append(files, atomicfile.File{Name: commandsFile, Data: boundLines(s.Commands, maxCommands, maxCommands/2)})
	}
	if s.Diff != nil {
		diff, err := encodeDiff(s.Diff)
		if err != nil {
			return nil, err
		}
		files = append(files, atomicfile.File{Name: diffFile, Data: append(diff, '\n')})
	}
	return files, nil
}

// boundLines joins raw events or command records as lines. A line over perLine
// has its long texts cut; what is beyond total is left out of the middle, and a
// line of type "truncated" says how much. Lines that are no JSON become such a
// line too.
func boundLines(lines []json.RawMessage, total, perLine int) []byte {
	encode := func(raw json.RawMessage) []byte {
		var b bytes.Buffer
		if json.Compact(&b, raw) != nil {
			return marker(1, len(raw), "not JSON")
		}
		line := b.Bytes()
		if len(line) > perLine {
			line = shorten(line, perLine)
		}
		return line
	}
	var head, tail [][]byte
	size := 0
	first := 0
	for ; first < len(lines); first++ {
		line := encode(lines[first])
		if size+len(line)+1 > total*3/4 {
			break
		}
		head, size = append(head, line), size+len(line)+1
	}
	last := len(lines)
	for ; last > first; last-- {
		line := encode(lines[last-1])
		if size+len(line)+1 > total {
			break
		}
		tail, size = append(tail, line), size+len(line)+1
	}
	if last > first {
		bytesLeft := 0
		for _, raw := range lines[first:last] {
			bytesLeft += len(raw)
		}
		head = append(head, marker(last-first, bytesLeft, "over the limit"))
	}
	slices.Reverse(tail)
	var out bytes.Buffer
	for _, line := range append(head, tail...) {
		out.Write(line)
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func marker(lines, size int, why string) []byte {
	return fmt.Appendf(nil, `{"type":"truncated","lines":%d,"bytes":%d,"reason":%q}`, lines, size, why)
}

// shorten cuts the long texts of one JSON line, harder until it fits.
func shorten(line []byte, limit int) []byte {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return marker(1, len(line), "not JSON")
	}
	for maxStr := maxEventStr; maxStr >= 64; maxStr /= 8 {
		v = cutTexts(v, maxStr)
		if out, err := json.Marshal(v); err == nil && len(out) <= limit {
			return out
		}
	}
	return marker(1, len(line), "one line over the limit")
}

func cutTexts(v any, limit int) any {
	switch v := v.(type) {
	case string:
		return cutText(v, limit)
	case []any:
		for i := range v {
			v[i] = cutTexts(v[i], limit)
		}
	case map[string]any:
		for k := range v {
			v[k] = cutTexts(v[k], limit)
		}
	}
	return v
}

// cutText keeps the head and the tail of s and says between them how many
// bytes are missing. The result may be some bytes longer than limit.
func cutText(s string, limit int) string {
	if len(s) <= limit+32 {
		return s
	}
	head, tail := limit*3/4, len(s)-limit/4
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return fmt.Sprintf("%s…[%d bytes cut]…%s", s[:head], tail-head, s[tail:])
}

// boundSummary keeps at most maxRows changes.
func boundSummary(d *DiffSummary) *DiffSummary {
	if d == nil || len(d.Changes) <= maxRows {
		return d
	}
	return &DiffSummary{Changes: d.Changes[:maxRows:maxRows], Partial: CapReached}
}

// encodeDiff encodes a diff within the bounds. What does not fit is marked: a
// side whose text is left out is Elided, the whole is Partial. The caller's
// value is not changed.
func encodeDiff(d *Diff) ([]byte, error) {
	out := Diff{Partial: d.Partial}
	capped := false
	rows, text := 0, 0
	side := func(s *Side) *Side {
		if s == nil || s.Text == nil {
			return s
		}
		n := len(*s.Text)
		if n <= maxBlob && text+n <= maxDiffText {
			text += n
			return s
		}
		// A single large file is elided by rule; only the bound of the whole
		// makes the collection partial.
		capped = capped || n <= maxBlob
		cp := *s
		cp.Text, cp.Elided = nil, true
		return &cp
	}
	for i, win := range d.Windows {
		if i == maxWindows {
			capped = true
			break
		}
		w := Window{Label: win.Label, Rows: make([]Row, 0, min(len(win.Rows), maxRows-rows))}
		for _, row := range win.Rows {
			if rows == maxRows {
				capped = true
				break
			}
			rows++
			row.Before, row.After = side(row.Before), side(row.After)
			w.Rows = append(w.Rows, row)
		}
		out.Windows = append(out.Windows, w)
	}
	if capped && out.Partial == "" {
		out.Partial = CapReached
	}
	doc, err := json.Marshal(out)
	if err != nil || len(doc) <= maxDiff {
		return doc, err
	}
	// Escapes made the texts longer than they are: keep the list, drop all text.
	if out.Partial == "" {
		out.Partial = CapReached
	}
	for i := range out.Windows {
		for j := range out.Windows[i].Rows {
			row := &out.Windows[i].Rows[j]
			row.Before, row.After = withoutText(row.Before), withoutText(row.After)
		}
	}
	return json.Marshal(out)
}

func withoutText(s *Side) *Side {
	if s == nil || s.Text == nil {
		return s
	}
	cp := *s
	cp.Text, cp.Elided = nil, true
	return &cp
}

package record

import (
	"bytes"
	"encoding/json"

	"assay/internal/redact"
)

// redactJSON masks secrets in the string values of valid JSON. Member names and
// numbers stay: a secret that happens to equal one must not break the document.
func redactJSON(r *redact.Redactor, data []byte) []byte {
	if r.Empty() {
		return data
	}
	var out []byte
	kept := 0 // data[:kept] is in out
	for i := 0; i < len(data); {
		if data[i] != '"' {
			i++
			continue
		}
		end := literalEnd(data, i)
		if !isName(data, end) {
			if masked, changed := redactLiteral(r, data[i:end]); changed {
				out = append(append(out, data[kept:i]...), masked...)
				kept = end
			}
		}
		i = end
	}
	if kept == 0 {
		return data
	}
	return append(out, data[kept:]...)
}

// literalEnd is the index after the string literal that begins at start.
func literalEnd(data []byte, start int) int {
	for i := start + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// isName reports whether a colon follows.
func isName(data []byte, i int) bool {
	for ; i < len(data); i++ {
		switch data[i] {
		case ' ', '\t', '\n', '\r':
		default:
			return data[i] == ':'
		}
	}
	return false
}

func redactLiteral(r *redact.Redactor, lit []byte) ([]byte, bool) {
	var s string
	if bytes.IndexByte(lit, '\\') < 0 && len(lit) >= 2 {
		s = string(lit[1 : len(lit)-1])
	} else if json.Unmarshal(lit, &s) != nil {
		return nil, false
	}
	masked := r.String(s)
	if masked == s {
		return nil, false
	}
	out, err := json.Marshal(masked)
	if err != nil {
		return nil, false
	}
	return out, true
}

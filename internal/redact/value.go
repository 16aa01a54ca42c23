package redact

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
)

// Value masks every string inside the value that p points to: fields, map keys
// and values, slices, and the strings inside raw JSON. Texts that were cut before
// are masked too: what is left of a secret beside a mark of something cut out.
func Value(r *Redactor, p any) {
	if r.Empty() {
		return
	}
	walk(r, reflect.ValueOf(p).Elem())
}

var rawType = reflect.TypeFor[json.RawMessage]()

func walk(r *Redactor, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(r.kept(v.String()))
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		// What is shared with the engine must not change under it.
		fresh := reflect.New(v.Type().Elem())
		fresh.Elem().Set(v.Elem())
		walk(r, fresh.Elem())
		if v.CanSet() {
			v.Set(fresh)
		}
	case reflect.Interface:
		if v.IsNil() || !v.CanSet() {
			return
		}
		fresh := reflect.New(v.Elem().Type()).Elem()
		fresh.Set(v.Elem())
		walk(r, fresh)
		v.Set(fresh)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				walk(r, v.Field(i))
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		if v.Type() == rawType {
			if v.CanSet() {
				v.SetBytes(r.rawJSON(v.Bytes()))
			}
			return
		}
		fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(fresh, v)
		for i := range fresh.Len() {
			walk(r, fresh.Index(i))
		}
		if v.CanSet() {
			v.Set(fresh)
		}
	case reflect.Map:
		if v.IsNil() {
			return
		}
		fresh := reflect.MakeMapWithSize(v.Type(), v.Len())
		for _, k := range v.MapKeys() {
			nk, nv := reflect.New(k.Type()).Elem(), reflect.New(v.Type().Elem()).Elem()
			nk.Set(k)
			nv.Set(v.MapIndex(k))
			walk(r, nk)
			walk(r, nv)
			fresh.SetMapIndex(nk, nv)
		}
		if v.CanSet() {
			v.Set(fresh)
		}
	}
}

// rawJSON masks the strings of a JSON document; bytes that are no document are
// masked as they are and become a JSON string.
func (r *Redactor) rawJSON(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		out, _ := json.Marshal(r.kept(string(b)))
		return out
	}
	walk(r, reflect.ValueOf(&doc).Elem())
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return []byte("null")
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// halfLength is the shortest rest of a secret that is masked beside a cut, in
// bytes. It gives away too little of one, and is too short to tell it from
// ordinary text.
const halfLength = 6

// cutMarks stand where a text was shortened.
var cutMarks = regexp.MustCompile(`\s*(?:…|\[\d+ bytes (?:dropped|cut)\])\s*`)

// kept is String for a text that may have been cut before: the start of a secret
// right before the mark of a cut, and the end of one right after it, are masked.
func (r *Redactor) kept(s string) string {
	s = r.String(s)
	if !strings.Contains(s, "…") && !strings.Contains(s, " bytes ") {
		return s
	}
	marks := cutMarks.FindAllStringIndex(s, -1)
	var b strings.Builder
	from := 0
	for _, m := range marks {
		before := s[from:m[0]]
		if n := r.startsAtEnd(before); n > 0 {
			before = before[:len(before)-n] + Mask
		}
		b.WriteString(before)
		b.WriteString(s[m[0]:m[1]])
		from = m[1]
		if n := r.endsAtStart(s[from:]); n > 0 {
			b.WriteString(Mask)
			from += n
		}
	}
	b.WriteString(s[from:])
	return b.String()
}

// startsAtEnd is how many of the last bytes of s begin a secret.
func (r *Redactor) startsAtEnd(s string) int {
	if len(s) < halfLength {
		return 0
	}
	longest, last := 0, []byte(s[len(s)-halfLength:])
	for _, n := range r.needles {
		if !bytes.Contains(n, last) {
			continue
		}
		for k := min(len(n)-1, len(s)); k >= max(halfLength, longest+1); k-- {
			if strings.HasSuffix(s, string(n[:k])) {
				longest = k
				break
			}
		}
	}
	return longest
}

// endsAtStart is how many of the first bytes of s end a secret.
func (r *Redactor) endsAtStart(s string) int {
	if len(s) < halfLength {
		return 0
	}
	longest, first := 0, []byte(s[:halfLength])
	for _, n := range r.needles {
		if !bytes.Contains(n, first) {
			continue
		}
		for k := min(len(n)-1, len(s)); k >= max(halfLength, longest+1); k-- {
			if strings.HasPrefix(s, string(n[len(n)-k:])) {
				longest = k
				break
			}
		}
	}
	return longest
}

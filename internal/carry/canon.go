package carry

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay"
)

// Text writes plain data in one canonical form that people can read, close to
// flow YAML: fields without a value are left out, so that a field that a later
// version adds changes nothing, and keys are sorted. A func is "func": its shape
// is known, its body is not. A zero value is "".
func Text(v any) string {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() || zero(rv) {
		return ""
	}
	if rv.Kind() == reflect.String {
		return rv.String()
	}
	var b strings.Builder
	canon(&b, rv, 0)
	return b.String()
}

// maxNesting ends what refers to itself.
const maxNesting = 64

var durationType = reflect.TypeFor[time.Duration]()

// zero reports whether a value says nothing: empty lists and maps do not. A
// pointer to zero does.
func zero(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !zero(v.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Interface:
		return v.IsNil() || zero(v.Elem())
	}
	return v.IsZero()
}

func canon(b *strings.Builder, v reflect.Value, depth int) {
	if depth > maxNesting {
		b.WriteString("…")
		return
	}
	if v.IsValid() && v.Type() == durationType {
		b.WriteString(time.Duration(v.Int()).String())
		return
	}
	switch v.Kind() {
	case reflect.Invalid:
		b.WriteString("null")
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteString("null")
			return
		}
		canon(b, v.Elem(), depth+1)
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		b.WriteString("func")
	case reflect.String:
		b.WriteString(strconv.Quote(v.String()))
	case reflect.Slice, reflect.Array:
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteString(", ")
			}
			canon(b, v.Index(i), depth+1)
		}
		b.WriteByte(']')
	case reflect.Map:
		entries(b, v, depth)
	case reflect.Struct:
		fields(b, v, depth)
	default:
		fmt.Fprintf(b, "%v", v)
	}
}

func entries(b *strings.Builder, v reflect.Value, depth int) {
	names := make([]string, 0, v.Len())
	values := make(map[string]reflect.Value, v.Len())
	for it := v.MapRange(); it.Next(); {
		name := fmt.Sprint(it.Key())
		names = append(names, name)
		values[name] = it.Value()
	}
	slices.Sort(names)
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(word(name) + ": ")
		canon(b, values[name], depth+1)
	}
	b.WriteByte('}')
}

func fields(b *strings.Builder, v reflect.Value, depth int) {
	type field struct {
		name string
		at   int
	}
	var fs []field
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && !zero(v.Field(i)) {
			fs = append(fs, field{strings.ToLower(f.Name[:1]) + f.Name[1:], i})
		}
	}
	slices.SortFunc(fs, func(x, y field) int { return strings.Compare(x.name, y.name) })
	b.WriteByte('{')
	for i, f := range fs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.name + ": ")
		canon(b, v.Field(f.at), depth+1)
	}
	b.WriteByte('}')
}

// word is a key, quoted where it could be taken for something else.
func word(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\r\n\"'{}[],:") {
		return s
	}
	return quote(s)
}

func quote(s string) string { return strconv.Quote(s) }

// kind is what an unnamed check is called: its kind, with what it looks at where
// that is short.
func kind(c *assay.Check) string {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if zero(v.Field(i)) {
			continue
		}
		name := strings.ToLower(f.Name[:1]) + f.Name[1:]
		switch x := v.Field(i).Interface().(type) {
		case string:
			return name + " " + x
		case *assay.RunCheck:
			return name + " " + x.Command.Label()
		case *assay.FileCheck:
			return name + " " + x.Path
		case *assay.ToolMatch:
			return strings.TrimSpace(name + " " + x.Name)
		}
		return name
	}
	return "nothing"
}

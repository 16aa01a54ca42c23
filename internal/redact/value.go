package redact

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Value masks every string inside the value that p points to: fields, map keys
// and values, slices, and the strings inside raw JSON.
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
			v.SetString(r.String(v.String()))
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
		out, _ := json.Marshal(r.String(string(b)))
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

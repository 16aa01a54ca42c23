// Package schema makes the JSON Schemas (draft 2020-12) of the files that a
// user writes, from the same shapes that the reader of those files uses.
//
// A schema says what the reader says about structure: fields, types, bounds and
// which fields exclude each other. What needs the project or the host, such as
// a path that must exist, only the reader knows.
package schema

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/projectfile"
	"assay/sandbox"
)

// Options say what the schemas know.
type Options struct {
	Kinds projectfile.Kinds
	// Shapes are further files by the name of their schema, such as "fake": a
	// struct, or a pointer to one, with the tags of package projectfile.
	Shapes map[string]any
}

// Names lists the schemas in order.
func Names(o Options) []string {
	return slices.Sorted(maps.Keys(shapesOf(o)))
}

func shapesOf(o Options) map[string]any {
	all := map[string]any{
		"project": projectfile.Project{}, "experiment": projectfile.Experiment{},
		"eval": projectfile.Eval{}, "group": projectfile.Group{}, "plugin": projectfile.PluginFile{},
	}
	maps.Copy(all, o.Shapes)
	return all
}

// For returns the schema of one kind of file, as indented JSON that ends in a
// newline. An unknown name is an error with the code "schema-unknown".
func For(name string, o Options) ([]byte, error) {
	shape, ok := shapesOf(o)[name]
	if !ok {
		fix := "Name one of " + strings.Join(Names(o), ", ") + "."
		return nil, fault.Configf("schema-unknown", fix, "there is no schema %q", name)
	}
	t := reflect.TypeOf(shape)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	g := generator{kinds: o.Kinds, defs: object{}}
	root := g.fields(t)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "assay " + name
	if len(g.defs) > 0 {
		root["$defs"] = g.defs
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("encode the schema %s: %w", name, err)
	}
	return []byte(b.String()), nil
}

type object = map[string]any

type generator struct {
	kinds projectfile.Kinds
	defs  object
}

// describer is a type of a provider or agent that reads itself and says what it
// accepts.
type describer interface{ JSONSchema() map[string]any }

var (
	durationType = reflect.TypeFor[time.Duration]()
	commandType  = reflect.TypeFor[sandbox.Command]()
	textualType  = reflect.TypeFor[encoding.TextUnmarshaler]()
	customType   = reflect.TypeFor[interface{ UnmarshalYAML(func(any) error) error }]()
)

// value is the schema of a value.
func (g *generator) value(t reflect.Type, l projectfile.Limits) object {
	if t.Kind() == reflect.Pointer {
		return g.value(t.Elem(), l)
	}
	if t.Kind() != reflect.Interface {
		switch p := reflect.PointerTo(t); {
		case p.Implements(customType):
			if d, ok := reflect.New(t).Interface().(describer); ok {
				return d.JSONSchema()
			}
			return object{"not": object{"type": "null"}}
		case p.Implements(textualType):
			return object{"type": "string"}
		}
	}
	switch t {
	case durationType:
		return text(projectfile.Limits{Format: "duration"})
	case commandType:
		return g.value(reflect.TypeFor[projectfile.Command](), l)
	case reflect.TypeFor[projectfile.Layer]():
		return g.define("sandbox", g.layer)
	case reflect.TypeFor[projectfile.Agent]():
		return g.define("agent", g.agent)
	case reflect.TypeFor[projectfile.Check]():
		return g.define("check", g.check)
	case reflect.TypeFor[projectfile.Command]():
		return g.define("command", func() object { return g.union(t) })
	case reflect.TypeFor[projectfile.Match]():
		return g.define("match", func() object { return g.fields(t) })
	}
	return g.plain(t, l)
}

// plain is the schema of a type that is not special.
func (g *generator) plain(t reflect.Type, l projectfile.Limits) object {
	switch t.Kind() {
	case reflect.Struct:
		if projectfile.ShapeOf(t).Either {
			return g.union(t)
		}
		return g.fields(t)
	case reflect.Map:
		elem := g.value(t.Elem(), projectfile.Limits{Format: l.Format})
		if t.Elem().Kind() == reflect.Interface && l.Format == "" {
			elem = object{}
		}
		out := object{"type": "object", "additionalProperties": elem}
		if l.Keys != "" {
			names := text(projectfile.Limits{Format: l.Keys})
			delete(names, "type")
			out["propertyNames"] = names
		}
		return out
	case reflect.Slice:
		out := object{"type": "array", "items": g.value(t.Elem(), projectfile.Limits{Format: l.Format, Enum: l.Enum})}
		if l.Min != "" {
			out["minItems"] = number(l.Min)
		}
		return out
	case reflect.Interface:
		if l.Format == "label" {
			return object{"type": []string{"string", "number"}}
		}
		return object{"type": []string{"string", "number", "boolean", "array", "object"}}
	case reflect.Bool:
		out := object{"type": "boolean"}
		if len(l.Enum) == 1 {
			out["const"] = l.Enum[0] == "true"
		}
		return out
	case reflect.String:
		return text(l)
	case reflect.Float32, reflect.Float64:
		return bounded(object{"type": "number"}, l)
	default:
		if l.Format == "size" {
			return text(projectfile.Limits{Format: "size"})
		}
		return bounded(object{"type": "integer"}, l)
	}
}

func number(s string) json.Number { return json.Number(s) }

func bounded(out object, l projectfile.Limits) object {
	if l.Min != "" {
		out["minimum"] = number(l.Min)
	}
	if l.Max != "" {
		out["maximum"] = number(l.Max)
	}
	return out
}

// text is the schema of text of a form.
func text(l projectfile.Limits) object {
	out := object{"type": "string"}
	if l.Min != "" {
		if n, err := strconv.Atoi(l.Min); err == nil {
			out["minLength"] = n
		}
	}
	if len(l.Enum) > 0 {
		out["enum"] = l.Enum
	}
	f, ok := projectfile.FormatOf(l.Format)
	if !ok {
		return out
	}
	if len(f.Patterns) == 1 {
		out["pattern"] = f.Patterns[0]
	} else {
		all := make([]object, len(f.Patterns))
		for i, p := range f.Patterns {
			all[i] = object{"pattern": p}
		}
		out["allOf"] = all
	}
	if f.Refuse != "" {
		out["not"] = object{"pattern": f.Refuse}
	}
	return out
}

// define makes a definition once and returns a reference to it.
func (g *generator) define(name string, make func() object) object {
	if _, ok := g.defs[name]; !ok {
		g.defs[name] = nil // for shapes that hold themselves
		g.defs[name] = make()
	}
	return object{"$ref": "#/$defs/" + name}
}

// fields is the schema of a struct.
func (g *generator) fields(t reflect.Type) object {
	s := projectfile.ShapeOf(t)
	props := object{}
	var required []string
	for _, f := range s.Fields {
		props[f.Name] = described(g.value(f.Type, f.Limits), f.Doc)
		if f.Required {
			required = append(required, f.Name)
		}
	}
	out := object{"type": "object", "additionalProperties": false, "properties": props}
	if len(required) > 0 {
		out["required"] = required
	}
	var all []object
	for _, r := range s.Rules {
		all = append(all, rule(r)...)
	}
	if len(all) > 0 {
		out["allOf"] = all
	}
	return out
}

func described(s object, doc string) object {
	if doc == "" {
		return s
	}
	out := maps.Clone(s)
	out["description"] = doc
	return out
}

func rule(r projectfile.Rule) []object {
	any := make([]object, len(r.Names))
	for i, n := range r.Names {
		any[i] = object{"required": []string{n}}
	}
	switch r.Kind {
	case projectfile.ExactlyOne:
		return []object{{"oneOf": any}}
	case projectfile.AtLeastOne:
		return []object{{"anyOf": any}}
	default:
		return atMostOne(r.Names)
	}
}

func atMostOne(names []string) []object {
	var out []object
	for i, a := range names {
		for _, b := range names[i+1:] {
			out = append(out, object{"not": object{"required": []string{a, b}}})
		}
	}
	return out
}

func (g *generator) union(t reflect.Type) object {
	var any []object
	for _, f := range projectfile.ShapeOf(t).Fields {
		any = append(any, described(g.value(f.Type, f.Limits), f.Doc))
	}
	return object{"anyOf": any}
}

// layer is a sandbox layer, with the providers that are registered.
func (g *generator) layer() object {
	out := g.fields(reflect.TypeFor[projectfile.Layer]())
	if g.kinds.Sandboxes == nil {
		return out
	}
	props := out["properties"].(object)
	kinds := g.kinds.Sandboxes.Kinds()
	for _, k := range kinds {
		def, _ := g.kinds.Sandboxes.Lookup(k)
		props[k] = described(g.value(reflect.TypeOf(def.Spec()), projectfile.Limits{}), "Start from "+k+".")
	}
	if pairs := atMostOne(kinds); len(pairs) > 0 {
		out["allOf"] = pairs
	}
	return out
}

// agent is the name of a registered agent, or a map of it to its options.
func (g *generator) agent() object {
	if g.kinds.Agents == nil {
		return object{"type": []string{"string", "object"}}
	}
	props := object{}
	names := g.kinds.Agents.Names()
	for _, n := range names {
		def, _ := g.kinds.Agents.Lookup(n)
		props[n] = described(g.value(reflect.TypeOf(def.Options()), projectfile.Limits{}), def.Summary)
	}
	return object{"anyOf": []object{
		{"enum": names},
		{"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false, "properties": props},
	}}
}

// check is one of the kinds of checks.
func (g *generator) check() object {
	fields := map[string]projectfile.ShapeField{}
	for _, f := range projectfile.ShapeOf(reflect.TypeFor[projectfile.Check]()).Fields {
		fields[f.Name] = f
	}
	var one []object
	for _, k := range projectfile.CheckKinds() {
		props := object{}
		for _, name := range slices.Concat([]string{k.Name}, k.Extra, projectfile.CommonCheckFields()) {
			f := fields[name]
			props[name] = described(g.value(f.Type, f.Limits), f.Doc)
		}
		o := object{"type": "object", "title": k.Name, "additionalProperties": false, "required": []string{k.Name}, "properties": props}
		if k.Name == "file" {
			o["allOf"] = absentHasNoContent(k.Extra)
		}
		one = append(one, o)
	}
	return object{"oneOf": one}
}

// absentHasNoContent refuses to look into a file that must not exist.
func absentHasNoContent(fields []string) []object {
	var out []object
	for _, name := range fields {
		if name != "exists" {
			out = append(out, object{"not": object{"required": []string{"exists", name}, "properties": object{"exists": object{"const": false}}}})
		}
	}
	return out
}

package projectfile

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// Kinds are the names that files may use for sandboxes and agents.
type Kinds struct {
	Sandboxes *sandbox.Registry
	Agents    *agent.Registry
}

// Decode fills target, a pointer to one of the shapes of this package, from a
// parsed file and returns every problem. Where there are problems the target is
// filled as far as it goes. Problems name no file.
func Decode(root *Node, target any, kinds Kinds) []Problem {
	d := decoder{kinds: kinds}
	d.value(root, reflect.ValueOf(target).Elem(), Limits{}, nil)
	return d.problems
}

type decoder struct {
	kinds    Kinds
	problems []Problem
}

func (d *decoder) report(n *Node, f *Field, code, message, fix string) {
	d.reportAt(n.Line, n.Column, f, code, message, fix)
}

func (d *decoder) reportAt(line, column int, f *Field, code, message, fix string) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, Problem{Line: line, Column: column, Field: f.String(), Code: code, Message: message, Fix: fix})
	}
}

var (
	durationType  = reflect.TypeFor[time.Duration]()
	layerType     = reflect.TypeFor[Layer]()
	agentType     = reflect.TypeFor[Agent]()
	checkType     = reflect.TypeFor[Check]()
	commandType   = reflect.TypeFor[sandbox.Command]()
	textualType   = reflect.TypeFor[encoding.TextUnmarshaler]()
	unmarshalType = reflect.TypeFor[unmarshaler]()
)

// unmarshaler is how a type of a provider or agent reads itself: unmarshal
// decodes the value, strictly, into what it is given.
type unmarshaler interface {
	UnmarshalYAML(unmarshal func(any) error) error
}

// value decodes n into v.
func (d *decoder) value(n *Node, v reflect.Value, l Limits, f *Field) {
	if n.Kind == Invalid {
		return
	}
	if n.Kind == Null {
		d.report(n, f, "wrong-type", "there is no value", "Give it one, or remove it.")
		return
	}
	t := v.Type()
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface && v.CanAddr() {
		switch {
		case reflect.PointerTo(t).Implements(unmarshalType):
			d.custom(n, v.Addr().Interface().(unmarshaler), f)
			return
		case reflect.PointerTo(t).Implements(textualType):
			if d.kind(n, f, Text) {
				if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Text)); err != nil {
					d.report(n, f, "bad-value", err.Error(), fault.FixOf(err))
				}
			}
			return
		}
	}
	switch t {
	case durationType:
		d.duration(n, v, f)
		return
	case layerType:
		d.layer(n, v, f)
		return
	case agentType:
		d.agent(n, v, f)
		return
	case checkType:
		d.check(n, v, f)
		return
	case commandType:
		var c Command
		d.value(n, reflect.ValueOf(&c).Elem(), Limits{}, f)
		v.Set(reflect.ValueOf(c.Sandbox()))
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		p := reflect.New(t.Elem())
		d.value(n, p.Elem(), l, f)
		v.Set(p)
	case reflect.Struct:
		if ShapeOf(t).Either {
			d.union(n, v, f)
		} else if d.kind(n, f, Map) {
			d.fields(n, v, f, nil)
		}
	case reflect.Map:
		d.mapping(n, v, l, f)
	case reflect.Slice:
		d.list(n, v, l, f)
	case reflect.Interface:
		d.anything(n, v, l, f)
	default:
		d.scalar(n, v, l, f)
	}
}

// kind reports a value of another kind than those wanted.
func (d *decoder) kind(n *Node, f *Field, want ...Kind) bool {
	if slices.Contains(want, n.Kind) {
		return true
	}
	var words []string
	for _, k := range want {
		if k != Int || !slices.Contains(want, Float) {
			words = append(words, k.String())
		}
	}
	expected := strings.Join(words, " or ")
	fix := "Write " + expected + "."
	switch {
	case want[0] == Text && n.Kind < Text:
		fix = fmt.Sprintf("Put it in quotes: %q.", n.Text)
	case want[0] == List && n.Kind != Map:
		fix = "Write it as a list: [" + clip(n.Text) + "]."
	case want[0] == Bool && n.Kind == Text:
		fix = "Write true or false."
	case want[0] == Map:
		fix = "Write fields below it, or {field: value}."
	}
	d.report(n, f, "wrong-type", fmt.Sprintf("expected %s, found %s", expected, n.Kind), fix)
	return false
}

func clip(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}

func (d *decoder) duration(n *Node, v reflect.Value, f *Field) {
	if n.Kind == Int || n.Kind == Float {
		d.report(n, f, "wrong-type", "expected a duration, found a number", fmt.Sprintf("Add the unit: %ss.", n.Text))
		return
	}
	if d.kind(n, f, Text) && d.form(n, "duration", f) {
		dur, err := parseDuration(n.Text)
		if err == nil {
			v.SetInt(int64(dur))
		}
	}
}

// form holds a text to a named form.
func (d *decoder) form(n *Node, name string, f *Field) bool {
	form, ok := FormatOf(name)
	if !ok {
		return true
	}
	if err := form.check(n.Text); err != nil {
		d.report(n, f, "bad-value", err.Error(), form.fix(err))
		return false
	}
	return true
}

func (d *decoder) scalar(n *Node, v reflect.Value, l Limits, f *Field) {
	switch {
	case v.Kind() == reflect.String:
		if !d.kind(n, f, Text) {
			return
		}
		if m, ok := bound(l.Min); ok && float64(len(n.Text)) < m {
			d.report(n, f, "bad-value", "the text is empty", "Write something there or remove it.")
			return
		}
		if l.Format != "" && !d.form(n, l.Format, f) || !d.enum(n, l, f) {
			return
		}
		v.SetString(n.Text)
	case v.Kind() == reflect.Bool:
		if d.kind(n, f, Bool) && d.enum(n, l, f) {
			v.SetBool(n.Text == "true")
		}
	case v.CanInt() && l.Format == "size":
		if n.Kind == Int || n.Kind == Float {
			d.report(n, f, "wrong-type", "expected a size, found a number", "Add the unit: "+n.Text+"MiB.")
		} else if d.kind(n, f, Text) && d.form(n, "size", f) {
			size, err := parseSize(n.Text)
			if err == nil {
				v.SetInt(size)
			}
		}
	case v.CanInt() || v.CanUint():
		d.whole(n, v, l, f)
	case v.CanFloat():
		if d.kind(n, f, Int, Float) {
			x, err := parseFloat(decimal(n))
			if err != nil {
				d.report(n, f, "bad-value", fmt.Sprintf("%s is no finite number", clip(n.Text)), "Write a number.")
			} else if d.within(n, x, l, f) {
				v.SetFloat(x)
			}
		}
	default:
		panic(fmt.Sprintf("projectfile: the field %s has the type %s, which no file can fill", f, v.Type()))
	}
}

// decimal is a number's text in base ten.
func decimal(n *Node) string {
	if n.Kind == Int {
		if i, err := parseInt(n.Text); err == nil {
			return strconv.FormatInt(i, 10)
		}
	}
	return n.Text
}

func (d *decoder) whole(n *Node, v reflect.Value, l Limits, f *Field) {
	if n.Kind != Float && !d.kind(n, f, Int) {
		return
	}
	i, err := parseInt(n.Text)
	if n.Kind == Float {
		// 3.0 is a whole number, as it is for JSON Schema.
		x, ferr := parseFloat(n.Text)
		if ferr == nil && x != math.Trunc(x) {
			d.report(n, f, "wrong-type", fmt.Sprintf("expected a whole number, found %s", clip(n.Text)), "Round it.")
			return
		}
		i, err = int64(x), ferr
		if math.Abs(x) > 1<<53 {
			err = strconv.ErrRange
		}
	}
	if err != nil || v.CanInt() && v.OverflowInt(i) || v.CanUint() && (i < 0 || v.OverflowUint(uint64(i))) {
		d.report(n, f, "bad-value", fmt.Sprintf("%s is out of range", clip(n.Text)), "Write a smaller number.")
		return
	}
	if !d.within(n, float64(i), l, f) {
		return
	}
	if v.CanInt() {
		v.SetInt(i)
	} else {
		v.SetUint(uint64(i))
	}
}

func (d *decoder) within(n *Node, x float64, l Limits, f *Field) bool {
	if m, ok := bound(l.Min); ok && x < m {
		d.report(n, f, "bad-value", fmt.Sprintf("%s is too small", clip(n.Text)), "Write at least "+l.Min+".")
		return false
	}
	if m, ok := bound(l.Max); ok && x > m {
		d.report(n, f, "bad-value", fmt.Sprintf("%s is too large", clip(n.Text)), "Write at most "+l.Max+".")
		return false
	}
	return true
}

func (d *decoder) enum(n *Node, l Limits, f *Field) bool {
	if len(l.Enum) == 0 || slices.Contains(l.Enum, n.Text) {
		return true
	}
	if len(l.Enum) == 1 {
		d.report(n, f, "bad-value", fmt.Sprintf("%q is not supported here", clip(n.Text)), fmt.Sprintf("Write %s, or remove it.", l.Enum[0]))
		return false
	}
	fix := "Write one of " + strings.Join(l.Enum, ", ") + "."
	if near := Nearest(n.Text, l.Enum); near != "" {
		fix = "Did you mean " + near + "?"
	}
	d.report(n, f, "bad-value", fmt.Sprintf("%q is none of the values that are known here", clip(n.Text)), fix)
	return false
}

// anything decodes into an interface: what JSON can say.
func (d *decoder) anything(n *Node, v reflect.Value, l Limits, f *Field) {
	if l.Format == "label" && !d.kind(n, f, Text, Int, Float) {
		return
	}
	x, ok := n.Value()
	if !ok {
		d.report(n, f, "bad-value", "a number is not finite or too large", "Write numbers that JSON can hold.")
		return
	}
	v.Set(reflect.ValueOf(x))
}

func (d *decoder) list(n *Node, v reflect.Value, l Limits, f *Field) {
	if !d.kind(n, f, List) {
		return
	}
	if m, ok := bound(l.Min); ok && float64(len(n.Items)) < m {
		d.report(n, f, "bad-value", "the list is empty", "Put something into it or remove it.")
	}
	out := reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items))
	for i, item := range n.Items {
		d.value(item, out.Index(i), Limits{Format: l.Format, Enum: l.Enum}, f.Index(i))
	}
	v.Set(out)
}

func (d *decoder) mapping(n *Node, v reflect.Value, l Limits, f *Field) {
	if !d.kind(n, f, Map) {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(n.Items))
	elem := v.Type().Elem()
	for i, item := range n.Items {
		k := n.Keys[i]
		if form, ok := FormatOf(l.Keys); ok {
			if err := form.check(k.Name); err != nil {
				d.reportAt(k.Line, k.Column, f.Key(k.Name), "bad-value", err.Error(), form.fix(err))
				continue
			}
		}
		e := reflect.New(elem).Elem()
		if elem.Kind() == reflect.Interface && item.Kind == Null && l.Format == "" {
			out.SetMapIndex(reflect.ValueOf(k.Name).Convert(v.Type().Key()), reflect.Zero(elem))
			continue
		}
		d.value(item, e, Limits{Format: l.Format}, f.Key(k.Name))
		out.SetMapIndex(reflect.ValueOf(k.Name).Convert(v.Type().Key()), e)
	}
	v.Set(out)
}

// union decodes a value whose kind decides what it is.
func (d *decoder) union(n *Node, v reflect.Value, f *Field) {
	s := ShapeOf(v.Type())
	var want []Kind
	for _, sf := range s.Fields {
		k := kindOf(sf.Type)
		if k == n.Kind {
			d.value(n, v.Field(sf.Index), sf.Limits, f)
			return
		}
		want = append(want, k)
	}
	d.kind(n, f, want...)
}

func kindOf(t reflect.Type) Kind {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Struct, reflect.Map:
		return Map
	case reflect.Slice:
		return List
	case reflect.Bool:
		return Bool
	case reflect.Float64:
		return Float
	case reflect.Int, reflect.Int64:
		return Int
	default:
		return Text
	}
}

// fields decodes a map into a struct. A key that is no field is offered to
// other, where there is one; when that refuses, it is unknown.
func (d *decoder) fields(n *Node, v reflect.Value, f *Field, other func(i int) (taken bool, names []string)) {
	s := ShapeOf(v.Type())
	for i, k := range n.Keys {
		if sf, ok := s.field(k.Name); ok {
			d.value(n.Items[i], v.Field(sf.Index), sf.Limits, f.Key(k.Name))
			continue
		}
		var more []string
		if other != nil {
			taken := false
			if taken, more = other(i); taken {
				continue
			}
		}
		d.unknown(k, f, append(s.names(), more...))
	}
	for _, sf := range s.Fields {
		if sf.Required && n.Get(sf.Name) == nil {
			d.report(n, f.Key(sf.Name), "field-missing", fmt.Sprintf("the field %s is missing", sf.Name), fmt.Sprintf("Add `%s:`.", sf.Name))
		}
	}
	for _, r := range s.Rules {
		d.rule(n, f, r)
	}
}

func (d *decoder) unknown(k Key, f *Field, names []string) {
	d.reportAt(k.Line, k.Column, f.Key(k.Name), "unknown-field", fmt.Sprintf("the field %q is not known here", clip(k.Name)), didYouMean(k.Name, names))
}

func (d *decoder) rule(n *Node, f *Field, r Rule) {
	var there []string
	for _, name := range r.Names {
		if n.Get(name) != nil {
			there = append(there, name)
		}
	}
	switch {
	case len(there) == 0 && r.Kind != AtMostOne:
		d.report(n, f, "field-missing", "one of "+strings.Join(r.Names, ", ")+" is missing", fmt.Sprintf("Add `%s:`.", r.Names[0]))
	case len(there) > 1 && r.Kind != AtLeastOne:
		line, column := n.keyPosition(there[1])
		d.reportAt(line, column, f.Key(there[1]), "field-conflict", strings.Join(there, " and ")+" exclude each other", "Keep one of them.")
	}
}

// custom lets a type of a provider or agent read itself.
func (d *decoder) custom(n *Node, u unmarshaler, f *Field) {
	err := u.UnmarshalYAML(func(target any) error {
		inner := decoder{kinds: d.kinds}
		inner.value(n, reflect.ValueOf(target).Elem(), Limits{}, f)
		if len(inner.problems) == 0 {
			return nil
		}
		return &nested{inner.problems}
	})
	if err == nil {
		return
	}
	if nest := (*nested)(nil); errors.As(err, &nest) {
		d.problems = append(d.problems, nest.problems...)
		return
	}
	d.report(n, f, "bad-value", err.Error(), fault.FixOf(err))
}

// nested carries problems through a type's own reading.
type nested struct{ problems []Problem }

// Error is the first problem's text.
func (e *nested) Error() string { return e.problems[0].Message }

package projectfile

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"

	"assay/fault"
)

// Rule is a condition on which fields of a map are there together.
type Rule struct {
	Kind  RuleKind
	Names []string
}

// RuleKind is the kind of a Rule.
type RuleKind uint8

// The kinds.
const (
	ExactlyOne RuleKind = iota
	AtMostOne
	AtLeastOne
)

// Ruled is a shape with rules.
type Ruled interface{ Rules() []Rule }

// Shape is a struct's fields as the reader sees them.
type Shape struct {
	Fields []ShapeField
	// Either is true for a union: the kind of the value picks a field.
	Either bool
	Rules  []Rule
}

// ShapeField is one field of a Shape.
type ShapeField struct {
	Name     string
	Type     reflect.Type
	Index    int
	Required bool
	Limits
	Doc string
}

// Limits are the constraints of a value.
type Limits struct {
	Min, Max string
	Enum     []string
	Format   string
	Keys     string
}

var shapes sync.Map // reflect.Type → *Shape: read once per type

// ShapeOf returns the shape of a struct type.
func ShapeOf(t reflect.Type) *Shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*Shape)
	}
	s := &Shape{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || !f.IsExported() || name == "" && option == "" {
			continue
		}
		s.Either = s.Either || option == "either"
		sf := ShapeField{
			Name: name, Type: f.Type, Index: i, Required: f.Tag.Get("required") == "true", Doc: f.Tag.Get("doc"),
			Limits: Limits{Min: f.Tag.Get("min"), Max: f.Tag.Get("max"), Format: f.Tag.Get("format"), Keys: f.Tag.Get("keys")},
		}
		if e := f.Tag.Get("enum"); e != "" {
			sf.Enum = strings.Split(e, ",")
		}
		s.Fields = append(s.Fields, sf)
	}
	if r, ok := reflect.Zero(t).Interface().(Ruled); ok {
		s.Rules = r.Rules()
	}
	shapes.Store(t, s)
	return s
}

func (s *Shape) field(name string) (ShapeField, bool) {
	for _, f := range s.Fields {
		if f.Name == name {
			return f, true
		}
	}
	return ShapeField{}, false
}

func (s *Shape) names() []string {
	out := make([]string, len(s.Fields))
	for i, f := range s.Fields {
		out[i] = f.Name
	}
	return out
}

// Format is a named form of text.
type Format struct {
	Name string
	// Patterns must all match; they are what a schema can say of the form.
	Patterns []string
	// Refuse, when set, must not match.
	Refuse string
	// Says completes "… is".
	Says string
	// Fix is the advice for text of another form.
	Fix string

	shapes []*regexp.Regexp
	refuse *regexp.Regexp
	more   func(string) error // what patterns cannot say
}

var formats = makeFormats()

func makeFormats() map[string]*Format {
	all := []*Format{
		{Name: "nonblank", Patterns: []string{`\S`}, Says: "blank", Fix: "Write something there or remove it."},
		{Name: "env", Patterns: []string{`^[A-Za-z_][A-Za-z0-9_]*$`}, Says: "no name of a variable", Fix: "Use letters, digits and _.", Refuse: `^PATH$`},
		{Name: "abspath", Patterns: []string{`^/`}, Says: "no absolute path", Fix: "Start it with /."},
		{Name: "relpath", Patterns: []string{`^[^/]`}, Says: "no path below the workdir", Fix: "Write a relative path without `..`.", Refuse: `(^|/)\.\.(/|$)|//|\\|/$|^\.$`},
		{Name: "hostpath", Patterns: []string{`\S`}, Says: "no path", Fix: "Write a path relative to this file."},
		{Name: "hostname", Patterns: []string{`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*(:[0-9]{1,5})?$`}, Says: "no host name", Fix: "Write a name such as api.example.com or *.example.com."},
		{Name: "statekey", Patterns: []string{`^[a-z0-9][a-z0-9._/-]{0,127}$`}, Says: "no state key", Fix: "Use up to 128 of a-z, 0-9, '.', '_', '/' and '-', starting with a letter or digit."},
		{Name: "plugin", Patterns: []string{`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`}, Says: "no name of a plugin", Fix: "Use letters, digits, '.', '_' and '-', starting with a letter or digit."},
		{Name: "url", Patterns: []string{`^https?://[^/]`}, Says: "no web address", Fix: "Start it with https://.", more: func(s string) error { _, err := url.Parse(s); return err }},
		{Name: "regex", Patterns: []string{`^`}, Says: "no regular expression", Fix: "Use RE2 syntax, in single quotes.", more: compiles},
		{Name: "glob", Patterns: []string{`\S`}, Says: "no pattern", Fix: "Write a path, or a pattern with *, ** and ?.", more: pattern},
		{Name: "duration", Patterns: []string{durationPattern, `[1-9]`}, Says: "no duration", Fix: "Write a duration such as 90s, 20m or 1h30m.", more: func(s string) error { _, err := parseDuration(s); return err }},
		{Name: "size", Patterns: []string{sizePattern}, Says: "no size", Fix: "Write a size such as 512MiB or 2GiB.", more: func(s string) error { _, err := parseSize(s); return err }},
	}
	m := make(map[string]*Format, len(all))
	for _, f := range all {
		for _, p := range f.Patterns {
			f.shapes = append(f.shapes, regexp.MustCompile(p))
		}
		if f.Refuse != "" {
			f.refuse = regexp.MustCompile(f.Refuse)
		}
		m[f.Name] = f
	}
	return m
}

// FormatOf finds a form by name.
func FormatOf(name string) (*Format, bool) {
	f, ok := formats[name]
	return f, ok
}

// check returns what is wrong with s, or nil.
func (f *Format) check(s string) error {
	for _, re := range f.shapes {
		if !re.MatchString(s) {
			return fmt.Errorf("%q is %s", s, f.Says)
		}
	}
	if f.refuse != nil && f.refuse.MatchString(s) {
		if f.Name == "env" {
			return fault.Configf("bad-value", "Use `path:` of the sandbox to put folders before it.", "PATH is managed and cannot be set")
		}
		return fmt.Errorf("%q is %s", s, f.Says)
	}
	if f.more != nil {
		return f.more(s)
	}
	return nil
}

// fix is the advice for an error of check.
func (f *Format) fix(err error) string {
	if own := fault.FixOf(err); own != "" {
		return own
	}
	return f.Fix
}

func compiles(s string) error {
	if _, err := regexp.Compile(s); err != nil {
		return fmt.Errorf("%q is no regular expression: %s", s, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return nil
}

func pattern(s string) error {
	if !doublestar.ValidatePattern(strings.TrimPrefix(s, "!")) {
		return fmt.Errorf("%q is no pattern: a bracket or brace is not closed", s)
	}
	return nil
}

// bound reads a min or max tag.
func bound(s string) (float64, bool) {
	if s == "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

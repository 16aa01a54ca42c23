package projectfile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"assay/sandbox"
)

// layer decodes a sandbox layer, in which the name of a provider is a field.
func (d *decoder) layer(n *Node, v reflect.Value, f *Field) {
	if !d.kind(n, f, Map) {
		return
	}
	l := v.Addr().Interface().(*Layer)
	first := ""
	d.fields(n, v, f, func(i int) (bool, []string) {
		if d.kinds.Sandboxes == nil {
			return false, nil
		}
		k, item := n.Keys[i], n.Items[i]
		def, ok := d.kinds.Sandboxes.Lookup(k.Name)
		if !ok {
			return false, d.kinds.Sandboxes.Kinds()
		}
		if first != "" {
			d.reportAt(k.Line, k.Column, f.Key(k.Name), "sandbox-two-providers", fmt.Sprintf("the layer names two providers, %s and %s", first, k.Name), "Keep one of them.")
			return true, nil
		}
		first = k.Name
		spec := def.Spec()
		d.value(item, reflect.ValueOf(spec).Elem(), Limits{}, f.Key(k.Name))
		d.placeholders(item, f.Key(k.Name))
		l.Provider = &Choice{Name: k.Name, Options: spec}
		return true, nil
	})
	d.placeholders(n.Get("env"), f.Key("env"))
}

// placeholders refuses ${NAME} in values that nothing expands: an image called
// "app:${TAG}" can only be a mistake. Commands are left alone, a shell expands
// them.
func (d *decoder) placeholders(n *Node, f *Field) {
	if n == nil || n.Kind != Map {
		return
	}
	for i, item := range n.Items {
		if name, ok := placeholder(item.Text); ok && item.Kind == Text {
			d.report(item, f.Key(n.Keys[i].Name), "placeholder", fmt.Sprintf("${%s} is not expanded in this file", name), "Write the value, or list the variable in `secretEnv:`.")
		}
	}
}

func placeholder(s string) (string, bool) {
	_, rest, ok := strings.Cut(s, "${")
	name, _, closed := strings.Cut(rest, "}")
	if !ok || !closed {
		return "", false
	}
	form, _ := FormatOf("env")
	return name, form.shapes[0].MatchString(name)
}

// agent decodes a name, or a map of one name to its options.
func (d *decoder) agent(n *Node, v reflect.Value, f *Field) {
	if !d.kind(n, f, Text, Map) {
		return
	}
	if d.kinds.Agents == nil {
		return
	}
	a := v.Addr().Interface().(*Agent)
	key := Key{n.Text, n.Line, n.Column}
	var options *Node
	if n.Kind == Map {
		if len(n.Keys) != 1 {
			d.report(n, f, "field-conflict", fmt.Sprintf("expected one agent, found %d names", len(n.Keys)), "Write {name: {options}}.")
			return
		}
		key, options = n.Keys[0], n.Items[0]
		f = f.Key(key.Name)
	}
	def, ok := d.kinds.Agents.Lookup(key.Name)
	if !ok {
		d.reportAt(key.Line, key.Column, f, "agent-unknown", fmt.Sprintf("there is no agent %q", clip(key.Name)), didYouMean(key.Name, d.kinds.Agents.Names()))
		return
	}
	a.Name, a.Options = key.Name, def.Options()
	if options != nil {
		d.value(options, reflect.ValueOf(a.Options).Elem(), Limits{}, f)
		d.placeholders(options.Get("env"), f.Key("env"))
	}
}

// checkKind is a kind and every field that a check of it may have.
type checkKind struct {
	CheckKind
	allowed []string
}

var checkKinds = makeCheckKinds()

func makeCheckKinds() map[string]checkKind {
	m := map[string]checkKind{}
	for _, k := range CheckKinds() {
		m[k.Name] = checkKind{k, slices.Concat([]string{k.Name}, k.Extra, CommonCheckFields())}
	}
	return m
}

// check decodes one check: a kind, what belongs to the kind, and the common
// fields.
func (d *decoder) check(n *Node, v reflect.Value, f *Field) {
	if !d.kind(n, f, Map) {
		return
	}
	found := make([]checkKind, 0, 2)
	for _, k := range n.Keys {
		if kind, ok := checkKinds[k.Name]; ok {
			found = append(found, kind)
		}
	}
	if len(found) == 0 {
		d.noKind(n, f, CheckKinds())
		return
	}
	allowed := found[0].allowed
	if len(found) > 1 {
		line, column := n.keyPosition(found[1].Name)
		d.reportAt(line, column, f.Key(found[1].Name), "field-conflict", fmt.Sprintf("%s and %s are two checks", found[0].Name, found[1].Name), "Write each as an item of its own.")
		for _, k := range found[1:] {
			allowed = slices.Concat(allowed, k.allowed)
		}
	}
	s := ShapeOf(v.Type())
	for i, k := range n.Keys {
		sf, known := s.field(k.Name)
		switch {
		case slices.Contains(allowed, k.Name):
			d.value(n.Items[i], v.Field(sf.Index), sf.Limits, f.Key(k.Name))
		case k.Name == "gate" || k.Name == "atLeast":
			d.reportAt(k.Line, k.Column, f.Key(k.Name), "field-conflict", fmt.Sprintf("%s is for measurements, and a %s check matches or does not", k.Name, found[0].Name), "Remove it.")
		case known:
			d.reportAt(k.Line, k.Column, f.Key(k.Name), "field-conflict", fmt.Sprintf("%s does not belong to a %s check", k.Name, found[0].Name), "Allowed here: "+strings.Join(allowed, ", ")+".")
		default:
			d.unknown(k, f, allowed)
		}
	}
	c := v.Addr().Interface().(*Check)
	if c.Judge != nil && c.Stop && c.Gate == nil && c.AtLeast == nil {
		line, column := n.keyPosition("stop")
		d.reportAt(line, column, f.Key("stop"), "field-conflict", "a judge check without gate or atLeast cannot be missed", "Add `gate:` or `atLeast:`, or remove `stop:`.")
	}
	if c.Exists != nil && !*c.Exists && (c.Contains != "" || c.Excludes != "" || c.Matches != "" || c.Equals != nil || c.JSON != nil) {
		d.report(n, f, "field-conflict", "a file that must not exist has no content to look at", "Remove `exists: false` or the other fields.")
	}
}

// noKind reports a check without a kind, with the kind that was likely meant.
func (d *decoder) noKind(n *Node, f *Field, kinds []CheckKind) {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.Name
	}
	all := append(slices.Clone(names), ShapeOf(checkType).names()...)
	unknown := false
	for _, k := range n.Keys {
		if !slices.Contains(all, k.Name) {
			d.unknown(k, f, all)
			unknown = true
		}
	}
	if !unknown {
		d.report(n, f, "field-missing", "the check has no kind", "Add one of "+strings.Join(names, ", ")+".")
	}
}

// Sandbox returns the command as the engine runs it.
func (c Command) Sandbox() sandbox.Command {
	if c.Fields == nil {
		return sandbox.Command{Shell: c.Shell}
	}
	f := c.Fields
	return sandbox.Command{
		Shell: f.Run, Argv: f.Argv, Name: f.Name, Cwd: f.Cwd, Env: f.Env, User: f.User, Timeout: f.Timeout,
		Host: f.Host, ID: f.ID, Revision: f.Revision,
	}
}

package record

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A sketch is what the decoder makes of the same document, without the rest.
func TestSketchIsPartOfTheWhole(t *testing.T) {
	ms := int64(7)
	whole := Attempt{
		ID: "a", Locator: "@1", Run: "r", Experiment: "x", Eval: `e "1" \ {`, Ordinal: 2, Verdict: Failed, StartedAt: time.Unix(1700000000, 5).UTC(), DurationMS: &ms,
		Turns:    []Turn{{Prompt: `a "quote" \ and } ] , {`, Reply: "\\"}, {Prompt: strings.Repeat(`\"`, 50)}},
		Checks:   []Check{{Name: "n", Detail: `"}`}},
		Identity: &Identity{Domain: "d", Digest: "0", Inputs: map[string]string{"prompt": `say "hi" \`, "model": "m"}},
	}
	compact, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	indented, _ := json.MarshalIndent(whole, "", "  ")
	for name, doc := range map[string][]byte{"compact": compact, "indented": indented, "an escaped key": []byte(strings.Replace(string(compact), `"verdict"`, `"verdi\u0063t"`, 1))} {
		var got Attempt
		if err := sketch(doc, &got); err != nil {
			t.Fatal(name, err)
		}
		if got.Turns != nil && name != "an escaped key" {
			t.Errorf("%s: the turns were read", name)
		}
		got.Identity = got.Identity.Clone()
		got.Turns, got.Checks = whole.Turns, whole.Checks
		if !reflect.DeepEqual(got, whole) {
			t.Errorf("%s: %+v\nwant %+v", name, got, whole)
		}
	}
}

func TestSketchOfADamagedDocumentIsAnError(t *testing.T) {
	for _, doc := range []string{"", "{", "[]", `{"id":"a"`, `{"id":"a",}`, `{"id":"a"}x`, `{"id":}`, `{"id":"a","turns":[{]}`, `{"id":"a" "run":"r"}`, `{"ordinal":"x"}`, `{"identity":{"domain":1}}`, `{"id":"a\"}`} {
		if err := sketch([]byte(doc), &Attempt{}); err == nil {
			t.Errorf("%q is an attempt", doc)
		}
	}
	var a Attempt
	if err := sketch([]byte(`{"identity":null}`), &a); err != nil || a.Identity != nil {
		t.Errorf("an absent identity is %+v, %v", a.Identity, err)
	}
}

// Whatever texts an attempt has, a sketch of it agrees with the whole.
func FuzzSketch(f *testing.F) {
	f.Add(`a "quote" \\ and }`, "k", `{"x": [1]}`)
	f.Add("\\", "", "\u2028\x00")
	f.Fuzz(func(t *testing.T, reply, key, value string) {
		doc, err := json.Marshal(Attempt{
			ID: "a", Verdict: Passed, Turns: []Turn{{Prompt: key, Reply: reply}}, Skip: value,
			Identity: &Identity{Domain: reply, Digest: key, Inputs: map[string]string{key: value, reply: key}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var whole, part Attempt
		if err := json.Unmarshal(doc, &whole); err != nil {
			t.Fatal(err)
		}
		if err := sketch(doc, &part); err != nil {
			t.Fatalf("%q: %v", doc, err)
		}
		if part.Turns != nil || part.ID != "a" || part.Verdict != Passed || !reflect.DeepEqual(part.Identity.Clone(), whole.Identity) {
			t.Fatalf("%q: %+v", doc, part)
		}
	})
}

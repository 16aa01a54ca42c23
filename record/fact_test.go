package record

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"assay/fault"
)

func mustFact(tb testing.TB, v any) Fact {
	tb.Helper()
	f, err := NewFact(v, epoch)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestFactNames(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 62)+".", 4) + "a" // 253 bytes
	cases := map[string]bool{
		"com.example.cache-size": true, "a.b": true, "0.1": true, long: true, strings.Repeat("a", 63) + ".b": true,
		"dev.assay.x": true, "assays.x": true,
		"": false, "ab": false, "abc": false, "a..b": false, ".a.b": false, "a.b.": false, "A.b": false, "a_b.c": false,
		"-a.b": false, "a-.b": false, "a.b c": false, "ä.b": false, "a.b\n": false, "x" + long: false, strings.Repeat("a", 64) + ".b": false,
		"assay.x": false, "assay.a.b": false,
	}
	for name, ok := range cases {
		err := CheckFactName(name)
		if (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", name, err, ok)
		}
		if err != nil && (fault.CodeOf(err) != CodeFactName || fault.FixOf(err) == "") {
			t.Errorf("%q: code %q, fix %q", name, fault.CodeOf(err), fault.FixOf(err))
		}
	}
}

func TestFactLimitIsExact(t *testing.T) {
	empty, err := json.Marshal(mustFact(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	room := MaxFactBytes - len(empty)
	f, err := NewFact(strings.Repeat("x", room), epoch)
	if err != nil {
		t.Fatalf("a document of exactly %d bytes: %v", MaxFactBytes, err)
	}
	if doc, _ := json.Marshal(f); len(doc) != 65_536 {
		t.Fatalf("the document has %d bytes", len(doc))
	}
	_, err = NewFact(strings.Repeat("x", room+1), epoch)
	if fault.CodeOf(err) != CodeFactTooLarge || fault.ClassOf(err) != fault.Config {
		t.Errorf("one byte more: %v, code %q", err, fault.CodeOf(err))
	}
	// Bytes count, not characters.
	if _, err := NewFact(strings.Repeat("é", room/2+1), epoch); fault.CodeOf(err) != CodeFactTooLarge {
		t.Errorf("two-byte characters: %v", err)
	}
}

func TestFactValues(t *testing.T) {
	type loop struct{ Next *loop }
	cycle := &loop{}
	cycle.Next = cycle
	for name, v := range map[string]any{"NaN": math.NaN(), "Inf": []any{math.Inf(1)}, "cycle": cycle, "func": func() {}} {
		if _, err := NewFact(v, epoch); fault.CodeOf(err) != CodeFactInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewFact(1, time.Date(12_000, 1, 1, 0, 0, 0, 0, time.UTC)); fault.CodeOf(err) != CodeFactInvalid {
		t.Errorf("year 12000: %v", err)
	}
	for _, v := range []any{nil, 0, false, "", []int{1}, map[string]any{"a": 1.5}} {
		if f, err := NewFact(v, epoch); err != nil || len(f.Value) == 0 {
			t.Errorf("%v: %v", v, err)
		}
	}
}

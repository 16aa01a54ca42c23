package ref_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"assay/ref"
)

func TestIDsAreValidDistinctAndSortByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]bool{}
		var ids []string
		for range 200 {
			id := ref.New()
			if !ref.ValidID(id) || seen[id] {
				t.Fatalf("id %q is invalid or not new", id)
			}
			seen[id] = true
			ids = append(ids, id)
			time.Sleep(time.Millisecond)
		}
		if !slices.IsSorted(ids) {
			t.Error("ids do not sort by their time")
		}
	})
	for _, id := range []string{string(ref.NewRun()), string(ref.NewAttempt()), string(ref.NewInvocation())} {
		if !ref.ValidID(id) {
			t.Errorf("%q is invalid", id)
		}
	}
}

func TestValidID(t *testing.T) {
	good := strings.Repeat("0a", 13)
	for s, want := range map[string]bool{
		good: true, good[1:]: false, good + "0": false, "": false, good + "\n": false,
		strings.ToUpper(good): false, "i" + good[1:]: false, "l" + good[1:]: false, "o" + good[1:]: false, "u" + good[1:]: false,
		"../" + good[3:]: false, "\u0660" + good[2:]: false,
	} {
		if ref.ValidID(s) != want {
			t.Errorf("ValidID(%q) is %v", s, !want)
		}
	}
}

func TestLocatorIsStable(t *testing.T) {
	// Locators are in people's notes and in records: this value may not change.
	const id, want = "01hzzzzzzzzzzzzzzzzzzzzzzz", "@1mbrptm06rrnj"
	got := ref.LocatorOf(id)
	if got != ref.LocatorOf(id) || got == ref.LocatorOf(id+"0") {
		t.Errorf("%s is not a function of the id", got)
	}
	if p, err := ref.ParseLocator(string(got)); err != nil || p != got {
		t.Errorf("ParseLocator(%q): %q, %v", got, p, err)
	}
	if string(got) != want {
		t.Errorf("locator %s, want %s", got, want)
	}
}

func TestParseLocator(t *testing.T) {
	for s, ok := range map[string]bool{
		"@1h2k9d0q3v5zx": true, "@1000000000000": true,
		"": false, "@": false, "1h2k9d0q3v5zx": false, "@1h2k9d0q3v5z": false, "@1h2k9d0q3v5zxx": false,
		"@2h2k9d0q3v5zx": false, "@1H2K9D0Q3V5ZX": false, "@1h2k9d0q3v5zi": false, " @1h2k9d0q3v5zx": false, "@1h2k9d0q3v5zx\n": false,
	} {
		if _, err := ref.ParseLocator(s); (err == nil) != ok {
			t.Errorf("ParseLocator(%q): %v", s, err)
		}
	}
}

func FuzzParseLocator(f *testing.F) {
	f.Add("@1h2k9d0q3v5zx")
	f.Add("@1\x00")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ref.ParseLocator(s)
		if err != nil {
			return
		}
		if string(l) != s || len(s) != 14 || strings.ContainsAny(s, "/\\. \n") {
			t.Fatalf("%q is accepted as %q", s, l)
		}
	})
}

func TestCheckPathID(t *testing.T) {
	for s, ok := range map[string]bool{
		"a": true, "a/b/c": true, "A-b_c.d/e f": true, "日本/é": true, "...": true, ".a": true, strings.Repeat("x", 512): true, "a:b": true,
		"": false, "/a": false, "a/": false, "a//b": false, ".": false, "..": false, "a/..": false, "../a": false, "a/./b": false,
		`a\b`: false, "a\nb": false, "a\x00": false, "a\x7fb": false, "a\u0085b": false, "a\u202eb": false, "a\xff": false, strings.Repeat("x", 513): false,
	} {
		if err := ref.CheckPathID(s); (err == nil) != ok {
			t.Errorf("CheckPathID(%q): %v", s, err)
		}
	}
}

func FuzzCheckPathID(f *testing.F) {
	for _, s := range []string{"a/b", "../x", "a//b", "\xff", "a\\b", "\x1b[31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ref.CheckPathID(s) != nil {
			return
		}
		segments := strings.Split(s, "/")
		if !utf8.ValidString(s) || slices.Contains(segments, "") || slices.Contains(segments, ".") || slices.Contains(segments, "..") {
			t.Fatalf("%q is accepted", s)
		}
	})
}

func TestSlot(t *testing.T) {
	if got := (ref.Slot{Experiment: "x/y", Eval: "a/b", Ordinal: 2}).String(); got != "x/y a/b#2" {
		t.Errorf("%q", got)
	}
}

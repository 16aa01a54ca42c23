package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

const secret = "sk-proj-7Zq/9+x\"y\\Tail&=end"

func encodings(t *testing.T) map[string]string {
	t.Helper()
	j, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{"plain": secret, "json": string(j), "query": url.QueryEscape(secret), "path": url.PathEscape(secret)}
	for i, pad := range []string{"", "a", "ab", "abc:"} {
		m["base64 std "+string(rune('0'+i))] = base64.StdEncoding.EncodeToString([]byte(pad + secret + "zz"))
		m["base64 url "+string(rune('0'+i))] = base64.URLEncoding.EncodeToString([]byte(pad + secret))
	}
	return m
}

func TestEveryEncodingIsMasked(t *testing.T) {
	r := New(secret, "short")
	for name, enc := range encodings(t) {
		got := r.String("before " + enc + " after")
		if !strings.Contains(got, Mask) || strings.Contains(got, "sk-proj") {
			t.Errorf("%s: %q is not masked: %q", name, enc, got)
		}
	}
	if got := r.String("a short one"); got != "a short one" {
		t.Errorf("a value under %d bytes was masked: %q", MinLength, got)
	}
	if got := (*Redactor)(nil).String("x"); got != "x" {
		t.Errorf("nil redactor changed %q", got)
	}
}

func TestStreamMasksAcrossChunks(t *testing.T) {
	in := "x" + secret + "y" + secret[:5] + "z" + secret
	want := New(secret).String(in)
	for size := 1; size <= len(in); size++ {
		var out bytes.Buffer
		w := New(secret).Writer(&out)
		for i := 0; i < len(in); i += size {
			if _, err := w.Write([]byte(in[i:min(i+size, len(in))])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Fatalf("chunks of %d: got %q, want %q", size, out.String(), want)
		}
	}
}

func TestLongestValueFirst(t *testing.T) {
	r := New("password", "password-and-more")
	if got := r.String("password-and-more"); got != Mask {
		t.Errorf("got %q", got)
	}
	if got := New("password").With("other-secret").String("password other-secret"); got != Mask+" "+Mask {
		t.Errorf("With lost a value: %q", got)
	}
}

func TestValueMasksEveryStringAndSharesNothing(t *testing.T) {
	type inner struct{ S string }
	shared := &inner{secret}
	v := struct {
		A string
		P *inner
		M map[string]any
		R json.RawMessage
		L []string
		N *int
	}{
		A: "x " + secret, P: shared, M: map[string]any{secret: []any{secret, 1.5}},
		R: json.RawMessage(`{"k":["` + strings.ReplaceAll(strings.ReplaceAll(secret, `\`, `\\`), `"`, `\"`) + `",12345678901234567890]}`),
		L: []string{secret},
	}
	Value(New(secret), &v)
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "sk-proj") || strings.Count(string(b), "redacted") != 6 {
		t.Errorf("not masked everywhere: %s", b)
	}
	if !strings.Contains(string(v.R), "12345678901234567890") {
		t.Errorf("a number lost digits: %s", v.R)
	}
	if shared.S != secret {
		t.Error("a shared value was changed")
	}
}

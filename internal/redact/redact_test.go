package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	var unescaped bytes.Buffer
	enc := json.NewEncoder(&unescaped)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(secret); err != nil {
		t.Fatal(err)
	}
	m := map[string]string{"json without HTML escapes": unescaped.String(), "hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))), "plain": secret, "json": string(j), "query": url.QueryEscape(secret), "path": url.PathEscape(secret)}
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

// overlapping are values of which one begins, ends or continues another.
var overlapping = []string{"password", "password-and-more", "and-more-and-more", "aaaaaaaa", "moreaaaa"}

func TestOverlappingValuesLeaveNoRest(t *testing.T) {
	r := New(overlapping...)
	for in, want := range map[string]string{
		"x password-and-more-and-more y": "x " + Mask + " y",
		"password password":              Mask + " " + Mask,
		"passwordpassword":               Mask + Mask,
		"aaaaaaaaaaaaa!":                 Mask + "!",
		"password-and-mor":               Mask + "-and-mor",
		"and-more-and-moreaaaaaaaaaaa":   Mask,
		"passwor":                        "passwor",
		"":                               "",
	} {
		if got := r.String(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// stream masks in in chunks.
func stream(t *testing.T, r *Redactor, in string, size int) string {
	t.Helper()
	var out bytes.Buffer
	w := r.Writer(&out)
	for i := 0; i < len(in); i += size {
		if n, err := w.Write([]byte(in[i:min(i+size, len(in))])); err != nil || n != min(size, len(in)-i) {
			t.Fatal(n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStreamIsTheWholeWhateverTheChunks(t *testing.T) {
	r := New(overlapping...)
	for _, in := range []string{
		"password-and-more", "password-and-mor", "x password-and-more-and-more y password", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
		"and-more-and-moreaaaaaaaaaaaaaaaapassword-and-moreaaaa", strings.Repeat("password-and-more", 20),
	} {
		for size := 1; size <= len(in); size++ {
			if got, want := stream(t, r, in, size), r.String(in); got != want {
				t.Fatalf("%q in chunks of %d became %q, whole %q", in, size, got, want)
			}
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add("password-and-more aaaaaaaaa", 3)
	f.Add("and-more-and-moreaaaapassword", 1)
	f.Fuzz(func(t *testing.T, in string, size int) {
		r := New(overlapping...)
		got := stream(t, r, in, size&31+1)
		if got != r.String(in) {
			t.Fatalf("%q in chunks of %d became %q, whole %q", in, size&31+1, got, r.String(in))
		}
		for _, v := range overlapping {
			if strings.Contains(got, v) {
				t.Fatalf("%q is left in %q", v, got)
			}
		}
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestWriterReturnsTheTargetsError(t *testing.T) {
	broken := errors.New("disk full")
	w := New("password").Writer(failing{broken})
	if _, err := w.Write([]byte("plain text")); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	w = New("password").Writer(failing{broken})
	if _, err := w.Write([]byte("pass")); err != nil {
		t.Errorf("what is held back was written: %v", err)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestValuesOfSeveralLines(t *testing.T) {
	key := "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nAQEFAASCBKcwggSjAgEAAoI\n-----END KEY-----\n"
	r := New(key)
	for _, in := range []string{key, strings.TrimSpace(key), "log: MIIEvQIBADANBgkqhkiG9w0", strings.ReplaceAll(key, "\n", "\r\n")} {
		if got := r.String(in); strings.Contains(got, "MIIEvQIB") || strings.Contains(got, "AQEFAASC") {
			t.Errorf("%q became %q", in, got)
		}
	}
}

func TestBytesDoesNotChangeItsInput(t *testing.T) {
	in := []byte("a password here")
	New("password").Bytes(in)
	if string(in) != "a password here" {
		t.Errorf("the input became %q", in)
	}
	if got := (&Redactor{}).Bytes(in); string(got) != "a password here" {
		t.Errorf("the zero redactor made %q", got)
	}
}

func TestRawThatIsNoJSONStaysValid(t *testing.T) {
	v := struct{ R, E json.RawMessage }{R: json.RawMessage("password {"), E: nil}
	Value(New("password"), &v)
	if b, err := json.Marshal(v); err != nil || strings.Contains(string(b), "password") {
		t.Errorf("%s, %v", b, err)
	}
}

// Texts are cut in many places before they come to be masked. What is left of a
// secret beside the mark of a cut is found at every place of the cut.
func TestNoHalfOfASecretStaysBesideACut(t *testing.T) {
	const key = "sk-proj-0123456789abcdefghij"
	r := New(key)
	for _, mark := range []string{"…", " … ", "\n[4711 bytes dropped]\n", "…[12 bytes cut]…"} {
		for at := range len(key) + 1 {
			doc := []string{"with " + key[:at] + mark + key[at:] + " done"}
			Value(r, &doc)
			head, tail, ok := strings.Cut(doc[0], mark)
			if !ok {
				t.Fatalf("the mark is gone: %q", doc[0])
			}
			if at >= halfLength && !strings.HasSuffix(head, Mask) || strings.Contains(head, "sk-pro") {
				t.Errorf("cut at %d: %q", at, doc[0])
			}
			if len(key)-at >= halfLength && !strings.HasPrefix(tail, Mask) || strings.Contains(tail, "efghij") {
				t.Errorf("cut at %d: %q", at, doc[0])
			}
		}
	}
	for _, text := range []string{"sk-proj is a prefix", "plain … text", "10 bytes dropped", "abc…", "…"} {
		doc := []string{text}
		if Value(r, &doc); doc[0] != text {
			t.Errorf("%q became %q", text, doc[0])
		}
	}
}

package otlp

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"assay/internal/testreq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	trace = "5b8efff798038103d269b633813fc60c"
	span  = "eee19b7ec3c1b174"
	root  = "eee19b7ec3c1b173"
)

var example = `{"resourceSpans":[{"resource":{"attributes":[]},"scopeSpans":[{"scope":{"name":"x"},"spans":[{
"traceId":"` + trace + `","spanId":"` + span + `","parentSpanId":"` + root + `","name":"tool","kind":2,
"startTimeUnixNano":"1544712660000000000","endTimeUnixNano":1544712661500000000,"status":{"code":2},
"attributes":[{"key":"tool_name","value":{"stringValue":"Bash"}},{"key":"n","value":{"intValue":"7"}},{"key":"ok","value":{"boolValue":true}},{"key":"list","value":{"arrayValue":{}}}]}]}]}]}`

var want = Span{
	Trace: trace, ID: span, Parent: root, Name: "tool", Failed: true,
	Start: time.Unix(1544712660, 0).UTC(), End: time.Unix(1544712661, 5e8).UTC(),
	Attributes: map[string]string{"tool_name": "Bash", "n": "7", "ok": "true"},
}

// encoded is the example as protobuf.
func encoded(t testing.TB) []byte {
	t.Helper()
	msg := func(n protowire.Number, body []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), body)
	}
	fixed := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(nil, n, protowire.Fixed64Type), v)
	}
	num := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	bin := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	attr := func(k string, v []byte) []byte { return msg(9, append(msg(1, []byte(k)), msg(2, v)...)) }
	s := bytes.Join([][]byte{
		msg(1, bin(trace)), msg(2, bin(span)), msg(4, bin(root)), msg(5, []byte("tool")), num(6, 2),
		fixed(7, 1544712660000000000), fixed(8, 1544712661500000000),
		attr("tool_name", msg(1, []byte("Bash"))), attr("n", num(3, 7)), attr("ok", num(2, 1)), attr("list", msg(5, nil)),
		msg(15, num(3, 2)), num(99, 5),
	}, nil)
	return msg(1, append(msg(1, nil), msg(2, append(msg(1, []byte{}), msg(2, s)...))...))
}

func TestBothFormsSayTheSame(t *testing.T) {
	for name, read := range map[string]func() ([]Span, int, error){
		"json":     func() ([]Span, int, error) { return JSON([]byte(example), 10) },
		"protobuf": func() ([]Span, int, error) { return Proto(encoded(t), 10) },
	} {
		got, left, err := read()
		if err != nil || left != 0 || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%s: %+v, %d, %v", name, got, left, err)
		}
	}
}

func TestUnusableSpansAreLeftOut(t *testing.T) {
	for _, change := range []string{
		strings.Replace(example, trace, "00000000000000000000000000000000", 1),
		strings.Replace(example, span, "zz", 1),
		strings.Replace(example, "1544712661500000000", "1544712659000000000", 1),
		strings.Replace(example, `"1544712660000000000"`, `"-3"`, 1),
		strings.Replace(example, `"1544712660000000000"`, `"18446744073709551615"`, 1),
	} {
		if got, _, err := JSON([]byte(change), 10); err != nil || len(got) != 0 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if got, left, _ := JSON([]byte(example), 0); len(got) != 0 || left != 1 {
		t.Errorf("over the limit: %d spans, %d left", len(got), left)
	}
}

func TestAttributesAreBounded(t *testing.T) {
	var attrs []string
	for i := range 100 {
		attrs = append(attrs, fmt.Sprintf(`{"key":"k%d","value":{"stringValue":%q}}`, i, strings.Repeat("x", 10_000)))
	}
	got, _, err := JSON([]byte(strings.Replace(example, `{"key":"tool_name"`, strings.Join(attrs, ",")+`,{"key":"tool_name"`, 1)), 10)
	if err != nil || len(got[0].Attributes) != maxAttributes || len(got[0].Attributes["k0"]) != maxValue {
		t.Errorf("%d attributes, %v", len(got[0].Attributes), err)
	}
}

func post(t *testing.T, url, contentType, encoding string, body []byte) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func zipped(t *testing.T, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReceiver(t *testing.T) {
	var hub Hub
	defer hub.Close()
	r, err := hub.Open(t.Context(), "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	// Receivers share a port and nothing else.
	other, err := hub.Open(t.Context(), "127.0.0.1", 0)
	if err != nil || other.Endpoint("h") == r.Endpoint("h") || other.at != r.at {
		t.Fatal(other, err)
	}
	at := r.Endpoint("127.0.0.1")
	for _, tt := range []struct {
		name, path, typ, encoding string
		body                      []byte
		status                    int
		answer                    string
	}{
		{"json", "/v1/traces", "application/json; charset=utf-8", "", []byte(example), 200, "{}"},
		{"protobuf", "/v1/traces", "application/x-protobuf", "", encoded(t), 200, ""},
		{"compressed", "/v1/traces", "application/x-protobuf", "gzip", zipped(t, encoded(t)), 200, ""},
		{"logs are forgotten", "/v1/logs", "application/json", "", []byte(`nonsense`), 200, "{}"},
		{"another path", "/v1/secrets", "application/json", "", []byte(example), 404, "404 page not found\n"},
		{"another type", "/v1/traces", "text/plain", "", []byte(example), 415, errType.Error() + "\n"},
		{"malformed", "/v1/traces", "application/x-protobuf", "", []byte{0x0a, 0xff}, 400, "the request is malformed\n"},
		{"too long", "/v1/traces", "application/json", "", bytes.Repeat([]byte(" "), MaxBody+1), 413, errSize.Error() + "\n"},
		{"a bomb", "/v1/traces", "application/json", "gzip", zipped(t, make([]byte, 64<<20)), 413, errSize.Error() + "\n"},
	} {
		if status, answer := post(t, at+tt.path, tt.typ, tt.encoding, tt.body); status != tt.status || answer != tt.answer {
			t.Errorf("%s: %d %q", tt.name, status, answer)
		}
	}
	if status, _ := post(t, strings.TrimSuffix(at, r.word)+"other/v1/traces", "application/json", "", []byte(example)); status != 404 {
		t.Errorf("without the word of the receiver: %d", status)
	}
	spans, left, bad := r.Spans()
	if len(spans) != 3 || left != 0 || bad != 3 {
		t.Errorf("%d spans, %d left, %d bad", len(spans), left, bad)
	}
	if spans, _, bad := other.Spans(); len(spans)+bad != 0 {
		t.Errorf("the other receiver got %d spans, %d bad", len(spans), bad)
	}
	r.Close()
	if status, _ := post(t, at+"/v1/traces", "application/json", "", []byte(example)); status != 404 {
		t.Errorf("after its end: %d", status)
	}
}

// The relay runs where the agent runs, with what is there.
func TestRelay(t *testing.T) {
	for _, prog := range []string{"node", "python3"} {
		t.Run(prog, func(t *testing.T) {
			testreq.Need(t, prog)
			where, err := exec.LookPath(prog)
			if err != nil {
				t.Fatal(err)
			}
			relay := NewRelay()
			argv := []string{"-c", "command() { [ \"$2\" = " + prog + " ]; }; " + strings.ReplaceAll(RelayScript, "exec "+prog, "exec "+where), "sh", "word", RelayNode, RelayPython}
			cmd := exec.CommandContext(t.Context(), "sh", argv...)
			cmd.Stdout = relay
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			base := fmt.Sprintf("http://127.0.0.1:%d/word", <-relay.Port)
			post(t, base+"/v1/traces", "application/json", "gzip", zipped(t, []byte(example)))
			post(t, base+"/v1/traces", "application/x-protobuf", "", encoded(t))
			post(t, base+"/v1/metrics", "application/x-protobuf", "", []byte("x"))
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, errs.String())
			}
			spans, left, bad := relay.Spans()
			if len(spans) != 2 || !reflect.DeepEqual(spans[0], want) || !reflect.DeepEqual(spans[1], want) || left+bad != 0 {
				t.Errorf("%+v, %d left, %d bad", spans, left, bad)
			}
		})
	}
}

func TestRelayReadsHostileLines(t *testing.T) {
	r := NewRelay()
	line, err := json.Marshal(map[string]any{"type": "application/json", "body": []byte(example)})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{
		[]byte("{\"port\":80}\n{\"port\":81}\nnonsense\n{\"body\":7}\n"), bytes.Repeat([]byte("x"), maxRelayLine+10), []byte("\n"), line[:20], line[20:], []byte("\n"),
		[]byte(`{"type":"application/json","encoding":"br","body":""}` + "\n"),
	} {
		if n, err := r.Write(part); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	spans, _, bad := r.Spans()
	if len(spans) != 1 || bad != 4 || <-r.Port != 80 {
		t.Errorf("%d spans, %d bad", len(spans), bad)
	}
}

func TestLongest(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	in := []Span{{Name: "c", Start: at(5), End: at(6)}, {Name: "a", Start: at(0), End: at(10)}, {Name: "b", Start: at(1), End: at(4)}}
	got := Longest(in, 2)
	if len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" || in[0].Name != "c" {
		t.Errorf("%+v", got)
	}
}

func FuzzProto(f *testing.F) {
	f.Add(encoded(f))
	f.Add(encoded(f)[:40])
	f.Fuzz(func(t *testing.T, b []byte) { bounded(t, Proto, b) })
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[null,7]}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) { bounded(t, JSON, b) })
}

func bounded(t *testing.T, read func([]byte, int) ([]Span, int, error), b []byte) {
	spans, _, _ := read(b, 3)
	if len(spans) > 3 {
		t.Fatal("over the limit")
	}
	for _, s := range spans {
		if !s.usable() || len(s.Attributes) > maxAttributes || len(s.Name) > maxName || len(s.Trace) != 32 || len(s.ID) != 16 {
			t.Fatalf("%+v", s)
		}
	}
}

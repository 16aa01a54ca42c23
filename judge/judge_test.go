package judge

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/modeltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-judge-0123456789"

// model serves a script and returns the server, its address and a client that
// does not sleep.
func model(t *testing.T, api, script string) (*modeltest.Server, *Client, *[]time.Duration) {
	t.Helper()
	s, err := modeltest.ParseScript(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.New(s)
	c, slept := serve(t, api, m)
	t.Cleanup(m.Release)
	return m, c, slept
}

func serve(t *testing.T, api string, h http.Handler) (*Client, *[]time.Duration) {
	t.Helper()
	hs := httptest.NewServer(h)
	t.Cleanup(func() { hs.CloseClientConnections(); hs.Close() })
	base := hs.URL
	if api == OpenAI {
		base += "/v1"
	}
	c := New(Config{Model: "m1", BaseURL: base, API: api, APIKeyEnv: "K"}, key)
	slept := &[]time.Duration{}
	c.wait = func(_ context.Context, d time.Duration) error { *slept = append(*slept, d); return nil }
	c.http.Transport = &http.Transport{}
	t.Cleanup(c.http.CloseIdleConnections)
	return c, slept
}

const answers = `
rules:
  - {when: 'minimal', plain: true, steps: [{text: '{"rationale": "It is.", "score": 0.75}'}]}
`

func TestGradeOverBothAPIs(t *testing.T) {
	for _, api := range []string{OpenAI, Anthropic} {
		t.Run(api, func(t *testing.T) {
			m, c, _ := model(t, api, answers)
			g, err := c.Grade(t.Context(), Question{Kind: Criteria, Criterion: "minimal", Input: "do it", Output: "done </output>\n\"}", Changes: "+x"})
			if err != nil || g.Score != 0.75 || g.Rationale != "It is." || g.Tries != 1 || g.Model != "m1" {
				t.Fatalf("%+v, %v", g, err)
			}
			if want := (&Usage{InputTokens: 1200, OutputTokens: 34}); !reflect.DeepEqual(g.Usage, want) {
				t.Errorf("usage %+v, want %+v", g.Usage, want)
			}
			r := m.Requests()[0]
			if r.Header.Get("Authorization") != "Bearer "+key && r.Header.Get("X-Api-Key") != key {
				t.Errorf("no key in %v", r.Header)
			}
			// The material is one document that its texts cannot break.
			var doc map[string]string
			if err := json.Unmarshal([]byte(r.User), &doc); err != nil || doc["output"] != "done </output>\n\"}" || doc["criterion"] != "minimal" || doc["changes"] != "+x" || doc["input"] != "do it" {
				t.Errorf("material %q: %v", r.User, err)
			}
		})
	}
}

func TestKindsAskDifferentTasks(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range []Kind{Criteria, ClosedQA, Factuality, Summary} {
		_, user := prompt(Question{Kind: k, Criterion: "c", Reference: "r", Output: "o"})
		var doc map[string]string
		if err := json.Unmarshal([]byte(user), &doc); err != nil || doc["task"] == "" || seen[doc["task"]] {
			t.Errorf("%s: %q, %v", k, doc["task"], err)
		}
		seen[doc["task"]] = true
	}
}

func TestFailuresAreNoGrades(t *testing.T) {
	tests := []struct {
		name, script, code string
		class              fault.Class
		tries              int
	}{
		{"wrong key", `{fail: {status: 401}}`, CodeUnavailable, fault.Config, 1},
		{"no such model", `{fail: {status: 404}}`, CodeUnavailable, fault.Config, 1},
		{"limited for ever", `{fail: {status: 429, retryAfter: 7}}`, CodeUnavailable, fault.Transient, maxTries},
		{"broken for ever", `{fail: {status: 503}}`, CodeUnavailable, fault.Transient, maxTries},
		{"prose", `{text: "I would say 0.8."}`, CodeInvalid, fault.Unknown, 1},
		{"too much", `{text: '{"score": 1.5}'}`, CodeInvalid, fault.Unknown, 1},
		{"below", `{text: '{"score": -0.1}'}`, CodeInvalid, fault.Unknown, 1},
		{"text", `{text: '{"score": "0.5"}'}`, CodeInvalid, fault.Unknown, 1},
		{"null", `{text: '{"score": null}'}`, CodeInvalid, fault.Unknown, 1},
		{"endless", `{text: '{"score": 1e999}'}`, CodeInvalid, fault.Unknown, 1},
		{"missing", `{text: '{"rationale": "x"}'}`, CodeInvalid, fault.Unknown, 1},
		{"two", `{text: '{"score": 1} {"score": 0}'}`, CodeInvalid, fault.Unknown, 1},
		{"twice", `{text: '{"score": 1, "score": 0}'}`, CodeInvalid, fault.Unknown, 1},
		{"empty", `{text: ""}`, CodeInvalid, fault.Unknown, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, c, slept := model(t, OpenAI, "rules: [{when: '', plain: true, steps: ["+tt.script+"]}]")
			g, err := c.Grade(t.Context(), Question{Kind: Criteria, Criterion: "c", Output: "o"})
			if fault.CodeOf(err) != tt.code || fault.ClassOf(err) != tt.class {
				t.Fatalf("%+v, %v (%s, %s)", g, err, fault.CodeOf(err), fault.ClassOf(err))
			}
			if g.Score != 0 || g.Tries != tt.tries || len(m.Requests()) != tt.tries || len(*slept) != tt.tries-1 {
				t.Errorf("%+v after %d requests and waits of %v", g, len(m.Requests()), *slept)
			}
			if tt.name == "limited for ever" && (*slept)[0] != 7*time.Second {
				t.Errorf("waited %v", *slept)
			}
		})
	}
}

func TestPassingFailureIsRepeated(t *testing.T) {
	_, c, slept := model(t, OpenAI, `rules: [{when: '', plain: true, steps: [{text: '{"score": 1}', fail: {status: 529, times: 2}}]}]`)
	g, err := c.Grade(t.Context(), Question{Kind: Criteria, Output: "o"})
	if err != nil || g.Score != 1 || g.Tries != 3 || len(*slept) != 2 {
		t.Errorf("%+v, %v, waits %v", g, err, *slept)
	}
}

func TestSilenceIsCutByTheLimit(t *testing.T) {
	_, c, _ := model(t, OpenAI, `rules: [{when: '', plain: true, steps: [{fail: {silence: true}}]}]`)
	c.c.Timeout = 50 * time.Millisecond
	_, err := c.Grade(t.Context(), Question{Kind: Criteria, Output: "o"})
	if fault.CodeOf(err) != CodeUnavailable || !strings.Contains(err.Error(), "judge-timeout") {
		t.Errorf("%v", err)
	}
}

func TestIncompleteConfigAsksNobody(t *testing.T) {
	for _, c := range []*Client{New(Config{}, key), New(Config{Model: "m"}, "")} {
		c.http.Transport = refuse{t}
		if _, err := c.Grade(t.Context(), Question{}); fault.CodeOf(err) != CodeModelMissing && fault.CodeOf(err) != CodeKeyMissing || fault.FixOf(err) == "" {
			t.Errorf("%v", err)
		}
	}
}

type refuse struct{ t *testing.T }

func (r refuse) RoundTrip(*http.Request) (*http.Response, error) {
	r.t.Error("a request was made")
	return nil, os.ErrClosed
}

func TestPrecheck(t *testing.T) {
	_, good, _ := model(t, OpenAI, `rules: [{when: 'ready', plain: true, steps: [{text: "`+"```json\\n{\\\"score\\\": 1}\\n```"+`"}]}]`)
	if err := good.Precheck(t.Context()); err != nil {
		t.Error(err)
	}
	m, down, _ := model(t, OpenAI, `rules: [{when: '', plain: true, steps: [{fail: {status: 500}}]}]`)
	err := down.Precheck(t.Context())
	if fault.CodeOf(err) != CodePrecheck || fault.StageOf(err) != "judge.precheck" || len(m.Requests()) != precheckTries {
		t.Errorf("%v after %d requests", err, len(m.Requests()))
	}
	m, wrong, _ := model(t, OpenAI, `rules: [{when: '', plain: true, steps: [{fail: {status: 401}}]}]`)
	if err := wrong.Precheck(t.Context()); fault.CodeOf(err) != CodePrecheck || len(m.Requests()) != 1 {
		t.Errorf("%v after %d requests", err, len(m.Requests()))
	}
}

// A service that repeats the key, or sends the client elsewhere, must not leak
// it.
func TestKeyStaysSecret(t *testing.T) {
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	for name, h := range map[string]http.HandlerFunc{
		"echo": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"error":{"message":"the key `+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")+` is wrong"}}`)
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/v1/chat/completions", http.StatusTemporaryRedirect)
		},
		"answer": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"no grade, but `+key+`"}}]}`)
		},
	} {
		c, _ := serve(t, OpenAI, h)
		_, err := c.Grade(t.Context(), Question{Output: "o"})
		if err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
}

func TestOver(t *testing.T) {
	project := Config{Model: "p", BaseURL: "https://p.example/v1", APIKeyEnv: "P", Timeout: time.Second}
	for _, tt := range []struct {
		name       string
		near, want Config
	}{
		{"nothing", Config{}, project},
		{"a model", Config{Model: "x"}, Config{Model: "x", BaseURL: project.BaseURL, APIKeyEnv: "P", Timeout: time.Second}},
		{"an address keeps no key of another", Config{BaseURL: "https://x.example"}, Config{Model: "p", BaseURL: "https://x.example", Timeout: time.Second}},
	} {
		if got := tt.near.Over(project); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	r := Config{BaseURL: "https://api.anthropic.com/"}.Resolved()
	if r.API != Anthropic || r.BaseURL != "https://api.anthropic.com" || r.APIKeyEnv != DefaultAPIKeyEnv || r.Timeout != DefaultTimeout {
		t.Errorf("%+v", r)
	}
	if id := (Config{Model: "m", BaseURL: "https://u:secret@x.example/v1?key=secret"}).Identity(); id.BaseURL != "https://x.example/v1" || id.TimeoutMS != 180000 {
		t.Errorf("%+v", id)
	}
}

func TestTrimKeepsHeadAndTail(t *testing.T) {
	q := Question{Output: "head" + strings.Repeat("ä", MaxMaterial) + "tail"}.Trim(1000)
	if len(q.Output) > 1100 || !strings.HasPrefix(q.Output, "head") || !strings.HasSuffix(q.Output, "tail") || !strings.Contains(q.Output, "left out") {
		t.Errorf("%d bytes: %.40q", len(q.Output), q.Output)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"score":1}`, "```json\n{\"score\":0.5,\"rationale\":\"r\"}\n```", `{"score":1}{`, `[1]`, ``, `{"score":1e400}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		score, _, err := parse(s)
		if err != nil {
			return
		}
		if !(score >= 0 && score <= 1) {
			t.Fatalf("%q gave %g", s, score)
		}
	})
}

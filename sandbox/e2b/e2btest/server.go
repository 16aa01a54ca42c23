// Package e2btest is a double of E2B for tests: the control plane and envd of
// every sandbox, on one listener, with real processes of this machine behind
// them. E2B's own SDKs work against it when E2B_API_URL and E2B_SANDBOX_URL name
// its URL. Every failure of the service can be made to happen; see Inject.
//
// It needs Linux and root. What it does not do: terminals (PTY), directory
// watches, volumes, egress rules and images: every template starts from this
// machine's own programs.
package e2btest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"assay/internal/hostbox"
)

// Fault is something that goes wrong.
type Fault = hostbox.Fault

// Key is the API key that a Server takes.
const Key = "e2b_0123456789abcdef0123456789abcdef01234567"

// Server is the double. Its exported fields are set before the first request.
type Server struct {
	hostbox.Faults
	// URL is the control plane and every sandbox's envd.
	URL string
	// MaxSandboxes is the account's quota; 0 is none.
	MaxSandboxes int
	// MaxLife is the longest life that may be asked for; 0 is a day.
	MaxLife time.Duration
	// PageSize bounds a page of a list; 0 is 100.
	PageSize int
	// OnlyV1 serves the first version of create and connect only.
	OnlyV1 bool
	// Unknown adds fields that no client knows to every object.
	Unknown bool

	http *httptest.Server
	dir  string

	mu        sync.Mutex
	sandboxes map[string]*box
	templates map[string]*template // by id
	names     map[string]string    // alias[:tag] -> "id/build"
	builds    map[string]*build
	files     map[string]string // hash -> file
	next      int
	closed    bool
	wg        sync.WaitGroup
}

// New starts a double that ends with the test. Where no machine can be made the
// test is skipped.
func New(tb testing.TB) *Server {
	tb.Helper()
	if err := supported(); err != nil {
		tb.Skipf("SKIPPED, needs machines: %v", err)
	}
	s, err := Start()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

var supported = sync.OnceValue(hostbox.Supported)

// Start starts a double.
func Start() (*Server, error) {
	dir, err := os.MkdirTemp("", "e2btest-")
	if err != nil {
		return nil, err
	}
	s := &Server{
		dir: dir, sandboxes: map[string]*box{}, templates: map[string]*template{}, names: map[string]string{},
		builds: map[string]*build{}, files: map[string]string{},
	}
	for _, name := range []string{"base", "code-interpreter-v1", "claude", "codex"} {
		s.templates[name] = &template{id: name, alias: name, ready: true, user: "user", workdir: ""}
	}
	s.http = httptest.NewServer(s.Wrap(s.routes()))
	s.URL = s.http.URL
	return s, nil
}

// Close ends the double with every sandbox.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	all := make([]*box, 0, len(s.sandboxes))
	for _, b := range s.sandboxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	for _, b := range all {
		s.kill(b)
	}
	s.http.CloseClientConnections()
	s.http.Close()
	s.wg.Wait()
	_ = os.RemoveAll(s.dir) // only the test's own files
}

// Sandboxes lists the live sandboxes whose metadata has key=value.
func (s *Server) Sandboxes(key, value string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, b := range s.sandboxes {
		if key == "" || b.metadata[key] == value {
			ids = append(ids, id)
		}
	}
	return ids
}

// Metadata returns a sandbox's metadata, or nil.
func (s *Server) Metadata(id string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.sandboxes[id]; b != nil {
		return b.metadata
	}
	return nil
}

// Paused lists the sandboxes that are paused; Sandboxes lists them too.
func (s *Server) Paused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, b := range s.sandboxes {
		if b.paused {
			ids = append(ids, id)
		}
	}
	return ids
}

// Kill ends a sandbox behind everybody's back.
func (s *Server) Kill(id string) bool {
	b := s.find(id)
	if b != nil {
		s.kill(b)
	}
	return b != nil
}

// EndAt is when a sandbox's life ends.
func (s *Server) EndAt(id string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.sandboxes[id]; b != nil {
		return b.endAt
	}
	return time.Time{}
}

func (s *Server) find(id string) *box {
	id, _, _ = strings.Cut(id, "-")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sandboxes[id]
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)[:n]
}

// routes is the whole service.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	s.sandboxRoutes(mux)
	s.templateRoutes(mux)
	envd := s.envdRoutes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("E2b-Sandbox-Id")
		if id == "" {
			// The left-most label of a host name, as the edge reads it.
			if port, rest, ok := strings.Cut(strings.SplitN(r.Host, ".", 2)[0], "-"); ok && port == "49983" {
				id = rest
			}
		}
		if id != "" {
			s.edge(w, r, id, envd)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/_upload/") || r.URL.Path == "/health" && r.Method == http.MethodGet {
			mux.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("X-API-Key") != Key {
			fail(w, http.StatusUnauthorized, "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.", "")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// fail is a refusal of the control plane.
func fail(w http.ResponseWriter, status int, message, slug string) {
	doc := map[string]any{"code": status, "message": message}
	if slug != "" {
		doc["error_code"] = slug
	}
	reply(w, status, doc)
}

func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // only our own types
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// empty is a success without a body; a client that reads one must see its end.
func empty(w http.ResponseWriter, status int) {
	if status != http.StatusNoContent {
		w.Header().Set("Content-Length", "0")
	}
	w.WriteHeader(status)
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if r.ContentLength == 0 {
		return true
	}
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		fail(w, http.StatusBadRequest, "Error when parsing request: "+err.Error(), "")
		return false
	}
	return true
}

// box is one sandbox.
type box struct {
	id       string
	token    string
	template *template
	metadata map[string]string
	env      map[string]string
	started  time.Time
	machine  *hostbox.Box
	context  context.Context
	gone     context.CancelFunc

	endAt     time.Time // guarded by Server.mu, as are the next
	timer     *time.Timer
	paused    bool
	autoPause bool

	procs processes
}

// boot makes a sandbox's machine from a template.
func (s *Server) boot(ctx context.Context, t *template, b *box) error {
	m, err := hostbox.Start(ctx, hostbox.Options{
		Users: []hostbox.User{{Name: "user", UID: 1000, Home: "/home/user"}}, From: t.saved, Hostname: "e2b.local",
	})
	if err != nil {
		return err
	}
	b.machine = m
	b.context, b.gone = context.WithCancel(context.Background())
	b.procs.all = map[int]*process{}
	return nil
}

func (s *Server) kill(b *box) {
	s.mu.Lock()
	if s.sandboxes[b.id] == b {
		delete(s.sandboxes, b.id)
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	s.mu.Unlock()
	b.gone()
	if err := b.machine.Stop(); err != nil && !errors.Is(err, os.ErrNotExist) {
		panic(fmt.Sprintf("e2btest: a machine does not end: %v", err))
	}
}

// setLife makes a sandbox end at a time. The caller holds mu.
func (s *Server) setLife(b *box, at time.Time) {
	b.endAt = at
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(time.Until(at), func() {
		s.mu.Lock()
		due := !s.closed && s.sandboxes[b.id] == b && !b.paused && !time.Now().Before(b.endAt)
		pause := b.autoPause
		s.mu.Unlock()
		switch {
		case due && pause:
			_ = s.pause(b) // only one that runs is due
		case due:
			s.kill(b)
		}
	})
}

func (s *Server) saveDir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return filepath.Join(s.dir, fmt.Sprintf("saved-%d", s.next))
}

// AddTemplate makes a start point of a name, with an optional ":tag".
func (s *Server) AddTemplate(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.templates[name] = &template{id: name, alias: name, ready: true, user: "user"}
}

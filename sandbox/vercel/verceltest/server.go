// Package verceltest is a double of Vercel Sandbox for tests, with real processes
// of this machine behind every session. Vercel's own SDK works against it when
// its fetch is pointed at URL. Every failure of the service can be made to
// happen; see Inject.
//
// It needs Linux and root. What it does not do: drives, forks, interactive
// sessions, git and tarball sources, network policies (they are kept and told)
// and images: every sandbox starts from this machine's own programs.
package verceltest

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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"assay/internal/hostbox"
)

// Fault is something that goes wrong.
type Fault = hostbox.Fault

// What a Server takes.
const (
	Token   = "vercel-token-0123456789"
	Team    = "team_double"
	Project = "prj_double"
)

// Workdir is where commands start.
const Workdir = "/vercel/sandbox"

// Server is the double. Its exported fields are set before the first request.
type Server struct {
	hostbox.Faults
	// URL is the service's base.
	URL string
	// StreamLimit cuts every stream after so long, as the service does after
	// five minutes; 0 does not.
	StreamLimit time.Duration
	// MaxLife is the longest life of a session; 0 is five hours.
	MaxLife time.Duration
	// MaxSandboxes is the account's quota; 0 is none.
	MaxSandboxes int
	// PageSize bounds a page of a list; 0 is 50.
	PageSize int
	// Unknown adds fields that no client knows to every object.
	Unknown bool

	http *httptest.Server
	dir  string

	mu        sync.Mutex
	boxes     map[string]*box // by name
	sessions  map[string]*session
	snapshots map[string]*snapshot
	next      int
	closed    bool
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
	dir, err := os.MkdirTemp("", "verceltest-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, boxes: map[string]*box{}, sessions: map[string]*session{}, snapshots: map[string]*snapshot{}}
	s.http = httptest.NewServer(s.Wrap(s.routes()))
	s.URL = s.http.URL
	return s, nil
}

// Close ends the double with every sandbox.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	var all []*session
	for _, one := range s.sessions {
		all = append(all, one)
	}
	s.mu.Unlock()
	for _, one := range all {
		s.halt(one, "stopped")
	}
	s.http.CloseClientConnections()
	s.http.Close()
	_ = os.RemoveAll(s.dir) // only the test's own files
}

// Sandboxes lists the names of sandboxes with a tag, or all.
func (s *Server) Sandboxes(key, value string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, b := range s.boxes {
		if key == "" || b.tags[key] == value {
			names = append(names, name)
		}
	}
	return names
}

// Snapshots lists the ids of the snapshots that are kept.
func (s *Server) Snapshots() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, sn := range s.snapshots {
		if sn.status == "created" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Tags returns a sandbox's tags, or nil.
func (s *Server) Tags(name string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[name]; b != nil {
		return b.tags
	}
	return nil
}

// Kill ends a sandbox's session behind everybody's back.
func (s *Server) Kill(name string) bool {
	s.mu.Lock()
	b := s.boxes[name]
	s.mu.Unlock()
	if b == nil {
		return false
	}
	s.halt(b.session, "stopped")
	return true
}

// box is a named sandbox.
type box struct {
	name       string
	persistent bool
	runtime    string
	tags       map[string]string
	env        map[string]string
	policy     map[string]any
	vcpus      int
	timeout    int64
	ports      []int
	created    int64
	session    *session
	current    string // snapshot
}

// session is one machine.
type session struct {
	id      string
	box     *box
	status  string // guarded by Server.mu, as is timeout
	timeout int64
	created int64
	stopped int64
	source  string
	machine *hostbox.Box
	ctx     context.Context
	cancel  context.CancelFunc
	timer   *time.Timer

	mu       sync.Mutex
	commands map[string]*command
}

type snapshot struct {
	id, session, status string
	dir                 string
	created, expires    int64
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)[:n]
}

func now() int64 { return time.Now().UnixMilli() }

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/sandboxes", s.create)
	mux.HandleFunc("POST /v3/sandboxes", s.create)
	mux.HandleFunc("GET /v2/sandboxes", s.list)
	mux.HandleFunc("GET /v2/sandboxes/{name}", s.get)
	mux.HandleFunc("PATCH /v2/sandboxes/{name}", s.patch)
	mux.HandleFunc("DELETE /v2/sandboxes/{name}", s.remove)
	mux.HandleFunc("GET /v2/sandboxes/sessions", s.listSessions)
	mux.HandleFunc("GET /v2/sandboxes/snapshots", s.listSnapshots)
	mux.HandleFunc("GET /v2/sandboxes/snapshots/{id}", s.getSnapshot)
	mux.HandleFunc("DELETE /v2/sandboxes/snapshots/{id}", s.deleteSnapshot)
	mux.HandleFunc("GET /v2/sandboxes/sessions/{sid}", s.in(s.getSession, true))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/stop", s.in(s.stop, true))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/extend-timeout", s.in(s.extend, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/network-policy", s.in(s.setPolicy, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/snapshot", s.in(s.takeSnapshot, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/cmd", s.in(s.run, false))
	mux.HandleFunc("GET /v2/sandboxes/sessions/{sid}/cmd/{cid}", s.in(s.getCommand, false))
	mux.HandleFunc("GET /v2/sandboxes/sessions/{sid}/cmd/{cid}/logs", s.in(s.logs, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/cmd/{cid}/kill", s.in(s.kill, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/fs/write", s.in(s.write, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/fs/read", s.in(s.read, false))
	mux.HandleFunc("POST /v2/sandboxes/sessions/{sid}/fs/mkdir", s.in(s.mkdir, false))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+Token:
			fail(w, http.StatusForbidden, "forbidden", "Not authorized")
			return
		case r.URL.Query().Get("teamId") == "":
			fail(w, http.StatusBadRequest, "bad_request", "teamId is required")
			return
		case r.URL.Query().Get("teamId") != Team:
			fail(w, http.StatusForbidden, "forbidden", "Not authorized")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func fail(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, map[string]any{"error": map[string]string{"code": code, "message": message}})
}

func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // only our own types
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if r.ContentLength == 0 {
		return true
	}
	if err := json.NewDecoder(r.Body).Decode(into); err != nil && r.ContentLength > 0 {
		fail(w, http.StatusBadRequest, "bad_request", err.Error())
		return false
	}
	return true
}

// in finds the session of a request; one that has stopped is 410 unless the
// route may look at it.
func (s *Server) in(do func(http.ResponseWriter, *http.Request, *session), stopped bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		se := s.sessions[r.PathValue("sid")]
		status := ""
		if se != nil {
			status = se.status
		}
		s.mu.Unlock()
		switch {
		case se == nil:
			fail(w, http.StatusNotFound, "not_found", "Session not found")
		case (status == "stopping" || status == "snapshotting") && !stopped:
			fail(w, http.StatusUnprocessableEntity, "sandbox_"+status, "Sandbox is "+status)
		case status != "running" && !stopped:
			fail(w, http.StatusGone, "sandbox_stopped", "Sandbox has stopped")
		default:
			do(w, r, se)
		}
	}
}

// boot makes a session of a sandbox.
func (s *Server) boot(b *box, source string) (*session, error) {
	from := ""
	if source != "" {
		s.mu.Lock()
		sn := s.snapshots[source]
		if sn == nil || sn.status != "created" || sn.expires != 0 && sn.expires < now() {
			s.mu.Unlock()
			return nil, errNoSnapshot
		}
		from = sn.dir
		s.mu.Unlock()
	}
	m, err := hostbox.Start(context.Background(), hostbox.Options{
		Users: []hostbox.User{{Name: "vercel-sandbox", UID: 1000, Home: "/home/vercel-sandbox"}}, Dirs: []string{"/vercel", Workdir}, From: from, Hostname: "vm",
	})
	if err != nil {
		return nil, err
	}
	se := &session{id: "sess_" + random(16), box: b, status: "running", timeout: b.timeout, created: now(), source: source, machine: m, commands: map[string]*command{}}
	se.ctx, se.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.sessions[se.id] = se
	s.arm(se)
	s.mu.Unlock()
	return se, nil
}

var errNoSnapshot = errors.New("the snapshot does not exist")

// arm makes a session end with its life. The caller holds mu.
func (s *Server) arm(se *session) {
	if se.timer != nil {
		se.timer.Stop()
	}
	ends := time.UnixMilli(se.created + se.timeout)
	se.timer = time.AfterFunc(time.Until(ends), func() {
		s.mu.Lock()
		due := !s.closed && !time.Now().Before(time.UnixMilli(se.created+se.timeout))
		s.mu.Unlock()
		if due {
			s.halt(se, "stopped")
		}
	})
}

// halt ends a session. A persistent sandbox keeps its files.
func (s *Server) halt(se *session, status string) {
	s.mu.Lock()
	if se.status != "running" && se.status != "snapshotting" {
		s.mu.Unlock()
		return
	}
	keep := se.box.persistent && se.status == "running" && !s.closed
	se.status = "stopping"
	se.timer.Stop()
	s.mu.Unlock()
	if keep {
		if sn, err := s.save(se, 0); err == nil {
			s.mu.Lock()
			se.box.current = sn.id
			s.mu.Unlock()
		}
	}
	se.cancel()
	_ = se.machine.Stop() // nothing of it is left in any case
	s.mu.Lock()
	se.status, se.stopped = status, now()
	s.mu.Unlock()
}

// save keeps a session's files.
func (s *Server) save(se *session, expiration int64) (*snapshot, error) {
	s.mu.Lock()
	s.next++
	sn := &snapshot{id: "snap_" + random(16), session: se.id, status: "created", dir: filepath.Join(s.dir, fmt.Sprint("saved-", s.next)), created: now()}
	s.mu.Unlock()
	if expiration > 0 {
		sn.expires = sn.created + expiration
	}
	if err := se.machine.Save(context.Background(), sn.dir); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.snapshots[sn.id] = sn
	s.mu.Unlock()
	return sn, nil
}

// The views are what the service's own SDK requires.

func (s *Server) view(b *box) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := map[string]any{
		"name": b.name, "persistent": b.persistent, "createdAt": b.created, "updatedAt": b.created,
		"currentSessionId": b.session.id, "status": b.session.status, "region": "iad1", "vcpus": b.vcpus, "memory": 2048 * b.vcpus,
		"timeout": b.timeout, "cwd": Workdir, "networkPolicy": told(b.policy),
	}
	if b.tags != nil {
		v["tags"] = b.tags
	}
	if b.runtime != "" {
		v["runtime"] = b.runtime
	}
	if b.current != "" {
		v["currentSnapshotId"] = b.current
	}
	if s.Unknown {
		v["newField"] = []any{1, "a"}
	}
	return v
}

func (s *Server) sessionView(se *session) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := map[string]any{
		"id": se.id, "memory": 2048 * se.box.vcpus, "vcpus": se.box.vcpus, "region": "iad1", "timeout": se.timeout, "status": se.status,
		"requestedAt": se.created, "startedAt": se.created, "createdAt": se.created, "updatedAt": se.created, "cwd": Workdir,
		"networkPolicy": told(se.box.policy),
	}
	if se.source != "" {
		v["sourceSnapshotId"] = se.source
	}
	if se.stopped != 0 {
		v["stoppedAt"] = se.stopped
	}
	return v
}

func (s *Server) snapshotView(sn *snapshot) map[string]any {
	v := map[string]any{
		"id": sn.id, "sourceSessionId": sn.session, "region": "iad1", "regions": []string{"iad1"}, "status": sn.status,
		"sizeBytes": 1, "createdAt": sn.created, "updatedAt": sn.created,
	}
	if sn.expires != 0 {
		v["expiresAt"] = sn.expires
	}
	return v
}

// told is a policy as it is told: not as it was asked for.
func told(p map[string]any) map[string]any {
	switch {
	case p == nil:
		return map[string]any{"mode": "allow-all"}
	case p["mode"] != nil:
		return map[string]any{"mode": p["mode"]}
	}
	domains := []string{}
	switch a := p["allow"].(type) {
	case []any:
		for _, d := range a {
			if name, ok := d.(string); ok {
				domains = append(domains, name)
			}
		}
	case map[string]any:
		for d := range a {
			domains = append(domains, d)
		}
	}
	return map[string]any{"mode": "custom", "allowedDomains": domains}
}

func (s *Server) routesOf(b *box) []any {
	out := []any{}
	for _, p := range b.ports {
		sub := "sb-" + strings.ToLower(random(12))
		out = append(out, map[string]any{"url": "https://" + sub + ".vercel.run", "subdomain": sub, "port": p})
	}
	return out
}

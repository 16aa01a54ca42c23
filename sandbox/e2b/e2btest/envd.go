package e2btest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"assay/internal/hostbox"
)

// envdVersion is the version that this double behaves like.
const envdVersion = "0.6.13"

// edge is the proxy before every sandbox.
func (s *Server) edge(w http.ResponseWriter, r *http.Request, id string, envd http.Handler) {
	b := s.find(id)
	s.mu.Lock()
	away := b == nil || b.paused
	s.mu.Unlock()
	if away {
		reply(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox was not found", "code": 502})
		return
	}
	if p := r.Header.Get("E2b-Sandbox-Port"); p != "" && p != "49983" {
		port, _ := strconv.Atoi(p)
		reply(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox is running but port is not open", "port": port, "code": 502})
		return
	}
	if r.URL.Path == "/init" {
		reply(w, http.StatusNotFound, map[string]any{"code": 404, "message": "not found"})
		return
	}
	open := r.URL.Path == "/health" || r.URL.Path == "/files"
	if tok := r.Header.Get("X-Access-Token"); b.token != "" && tok != b.token && (!open || tok != "") {
		unauthorized(w)
		return
	}
	envd.ServeHTTP(w, r.WithContext(withBox(r.Context(), b)))
}

func unauthorized(w http.ResponseWriter) {
	reply(w, http.StatusUnauthorized, map[string]any{"code": 401, "message": "unauthorized access, please provide a valid access token or method signing if supported"})
}

func (s *Server) envdRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { empty(w, http.StatusNoContent) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"ts": time.Now().Unix(), "cpu_count": 2, "cpu_used_pct": 1, "mem_total_mib": 512, "mem_used_mib": 100})
	})
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, boxOf(r).environment()) })
	mux.HandleFunc("GET /files", s.download)
	mux.HandleFunc("POST /files", s.upload)
	for name, do := range map[string]func(*call){
		"process.Process/List": (*call).listProcesses, "process.Process/SendInput": (*call).sendInput,
		"process.Process/CloseStdin": (*call).closeStdin, "process.Process/SendSignal": (*call).sendSignal,
		"process.Process/Update":     func(c *call) { c.refuse(errUnimplemented) },
		"filesystem.Filesystem/Stat": (*call).stat, "filesystem.Filesystem/ListDir": (*call).listDir,
		"filesystem.Filesystem/MakeDir": (*call).makeDir, "filesystem.Filesystem/Move": (*call).move,
		"filesystem.Filesystem/Remove":        (*call).remove,
		"filesystem.Filesystem/CreateWatcher": func(c *call) { c.refuse(errUnimplemented) },
	} {
		mux.HandleFunc("/"+name, unary(do))
	}
	for name, do := range map[string]func(*stream){
		"process.Process/Start": (*stream).start, "process.Process/Connect": (*stream).connect,
		"process.Process/StreamInput":    (*stream).input,
		"filesystem.Filesystem/WatchDir": func(s *stream) { s.end(errUnimplemented) },
	} {
		mux.HandleFunc("/"+name, streaming(do))
	}
	return mux
}

// rpcError is an error of the RPC protocol.
type rpcError struct{ code, message string }

func (e *rpcError) Error() string { return e.code + ": " + e.message }

var errUnimplemented = &rpcError{"unimplemented", "the double does not do this"}

func rpcf(code, format string, args ...any) *rpcError {
	return &rpcError{code, fmt.Sprintf(format, args...)}
}

// statuses are the HTTP statuses of codes.
var statuses = map[string]int{
	"invalid_argument": 400, "failed_precondition": 400, "out_of_range": 400, "unauthenticated": 401, "permission_denied": 403,
	"not_found": 404, "already_exists": 409, "aborted": 409, "resource_exhausted": 429, "canceled": 499, "internal": 500,
	"unknown": 500, "unimplemented": 501, "unavailable": 503, "deadline_exceeded": 504,
}

// call is a unary RPC.
type call struct {
	w    http.ResponseWriter
	r    *http.Request
	b    *box
	body []byte
	acct hostbox.Account
	root *os.Root
}

func unary(do func(*call)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{w: w, r: r, b: boxOf(r)}
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if t := r.Header.Get("Content-Type"); t != "application/json" {
			w.Header().Set("Accept-Post", "application/json")
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		if v := r.Header.Get("Connect-Protocol-Version"); v != "" && v != "1" {
			c.refuse(rpcf("invalid_argument", "connect protocol version %q is not supported", v))
			return
		}
		var err error
		if c.body, err = io.ReadAll(r.Body); err != nil {
			c.refuse(rpcf("invalid_argument", "%v", err))
			return
		}
		if c.root, err = c.b.machine.Files(); err != nil {
			panic(http.ErrAbortHandler)
		}
		defer func() { _ = c.root.Close() }()
		if c.acct, err = c.b.account(c.root, r); err != nil {
			c.refuse(err)
			return
		}
		do(c)
	}
}

func (c *call) decode(into any) bool {
	if err := json.Unmarshal(c.body, into); err != nil {
		c.refuse(rpcf("invalid_argument", "unmarshal message: %v", err))
		return false
	}
	return true
}

func (c *call) refuse(err error) {
	e := asRPC(err)
	reply(c.w, statuses[e.code], map[string]string{"code": e.code, "message": e.message})
}

func asRPC(err error) *rpcError {
	var e *rpcError
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, os.ErrNotExist) {
		return rpcf("not_found", "file not found: %v", err)
	}
	return rpcf("internal", "%v", err)
}

func (c *call) ok(v any) { reply(c.w, http.StatusOK, v) }

// account is who a call runs as.
func (b *box) account(root *os.Root, r *http.Request) (hostbox.Account, error) {
	name := b.template.user
	if h := r.Header.Get("Authorization"); strings.HasPrefix(h, "Basic ") {
		raw, err := base64.StdEncoding.DecodeString(h[len("Basic "):])
		if err != nil {
			return hostbox.Account{}, rpcf("unauthenticated", "%v", err)
		}
		name, _, _ = strings.Cut(string(raw), ":")
	}
	a, err := hostbox.Lookup(root, name)
	if err != nil {
		return a, rpcf("unauthenticated", "invalid username: '%s'", name)
	}
	return a, nil
}

// resolve is a path as envd reads it.
func (b *box) resolve(p string, a hostbox.Account) (string, error) {
	switch {
	case p == "":
		if b.template.workdir != "" {
			return b.template.workdir, nil
		}
		return a.Home, nil
	case p == "~":
		return a.Home, nil
	case strings.HasPrefix(p, "~/"):
		return path.Join(a.Home, p[2:]), nil
	case strings.HasPrefix(p, "~"):
		return "", rpcf("invalid_argument", "cannot expand user-specific home dir")
	case path.IsAbs(p):
		return path.Clean(p), nil
	default:
		return path.Join(a.Home, p), nil
	}
}

// environment is what commands start with.
func (b *box) environment() map[string]string {
	env := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": b.id, "E2B_TEMPLATE_ID": b.template.id}
	for _, m := range []map[string]string{b.template.env, b.env} {
		for k, v := range m {
			env[k] = v
		}
	}
	return env
}

// stream is a streaming RPC.
type stream struct {
	w    http.ResponseWriter
	r    *http.Request
	b    *box
	acct hostbox.Account
	done bool
}

func streaming(do func(*stream)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if r.Header.Get("Content-Type") != "application/connect+json" {
			w.Header().Set("Accept-Post", "application/connect+json, application/connect+proto")
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		s := &stream{w: w, r: r, b: boxOf(r)}
		w.Header().Set("Content-Type", "application/connect+json")
		root, err := s.b.machine.Files()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		s.acct, err = s.b.account(root, r)
		_ = root.Close()
		if err != nil {
			s.end(err)
			return
		}
		do(s)
	}
}

// receive reads one message; io.EOF is the end of the client's messages.
func (s *stream) receive(into any) error {
	var head [5]byte
	if _, err := io.ReadFull(s.r.Body, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > 8<<20 || head[0]&1 != 0 {
		return rpcf("invalid_argument", "an envelope of %d bytes with flags %d", n, head[0])
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(s.r.Body, body); err != nil {
		return err
	}
	if head[0]&2 != 0 {
		return io.EOF
	}
	return json.Unmarshal(body, into)
}

func (s *stream) send(flags byte, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	msg := append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(body))), body...)
	if _, err := s.w.Write(msg); err != nil {
		return err
	}
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
	return nil
}

func (s *stream) event(v map[string]any) error {
	return s.send(0, map[string]any{"event": v})
}

// end sends the trailer that every stream has.
func (s *stream) end(err error) {
	if s.done {
		return
	}
	s.done = true
	v := map[string]any{}
	if err != nil {
		e := asRPC(err)
		v["error"] = map[string]string{"code": e.code, "message": e.message}
	}
	_ = s.send(2, v) // the client may be gone
}

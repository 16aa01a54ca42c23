package modeltest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Request is one model request that the server got.
type Request struct {
	At    time.Time
	Path  string
	Model string
	Tools []string
	// User is the newest user message; Rule and Step are what was played, -1
	// when no rule matched.
	User       string
	Rule, Step int
	Header     http.Header
	// Body is the request's document, decompressed, at most 1 MiB of it.
	Body []byte
}

// Server plays a script over HTTP. It is an http.Handler, safe for concurrent
// use.
type Server struct {
	script Script

	mu       sync.Mutex
	requests []Request
	failed   map[string]int
	done     chan struct{}
	once     sync.Once
}

// New returns a server of a script.
func New(s Script) *Server {
	return &Server{script: s, failed: map[string]int{}, done: make(chan struct{})}
}

// keepRequests bounds what Requests remembers; the oldest are forgotten.
const (
	keepRequests = 1024
	keepBody     = 1 << 20
	maxBody      = 64 << 20
)

// Requests returns what the server was asked, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Release ends every request that is kept in silence. It is idempotent.
func (s *Server) Release() { s.once.Do(func() { close(s.done) }) }

// Serve serves on l until ctx ends, then ends every open request.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	hs := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		s.Release()
		_ = hs.Close()
	})
	defer stop()
	if err := hs.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := strings.TrimSuffix(r.URL.Path, "/")
	var read func([]byte) (request, error)
	var a api
	switch {
	case r.Method == http.MethodGet && p == "/v1/models":
		s.models(w)
		return
	case strings.HasSuffix(p, "/messages/count_tokens"):
		writeJSON(w, http.StatusOK, map[string]any{"input_tokens": DefaultUsage().Input})
		return
	case strings.HasSuffix(p, "/messages"):
		read, a = readMessages, messagesAPI{}
	case strings.HasSuffix(p, "/responses"):
		if r.Header.Get("Upgrade") != "" {
			http.Error(w, "no WebSocket here", http.StatusUpgradeRequired)
			return
		}
		read, a = readResponses, responsesAPI{}
	case strings.HasSuffix(p, "/chat/completions"):
		read, a = readChat, chatAPI{}
	default:
		writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{"type": "not_found_error", "message": "no such endpoint"}})
		return
	}
	body, err := decode(r)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"type": "invalid_request_error", "message": err.Error()}})
		return
	}
	req, err := read(body)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"type": "invalid_request_error", "message": err.Error()}})
		return
	}
	rule, step, st := s.choose(req)
	s.note(Request{At: time.Now(), Path: r.URL.Path, Model: req.model, Tools: req.toolNames(), User: req.user(), Rule: rule, Step: step, Header: r.Header.Clone(), Body: body})
	if f := st.Fail; f != nil && s.fails(fmt.Sprintf("%d/%d/%s/%s%s", rule, step, req.cwd, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")), f.Times) {
		if s.fail(w, r, a, req, *f) {
			return
		}
	}
	a.reply(w, req, s.render(req, step, st))
}

func (s *Server) models(w http.ResponseWriter) {
	list := []map[string]any{}
	for _, m := range s.script.Models {
		list = append(list, map[string]any{"id": m, "object": "model", "type": "model", "display_name": m})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list, "has_more": false})
}

func (s *Server) note(r Request) {
	if len(r.Body) > keepBody {
		r.Body = r.Body[:keepBody]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == keepRequests {
		s.requests = append(s.requests[:0], s.requests[1:]...)
	}
	s.requests = append(s.requests, r)
}

// fails counts a request of a failing step and reports whether it fails.
func (s *Server) fails(key string, times int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[key]++
	return times == 0 || s.failed[key] <= times
}

// fail plays a failure and reports whether the request is over with it.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, a api, req request, f Fail) bool {
	switch {
	case f.Silence:
		select {
		case <-s.done:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case f.Cut, f.StreamError:
		if !req.stream {
			return false // only a stream can be cut
		}
		a.broken(w, req, f)
		if f.Cut {
			panic(http.ErrAbortHandler)
		}
		return true
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	typ, msg := f.Type, f.Message
	if typ == "" {
		typ = errorType(f.Status)
	}
	if msg == "" {
		msg = "scripted failure with status " + strconv.Itoa(f.Status)
	}
	writeJSON(w, f.Status, map[string]any{"type": "error", "error": map[string]any{"type": typ, "code": typ, "message": msg}})
	return true
}

func errorType(status int) string {
	switch status {
	case 400:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 429:
		return "rate_limit_error"
	case 529:
		return "overloaded_error"
	default:
		return "api_error"
	}
}

// decode reads a request's body and undoes its compression.
func decode(r *http.Request) ([]byte, error) {
	var in io.Reader = io.LimitReader(r.Body, maxBody)
	switch enc := r.Header.Get("Content-Encoding"); enc {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = z
	case "zstd":
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		in = z
	default:
		return nil, fmt.Errorf("the content encoding %q is not known", enc)
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(in, maxBody)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that left needs no answer
}

// events writes server-sent events.
type events struct {
	w     http.ResponseWriter
	named bool
}

func newEvents(w http.ResponseWriter, named bool) *events {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	return &events{w, named}
}

func (e *events) send(name string, v map[string]any) {
	if e.named {
		v["type"] = name
		fmt.Fprintf(e.w, "event: %s\n", name)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return
	}
	fmt.Fprintf(e.w, "data: %s\n\n", b)
	if f, ok := e.w.(http.Flusher); ok {
		f.Flush()
	}
}

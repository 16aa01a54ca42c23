package otlp

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Store collects spans, up to MaxSpans. It is safe for concurrent use.
type Store struct {
	mu    sync.Mutex
	spans []Span
	left  int
	bad   int
}

// Add reads the body of a request; contentType tells its form. The error is for
// the sender.
func (s *Store) Add(contentType string, body []byte) error {
	kind, _, _ := mime.ParseMediaType(contentType) // an unreadable type is none that is known
	s.mu.Lock()
	defer s.mu.Unlock()
	room := MaxSpans - len(s.spans)
	var spans []Span
	var left int
	var err error
	switch kind {
	case "application/x-protobuf":
		spans, left, err = Proto(body, room)
	case "application/json":
		spans, left, err = JSON(body, room)
	default:
		return errType
	}
	s.spans, s.left = append(s.spans, spans...), s.left+left
	if err != nil {
		s.bad++
	}
	return err
}

// Lose counts a request that was not read.
func (s *Store) Lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad++
}

// Spans returns what came so far, how many spans were too many, and how many
// requests could not be read.
func (s *Store) Spans() (spans []Span, left, bad int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Span(nil), s.spans...), s.left, s.bad
}

var (
	errType = errors.New("the content type is neither application/x-protobuf nor application/json")
	errSize = errors.New("the request is too long")
)

// Hub serves OTLP/HTTP on this machine for any number of receivers. The zero
// value is ready; it listens when the first receiver is opened.
type Hub struct {
	mu      sync.Mutex
	servers map[string]*server
	closed  bool
}

// server is one listener and the receivers behind it, by their word.
type server struct {
	port      string
	srv       *http.Server
	done      chan struct{}
	mu        sync.Mutex
	receivers map[string]*Receiver
}

// Receiver is the end of one sender's spans.
type Receiver struct {
	Store
	word string
	at   *server
}

// Open opens a receiver at host and port; port 0 is any free one. Its paths
// begin with a random word, so that nobody else's spans come in by chance.
func (h *Hub) Open(ctx context.Context, host string, port int) (*Receiver, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, net.ErrClosed
	}
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	s := h.servers[addr]
	if s == nil {
		var err error
		if s, err = listen(ctx, addr); err != nil {
			return nil, err
		}
		if h.servers == nil {
			h.servers = map[string]*server{}
		}
		h.servers[addr] = s
	}
	var b [8]byte
	rand.Read(b[:])
	r := &Receiver{word: hex.EncodeToString(b[:]), at: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receivers[r.word] = r
	return r, nil
}

func listen(ctx context.Context, addr string) (*server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &server{done: make(chan struct{}), receivers: map[string]*Receiver{}}
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	s.srv = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() {
		defer close(s.done)
		_ = s.srv.Serve(l) // it ends when it is closed; a broken listener is lost telemetry
	}()
	return s, nil
}

// Close ends every receiver.
func (h *Hub) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	var err error
	for _, s := range h.servers {
		err = errors.Join(err, s.srv.Close())
		<-s.done
	}
	h.servers = nil
	return err
}

// Endpoint is the base address for an exporter that reaches this machine as
// host.
func (r *Receiver) Endpoint(host string) string {
	return "http://" + net.JoinHostPort(host, r.at.port) + "/" + r.word
}

// Close ends the receiver; what it got stays.
func (r *Receiver) Close() {
	r.at.mu.Lock()
	defer r.at.mu.Unlock()
	delete(r.at.receivers, r.word)
}

// ServeHTTP answers one request. Logs and metrics are taken and forgotten, so
// that an exporter which sends them too does not complain.
func (s *server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	word, signal, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/v1/")
	s.mu.Lock()
	r := s.receivers[word]
	s.mu.Unlock()
	if r == nil || signal != "traces" && signal != "logs" && signal != "metrics" {
		http.NotFound(w, req)
		return
	}
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "post it", http.StatusMethodNotAllowed)
		return
	}
	body, err := readBody(req)
	if err == nil && signal == "traces" {
		err = r.Add(req.Header.Get("Content-Type"), body)
	} else if err != nil && signal == "traces" {
		r.Lose()
	}
	switch {
	case errors.Is(err, errType):
		http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
	case errors.Is(err, errSize):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
	case err != nil:
		http.Error(w, "the request is malformed", http.StatusBadRequest)
	case strings.HasPrefix(req.Header.Get("Content-Type"), "application/json"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}") // a sender that left needs no answer
	default:
		w.Header().Set("Content-Type", "application/x-protobuf") // an empty message
	}
}

func readBody(req *http.Request) ([]byte, error) {
	in := io.Reader(io.LimitReader(req.Body, MaxBody+1))
	switch req.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = z
	default:
		return nil, errType
	}
	body, err := io.ReadAll(io.LimitReader(in, MaxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > MaxBody {
		return nil, errSize
	}
	return body, nil
}

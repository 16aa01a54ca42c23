package docker

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// proxy stands between a provider and the real engine, counts requests and makes
// faults. The provider uses a connection per request on a unix socket, so each
// connection is one request.
type proxy struct {
	tb      testing.TB
	backend string
	l       net.Listener
	path    string

	mu       sync.Mutex
	rules    []*rule
	seen     []string
	conns    map[net.Conn]string // open client connections → what they asked
	backends map[net.Conn]net.Conn
	wg       sync.WaitGroup
}

// rule is one fault for the requests that match.
type rule struct {
	faulty
	match *regexp.Regexp // on "METHOD path"
	// reached is closed at the first match.
	reached chan struct{}
	once    sync.Once
}

// faulty is what happens to a request. The zero value passes it on, and cuts the
// connection instead of the reply.
type faulty struct {
	times int // 0: always
	// before: the request never reaches the engine.
	before bool
	// answer, when set, is what the client gets instead of the engine's reply.
	answer func(w io.Writer)
	// hold keeps the reply back until it is closed.
	hold <-chan struct{}
}

func newProxy(tb testing.TB, host string) *proxy {
	tb.Helper()
	p := &proxy{tb: tb, backend: strings.TrimPrefix(host, "unix://"), path: filepath.Join(tb.TempDir(), "e.sock"), conns: map[net.Conn]string{}, backends: map[net.Conn]net.Conn{}}
	var err error
	if p.l, err = net.Listen("unix", p.path); err != nil {
		tb.Fatal(err)
	}
	p.wg.Go(func() {
		for {
			c, err := p.l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	tb.Cleanup(func() {
		_ = p.l.Close()
		p.cut("")
		p.wg.Wait()
	})
	return p
}

func (p *proxy) host() string { return "unix://" + p.path }

// add installs a rule and returns it.
func (p *proxy) add(match string, r faulty) *rule {
	n := &rule{faulty: r, match: regexp.MustCompile(match), reached: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, n)
	return n
}

// cut closes the open connections whose request matches.
func (p *proxy) cut(match string) {
	re := regexp.MustCompile(match)
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, what := range p.conns {
		if re.MatchString(what) {
			_ = c.Close()
			if b := p.backends[c]; b != nil {
				// The engine does not end the stream of a container that never
				// started, not even when it is removed.
				_ = b.Close()
			}
		}
	}
}

// requests returns what was asked so far, "METHOD path" each without the
// version, and forgets it.
func (p *proxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.seen
	p.seen = nil
	return s
}

var version = regexp.MustCompile(`^/v[0-9.]+`)

func (p *proxy) take(c net.Conn, r *http.Request) *rule {
	what := r.Method + " " + version.ReplaceAllString(r.URL.Path, "")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, what)
	p.conns[c] = what
	for _, ru := range p.rules {
		if ru.times >= 0 && ru.match.MatchString(what) {
			if ru.times == 1 {
				ru.times = -1
			} else if ru.times > 1 {
				ru.times--
			}
			return ru
		}
	}
	return nil
}

func (p *proxy) serve(c net.Conn) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		delete(p.backends, c)
		p.mu.Unlock()
		_ = c.Close()
	}()
	p.mu.Lock()
	p.conns[c] = "connected"
	p.mu.Unlock()
	br := bufio.NewReader(c)
	req, err := http.ReadRequest(br)
	if err != nil {
		return
	}
	ru := p.take(c, req)
	if ru != nil && ru.before {
		ru.once.Do(func() { close(ru.reached) })
		p.reply(c, ru, nil)
		return
	}
	b, err := net.Dial("unix", p.backend)
	if err != nil {
		p.tb.Errorf("proxy: %v", err)
		return
	}
	defer func() { _ = b.Close() }()
	p.mu.Lock()
	p.backends[c] = b
	p.mu.Unlock()
	if err := req.Write(b); err != nil {
		return
	}
	if ru != nil {
		resp, err := http.ReadResponse(bufio.NewReader(b), req)
		if err != nil {
			return
		}
		var buf bytes.Buffer
		_ = resp.Write(&buf)
		ru.once.Do(func() { close(ru.reached) })
		p.reply(c, ru, buf.Bytes())
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(c, b)
		_ = c.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(b, br)
	_ = b.(*net.UnixConn).CloseWrite()
	<-back
}

// reply answers under a rule; without an answer and a hold the connection is
// cut.
func (p *proxy) reply(c net.Conn, ru *rule, real []byte) {
	gone := make(chan struct{})
	go func() { defer close(gone); _, _ = io.Copy(io.Discard, c) }()
	switch {
	case ru.answer != nil:
		ru.answer(c)
	case ru.hold != nil:
		select {
		case <-ru.hold:
			_, _ = c.Write(real)
		case <-gone:
		}
	}
	_ = c.Close()
	<-gone
}

// status is an answer with an error of the engine.
func status(code int, message string) func(io.Writer) {
	return func(w io.Writer) {
		body := `{"message":"` + message + `"}`
		r := http.Response{StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
		_ = r.Write(w)
	}
}

package native

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"sync"
	"time"

	"assay/sandbox"
)

// proxy is the only way out of a sandbox: it listens inside and connects
// outside. It speaks HTTP with CONNECT, and SOCKS5 (RFC 1928) without
// authentication, on one port.
type proxy struct {
	e     *egress
	notes sandbox.Notes
	in    net.Listener
	http  *http.Server
	feed  chan net.Conn // to http
	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	denied []string
	closed bool
}

const (
	maxConns   = 512              // of one sandbox, at once
	dialLimit  = 30 * time.Second // to reach a destination
	maxDenials = 1000             // that are remembered
)

// serve starts the proxy on a listening socket, which it takes over.
func (e *egress) serve(in net.Listener, notes sandbox.Notes) *proxy {
	p := &proxy{e: e, notes: notes, in: in, feed: make(chan net.Conn), conns: map[net.Conn]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	forward := &httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) {},
		ErrorLog: log.New(io.Discard, "", 0),
		Transport: &http.Transport{
			DisableCompression: true, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return p.dial(ctx, addr) },
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { refuse(w, err) },
	}
	p.http = &http.Server{
		ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 256 << 10, ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodConnect:
				p.connect(w, r)
			case r.URL.Scheme == "http" && r.URL.Host != "":
				forward.ServeHTTP(w, r)
			default:
				http.Error(w, "this is a proxy", http.StatusBadRequest)
			}
		}),
	}
	p.tasks.Go(func() { _ = p.http.Serve(fed{p}) }) // ends with close
	p.tasks.Go(p.accept)
	return p
}

// fed is the listener of the HTTP side.
type fed struct{ p *proxy }

func (f fed) Accept() (net.Conn, error) {
	select {
	case c := <-f.p.feed:
		return c, nil
	case <-f.p.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (f fed) Close() error   { return nil }
func (f fed) Addr() net.Addr { return f.p.in.Addr() }

// accept hands each connection to the protocol that its first byte names.
func (p *proxy) accept() {
	slots := make(chan struct{}, maxConns)
	for {
		c, err := p.in.Accept()
		if err != nil {
			if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, for example: others may end.
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		t := &tracked{Conn: c, r: bufio.NewReader(c), free: sync.OnceFunc(func() { p.forget(c); <-slots })}
		if !p.remember(c) {
			_ = t.Close()
			return
		}
		p.tasks.Go(func() {
			b, err := t.r.Peek(1)
			switch {
			case err != nil:
				_ = t.Close()
			case b[0] == 5:
				p.socks(t)
			default:
				select {
				case p.feed <- t:
				case <-p.ctx.Done():
					_ = t.Close()
				}
			}
		})
	}
}

// tracked is a connection from inside that gives its place back when it closes.
type tracked struct {
	net.Conn
	r    *bufio.Reader
	free func()
}

func (t *tracked) Read(b []byte) (int, error) { return t.r.Read(b) }
func (t *tracked) CloseWrite() error          { return closeWrite(t.Conn) }
func (t *tracked) Close() error {
	t.free()
	return t.Conn.Close()
}

func (p *proxy) remember(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// close ends the proxy with all its connections and waits for it.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	open := p.conns
	p.conns = map[net.Conn]bool{}
	p.mu.Unlock()
	p.stop()
	_ = p.in.Close()
	_ = p.http.Close()
	for c := range open {
		_ = c.Close()
	}
	p.tasks.Wait()
}

// dial connects to a destination, or notes that it is denied.
func (p *proxy) dial(ctx context.Context, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	c, err := p.e.dial(ctx, host, port)
	if errors.Is(err, errDenied) {
		p.deny(net.JoinHostPort(normal(host), port))
	}
	return c, err
}

func (p *proxy) deny(addr string) {
	p.mu.Lock()
	known := slices.Contains(p.denied, addr) || len(p.denied) >= maxDenials
	if !known {
		p.denied = append(p.denied, addr)
	}
	p.mu.Unlock()
	if !known {
		_ = p.notes.Diagnostic(sandbox.Diagnostic{
			Code: "network-denied", Level: sandbox.Warning, DedupeKey: "network-denied:" + addr,
			Message: "the sandbox asked for " + addr + ", which its network setting does not allow",
		})
	}
}

func (p *proxy) deniedHosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.denied)
}

// refuse answers inside; the words tell nothing of the host.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Connection", "close")
	if errors.Is(err, errDenied) {
		http.Error(w, "destination not allowed", http.StatusForbidden)
		return
	}
	http.Error(w, "destination not reachable", http.StatusBadGateway)
}

func (p *proxy) connect(w http.ResponseWriter, r *http.Request) {
	far, err := p.dial(r.Context(), r.Host)
	if err != nil {
		refuse(w, err)
		return
	}
	near, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = far.Close()
		return
	}
	_ = near.SetDeadline(time.Time{})
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = near.Close()
		_ = far.Close()
		return
	}
	p.splice(near, buf.Reader, far)
}

// splice copies both ways until both are done, or the proxy closes.
func (p *proxy) splice(near net.Conn, from io.Reader, far net.Conn) {
	stop := context.AfterFunc(p.ctx, func() {
		_ = near.Close()
		_ = far.Close()
	})
	defer stop()
	defer func() { _ = near.Close() }()
	defer func() { _ = far.Close() }()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = io.Copy(far, from) // either side may end at any time
		_ = closeWrite(far)
	}()
	_, err := io.Copy(near, far)
	_ = closeWrite(near)
	if err != nil {
		_ = near.Close()
	}
	<-up
}

// The replies of RFC 1928, section 6.
const (
	socksOK          = 0
	socksFailed      = 1
	socksDenied      = 2
	socksUnsupported = 7
)

func (p *proxy) socks(c *tracked) {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	addr, code, err := socksRequest(c)
	if err != nil {
		_ = c.Close()
		return
	}
	var far net.Conn
	if code == socksOK {
		far, err = p.dial(p.ctx, addr)
		switch {
		case errors.Is(err, errDenied):
			code = socksDenied
		case err != nil:
			code = socksFailed
		}
	}
	if _, err := c.Write([]byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil || code != socksOK {
		if far != nil {
			_ = far.Close()
		}
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	p.splice(c, c, far)
}

// socksRequest reads the greeting and the request and returns the destination
// and the reply that the request deserves so far.
func socksRequest(c io.ReadWriter) (addr string, code byte, err error) {
	b := make([]byte, 256)
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return "", 0, err
	}
	methods := b[:b[1]]
	if _, err := io.ReadFull(c, methods); err != nil {
		return "", 0, err
	}
	if !slices.Contains(methods, 0) {
		_, err := c.Write([]byte{5, 0xff})
		return "", 0, errors.Join(errors.New("no common method"), err)
	}
	if _, err := c.Write([]byte{5, 0}); err != nil {
		return "", 0, err
	}
	if _, err := io.ReadFull(c, b[:4]); err != nil {
		return "", 0, err
	}
	if b[1] != 1 { // only CONNECT
		code = socksUnsupported
	}
	n := 0
	switch b[3] {
	case 1:
		n = net.IPv4len
	case 4:
		n = net.IPv6len
	case 3:
		var size [1]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return "", 0, err
		}
		n = int(size[0])
	default:
		return "", 0, errors.New("unknown address type")
	}
	kind := b[3]
	host := make([]byte, n+2)
	if _, err := io.ReadFull(c, host); err != nil {
		return "", 0, err
	}
	port := strconv.Itoa(int(binary.BigEndian.Uint16(host[n:])))
	if kind == 3 {
		return net.JoinHostPort(string(host[:n]), port), code, nil
	}
	return net.JoinHostPort(net.IP(host[:n]).String(), port), code, nil
}

package imagebuild

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/moby/moby/client"
	"google.golang.org/protobuf/encoding/protowire"
)

// session is the connection over which BuildKit asks its client for things. Of
// all that BuildKit may ask, this one answers two: whether it lives, and the
// credentials of a registry. It is gRPC over HTTP/2 without TLS, with the client
// of the build as the server.
//
// Source: session/grpchijack and moby.filesync.v1.Auth of BuildKit.
type session struct {
	id   string
	conn net.Conn
	srv  *http.Server
	done chan struct{}
}

// The methods that are served, by their path.
const (
	healthMethod      = "/grpc.health.v1.Health/Check"
	credentialsMethod = "/moby.filesync.v1.Auth/Credentials"
)

func openSession(ctx context.Context, cli *client.Client, c Credentials) (*session, error) {
	s := &session{id: randomID(), done: make(chan struct{})}
	conn, err := cli.DialHijack(ctx, "/session", "h2c", map[string][]string{
		"X-Docker-Expose-Session-Uuid":        {s.id},
		"X-Docker-Expose-Session-Name":        {"build"},
		"X-Docker-Expose-Session-Sharedkey":   {s.id},
		"X-Docker-Expose-Session-Grpc-Method": {healthMethod, credentialsMethod},
	})
	if err != nil {
		return nil, err
	}
	s.conn = conn
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	s.srv = &http.Server{Protocols: protocols, Handler: c}
	l := &oneConn{conn: conn, closed: make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = s.srv.Serve(l) // it ends with the session
	}()
	return s, nil
}

func (s *session) close() {
	_ = s.srv.Close()
	_ = s.conn.Close()
	<-s.done
}

// oneConn is a listener that has one connection.
type oneConn struct {
	conn   net.Conn
	once   sync.Once
	given  bool
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// ServeHTTP answers BuildKit's questions.
func (c Credentials) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	w.Header().Set("Content-Type", "application/grpc")
	status := func(code string) { w.Header().Set(http.TrailerPrefix+"Grpc-Status", code) }
	if err != nil || len(body) < 5 || uint32(len(body)-5) < binary.BigEndian.Uint32(body[1:5]) {
		status("3") // invalid argument
		return
	}
	var reply []byte
	switch r.URL.Path {
	case healthMethod:
		reply = protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1) // serving
	case credentialsMethod:
		host := ""
		each(body[5:], func(field protowire.Number, v []byte, _ uint64) {
			if field == 1 {
				host = string(v)
			}
		})
		reply = c.reply(host)
	default:
		status("12") // unimplemented
		return
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(reply)))
	_, _ = w.Write(append(frame, reply...)) // a lost session is told by the build
	status("0")
}

func (c Credentials) reply(host string) []byte {
	if host == "registry-1.docker.io" {
		host = dockerHub
	}
	if c == nil {
		return nil
	}
	a, ok := c(strings.TrimSuffix(host, "/"))
	if !ok {
		return nil
	}
	user, secret := a.Username, a.Password
	if a.IdentityToken != "" {
		user, secret = "", a.IdentityToken
	}
	var out []byte
	for i, v := range []string{user, secret} {
		if v != "" {
			out = protowire.AppendString(protowire.AppendTag(out, protowire.Number(i+1), protowire.BytesType), v)
		}
	}
	return out
}

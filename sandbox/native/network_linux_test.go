package native

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"assay/sandbox"
)

// heard remembers diagnostics.
type heard struct {
	sandbox.Quiet
	mu   sync.Mutex
	said []sandbox.Diagnostic
}

func (h *heard) Diagnostic(d sandbox.Diagnostic) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, d)
	return nil
}

// get is a request by HTTP/1.0 through the proxy or past it, with nothing but
// bash.
func get(proxy, request string) string {
	return `exec 3<>/dev/tcp/` + proxy + ` && printf '` + request + `' >&3 && cat <&3`
}

func bash(tb testing.TB, d sandbox.Driver, script string) result {
	return try(tb, d, "", "exec bash -c '"+strings.ReplaceAll(script, "'", `'\''`)+"'")
}

const insideProxy = "127.0.0.1/3128"

func TestNetworkModes(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "hello %s %s", r.URL.Path, body)
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	plain := get(insideProxy, "GET http://"+u.Host+`/a HTTP/1.0\r\n\r\n`)
	tunnel := get(insideProxy, "CONNECT "+u.Host+` HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.0\r\n\r\n`)
	port := fmt.Sprintf(`\\x%02x\\x%02x`, number(u.Port())>>8, number(u.Port())&0xff)
	socks := get(insideProxy, strings.ReplaceAll(`\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01`+port, `\\`, `\`)+`GET /c HTTP/1.0\r\n\r\n`)
	direct := get("127.0.0.1/"+u.Port(), `GET /d HTTP/1.0\r\n\r\n`)
	p := provider(t)
	sandboxFor := func(t *testing.T, n sandbox.Network) (*driver, *heard) {
		h := &heard{}
		r := request(t, p, Spec{})
		r.Network, r.Notes = n, h
		return create(t, p, r), h
	}
	t.Run("allow", func(t *testing.T) {
		d, h := sandboxFor(t, sandbox.Network{Mode: "allow", Allow: []string{u.Host}})
		for script, want := range map[string]string{plain: "hello /a", tunnel: "hello /b", socks: "hello /c"} {
			if got := bash(t, d, script); !strings.Contains(got.out, want) {
				t.Errorf("%s: %+v, want %q", script, got, want)
			}
		}
		if got := bash(t, d, direct); got.Code == 0 {
			t.Errorf("past the proxy: %+v", got)
		}
		other := bash(t, d, get(insideProxy, `GET http://elsewhere.test/ HTTP/1.0\r\n\r\n`))
		if !strings.Contains(other.out, "403 Forbidden") || strings.Contains(other.out, "assay") {
			t.Errorf("a host that is not listed: %+v", other)
		}
		for range 2 {
			bash(t, d, get(insideProxy, `CONNECT elsewhere.test:443 HTTP/1.1\r\nHost: x\r\n\r\n`))
		}
		if got := d.Denied(); !slices.Equal(got, []string{"elsewhere.test:80", "elsewhere.test:443"}) {
			t.Errorf("the log of denials is %q", got)
		}
		if len(h.said) != 2 || h.said[0].Code != "network-denied" || !strings.Contains(h.said[0].Message, "elsewhere.test:80") {
			t.Errorf("the diagnostics are %+v", h.said)
		}
	})
	t.Run("default", func(t *testing.T) {
		d, _ := sandboxFor(t, sandbox.Network{})
		for _, script := range []string{plain, tunnel, socks, direct} {
			if got := bash(t, d, script); strings.Contains(got.out, "hello") {
				t.Errorf("a service of this machine's loopback was reached: %s", script)
			}
		}
		if got := d.Denied(); !slices.Equal(got, []string{u.Host}) {
			t.Errorf("the log of denials is %q", got)
		}
	})
	t.Run("none", func(t *testing.T) {
		d, _ := sandboxFor(t, sandbox.Network{Mode: "none"})
		if got := bash(t, d, plain); got.Code == 0 {
			t.Errorf("without a network: %+v", got)
		}
		if got := run(t, d, "", "env | grep -ci proxy || ls /sys/class/net"); !strings.Contains(got, "lo") {
			t.Errorf("without a network there are %q", got)
		}
	})
}

// The proxy of this machine's own environment is used for the way out.
func TestUpstreamProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	var served sync.WaitGroup
	served.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		asked <- r.Method + " " + r.Host
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nfrom beyond")
	})
	t.Cleanup(func() { _ = l.Close(); served.Wait() })
	e := &egress{all: true, upstream: func(*url.URL) (*url.URL, error) { return url.Parse("http://" + l.Addr().String()) }}
	c, err := e.dial(t.Context(), "far.test", "443")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	b, err := io.ReadAll(c)
	if got := <-asked; err != nil || got != "CONNECT far.test:443" || string(b) != "from beyond" {
		t.Errorf("asked %q, got %q, %v", got, b, err)
	}
}

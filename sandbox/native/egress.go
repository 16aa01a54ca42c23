package native

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/guest/enter"
	"assay/sandbox"
)

// egress is what a sandbox may reach through the proxy.
type egress struct {
	// all: every address but those that belong to this machine; else only names.
	all   bool
	names []pattern
	// upstream is the proxy that this process itself has to use, if any.
	upstream func(*url.URL) (*url.URL, error)
}

// pattern is one entry of an allow list.
type pattern struct {
	host string // lower case, without the leading "*."
	wild bool   // subdomains of host, and not host itself
	port string // "" is any
	// literal entries name an address or localhost: what they name was asked for.
	literal bool
}

// egressOf returns what a network setting allows; nil is no network.
func egressOf(n sandbox.Network) (*egress, error) {
	e := &egress{upstream: fromEnvironment}
	switch n.Mode {
	case "none":
		return nil, nil
	case "", "default":
		e.all = true
		return e, nil
	case "allow":
	default:
		return nil, fault.Configf("sandbox.network-unsupported", "Use `network: default`, `network: none` or `network: {allow: [...]}`.", "network mode %q is not known", n.Mode)
	}
	for _, a := range n.Allow {
		p, err := parsePattern(a)
		if err != nil {
			return nil, err
		}
		e.names = append(e.names, p)
	}
	return e, nil
}

func parsePattern(s string) (pattern, error) {
	p := pattern{host: strings.ToLower(strings.TrimSpace(s))}
	if h, port, err := net.SplitHostPort(p.host); err == nil {
		p.host, p.port = h, port
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return p, fault.Configf("sandbox.network-allow", "Write a host name, `*.domain` or `host:port`.", "%q has no valid port", s)
		}
	}
	p.host = strings.Trim(p.host, "[]")
	p.host, p.wild = strings.CutPrefix(p.host, "*.")
	p.host = strings.TrimSuffix(p.host, ".")
	_, err := netip.ParseAddr(p.host)
	p.literal = err == nil || p.host == "localhost"
	if p.host == "" || strings.ContainsAny(p.host, " */@?#") || p.wild && p.literal {
		return p, fault.Configf("sandbox.network-allow", "Write a host name, `*.domain` or `host:port`.", "%q is no host name", s)
	}
	return p, nil
}

func (p pattern) matches(host, port string) bool {
	if p.port != "" && p.port != port {
		return false
	}
	if p.wild {
		return strings.HasSuffix(host, "."+p.host)
	}
	return host == p.host
}

// errDenied marks a destination that the sandbox may not reach.
var errDenied = errors.New("not allowed")

// judge says whether a destination may be reached, and whether it may be an
// address of this machine.
func (e *egress) judge(host, port string) (own bool, err error) {
	for _, p := range e.names {
		if p.matches(host, port) {
			return p.literal, nil
		}
	}
	if !e.all || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return false, errDenied
	}
	return false, nil
}

// normal is a host as patterns have it.
func normal(host string) string {
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// dial connects to a destination that the sandbox named.
func (e *egress) dial(ctx context.Context, host, port string) (net.Conn, error) {
	host = normal(host)
	own, err := e.judge(host, port)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil && !own && reserved(ip) {
		return nil, errDenied
	}
	if via, err := e.upstream(&url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}); err == nil && via != nil && !own {
		return dialVia(ctx, via, net.JoinHostPort(host, port))
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	err = errDenied
	var d net.Dialer
	for _, ip := range addrs {
		ip = ip.Unmap()
		if !own && reserved(ip) {
			continue
		}
		c, derr := d.DialContext(ctx, "tcp", net.JoinHostPort(ip.String(), port))
		if derr == nil {
			return c, nil
		}
		err = derr
	}
	return nil, err
}

// reserved says whether an address is this machine's own, or one that only this
// machine can reach (link-local, where clouds hand out credentials), or no
// address of one host.
func reserved(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.Is4() && ip.As4()[0] == 0 {
		return true
	}
	if ip.Is6() && thisHost6.Contains(ip) {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true // better nothing than this machine
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && own.Unmap() == ip {
				return true
			}
		}
	}
	return false
}

// thisHost6 holds IPv4 addresses written as IPv6 ones in the obsolete way, which
// some systems route to the IPv4 address.
var thisHost6 = netip.MustParsePrefix("::/96")

// fromEnvironment is the proxy that the environment of this process names.
func fromEnvironment(u *url.URL) (*url.URL, error) {
	return http.ProxyFromEnvironment(&http.Request{URL: u})
}

// dialVia connects through an HTTP proxy.
func dialVia(ctx context.Context, via *url.URL, to string) (net.Conn, error) {
	if via.Scheme != "http" {
		return nil, fmt.Errorf("the proxy of this machine has scheme %q, only http is supported", via.Scheme)
	}
	port := via.Port()
	if port == "" {
		port = "80"
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(via.Hostname(), port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{}}
	if via.User != nil {
		pass, _ := via.User.Password()
		q := http.Request{Header: http.Header{}}
		q.SetBasicAuth(via.User.Username(), pass)
		r.Header.Set("Proxy-Authorization", q.Header.Get("Authorization"))
	}
	err = r.Write(c)
	var resp *http.Response
	br := bufio.NewReader(c)
	if err == nil {
		resp, err = http.ReadResponse(br, r)
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the proxy of this machine answered %s", resp.Status)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &buffered{Conn: c, r: br}, nil
}

// buffered is a connection of which a part was read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// CloseWrite ends the sending direction.
func (b *buffered) CloseWrite() error { return closeWrite(b.Conn) }

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// proxyEnv is how programs inside find the proxy.
func proxyEnv() map[string]string {
	at := fmt.Sprintf("http://127.0.0.1:%d", enter.ProxyPort)
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"HTTP_PROXY": at, "HTTPS_PROXY": at, "ALL_PROXY": at, "NO_PROXY": direct,
		"http_proxy": at, "https_proxy": at, "all_proxy": at, "no_proxy": direct,
		"NODE_USE_ENV_PROXY": "1",
	}
}

package native

import (
	"net/netip"
	"testing"

	"assay/fault"
	"assay/sandbox"
)

func TestEgressPatterns(t *testing.T) {
	e, err := egressOf(sandbox.Network{Mode: "allow", Allow: []string{"Example.com", "*.npmjs.org", "api.test:8443", "127.0.0.1:9000", "[::1]:80", "localhost:81"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, port string
		ok, own    bool
	}{
		{"example.com", "443", true, false},
		{"EXAMPLE.com.", "80", true, false},
		{"www.example.com", "443", false, false},
		{"evil-example.com", "443", false, false},
		{"registry.npmjs.org", "443", true, false},
		{"npmjs.org", "443", false, false},
		{"evilnpmjs.org", "443", false, false},
		{"api.test", "8443", true, false},
		{"api.test", "443", false, false},
		{"127.0.0.1", "9000", true, true},
		{"127.0.0.1", "9001", false, false},
		{"[::1]", "80", true, true},
		{"localhost", "81", true, true},
		{"localhost", "82", false, false},
	} {
		own, err := e.judge(normal(c.host), c.port)
		if (err == nil) != c.ok || own != c.own {
			t.Errorf("%s port %s: own %t, %v", c.host, c.port, own, err)
		}
	}
	for _, bad := range []string{"", "*.", "a b", "http://x", "x:99999", "*.10.0.0.1", "*"} {
		if _, err := egressOf(sandbox.Network{Mode: "allow", Allow: []string{bad}}); fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "" {
			t.Errorf("the entry %q: %v", bad, err)
		}
	}
	if e, err := egressOf(sandbox.Network{Mode: "none"}); e != nil || err != nil {
		t.Errorf("none: %v, %v", e, err)
	}
	if _, err := egressOf(sandbox.Network{Mode: "bridge"}); fault.CodeOf(err) != "sandbox.network-unsupported" {
		t.Errorf("an unknown mode: %v", err)
	}
}

func TestDefaultEgressRefusesThisMachine(t *testing.T) {
	e, err := egressOf(sandbox.Network{})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "a.localhost", "LOCALHOST."} {
		if _, err := e.judge(normal(host), "80"); err == nil {
			t.Errorf("%s is allowed", host)
		}
	}
	for _, ip := range []string{"127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "::", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "169.254.169.254", "fe80::1%eth0", "224.0.0.1"} {
		if !reserved(netip.MustParseAddr(ip)) {
			t.Errorf("%s is allowed", ip)
		}
		if _, err := e.dial(t.Context(), ip, "80"); err == nil {
			t.Errorf("a connection to %s was made", ip)
		}
	}
	for _, ip := range []string{"192.0.2.1", "93.184.216.34", "2001:db8::1"} {
		if reserved(netip.MustParseAddr(ip)) {
			t.Errorf("%s is refused", ip)
		}
	}
}

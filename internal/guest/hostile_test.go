package guest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"assay/internal/guest"
	"assay/internal/guest/wire"
)

// liar is a guest that a test plays: it says hello, then answers the first frame
// of each stream with what reply returns.
func liar(t *testing.T, o guest.Options, reply func(f wire.Frame) []byte) *guest.Client {
	t.Helper()
	host, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		hello := wire.Hello{Magic: wire.HelloMagic, Version: wire.Version}
		if _, err := wire.ReadFrame(far); err != nil {
			return
		}
		if _, err := far.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.TypeHello, Payload: wire.Marshal(&hello)})); err != nil {
			return
		}
		for {
			f, err := wire.ReadFrame(far)
			if err != nil {
				return
			}
			b := reply(f)
			if b == nil {
				continue
			}
			if _, err := far.Write(b); err != nil {
				return
			}
			if len(b) == 0 {
				return
			}
		}
	}()
	c, err := guest.Dial(t.Context(), host, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c
}

func onOpen(b []byte) func(wire.Frame) []byte {
	return func(f wire.Frame) []byte {
		if f.Type == wire.TypeOpen {
			return b
		}
		return nil
	}
}

func frame(typ wire.Type, payload []byte) []byte {
	return wire.AppendFrame(nil, wire.Frame{Type: typ, Stream: 1, Payload: payload})
}

func TestHostileGuest(t *testing.T) {
	exec := func(c *guest.Client) error {
		_, err := c.Exec(t.Context(), guest.ExecRequest{Argv: []string{"true"}})
		return err
	}
	get := func(c *guest.Client) error {
		_, err := c.Get(t.Context(), "/x", io.Discard, guest.GetOptions{})
		return err
	}
	record := func(r wire.Record) []byte {
		var b bytes.Buffer
		if err := wire.WriteRecord(&b, &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == wire.KindFile {
			b.Write(make([]byte, 16))
		}
		return b.Bytes()
	}
	tree := func(records ...wire.Record) []byte {
		var b []byte
		for _, r := range append(records, wire.Record{Kind: wire.KindEnd}) {
			b = append(b, record(r)...)
		}
		n := int64(len(records))
		out := append(frame(wire.TypeData0, b), frame(wire.TypeEnd0, nil)...)
		return append(out, frame(wire.TypeReply, wire.Marshal(&wire.TransferReply{Entries: n}))...)
	}
	tests := []struct {
		name  string
		reply []byte
		call  func(*guest.Client) error
	}{
		{"end of stream", []byte{}, exec},
		{"text", []byte("Segmentation fault\n"), exec},
		{"long frame", []byte{byte(wire.TypeReply), 0, 0, 0, 1, 255, 255, 255, 255}, exec},
		{"reply that is no message", frame(wire.TypeReply, []byte("junk")), exec},
		{"reply without a fate", frame(wire.TypeReply, wire.Marshal(&wire.ExecReply{})), exec},
		{"kill that nobody asked for", frame(wire.TypeReply, wire.Marshal(&wire.ExecReply{Killed: true, Proven: true})), exec},
		{"reset", frame(wire.TypeReset, nil), exec},
		{"name that climbs", tree(wire.Record{Kind: wire.KindFile, Name: "../evil"}), get},
		{"absolute name", tree(wire.Record{Kind: wire.KindFile, Name: "/evil"}), get},
		{"unclean name", tree(wire.Record{Kind: wire.KindFile, Name: "a/./b"}), get},
		{"hard link", tree(wire.Record{Kind: wire.KindHardlink, Name: "h", Link: "/etc/passwd"}), get},
		{"wrong count", append(frame(wire.TypeData0, record(wire.Record{Kind: wire.KindEnd})), append(frame(wire.TypeEnd0, nil), frame(wire.TypeReply, wire.Marshal(&wire.TransferReply{Entries: 5}))...)...), get},
		{"cut archive, claimed whole", append(frame(wire.TypeEnd0, nil), frame(wire.TypeReply, wire.Marshal(&wire.TransferReply{}))...), get},
		{"too few digests", frame(wire.TypeReply, wire.Marshal(&wire.DigestReply{})), func(c *guest.Client) error { _, err := c.Digest(t.Context(), "/x"); return err }},
		{"port without an address", frame(wire.TypeReply, wire.Marshal(&wire.PortList{Ports: []wire.Port{{Address: "x"}}})), func(c *guest.Client) error { _, err := c.Ports(t.Context()); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := liar(t, guest.Options{}, onOpen(tt.reply))
			pending := make(chan error, 1)
			if tt.name == "text" { // other calls end as well
				go func() { pending <- c.Ping(context.Background()) }()
			} else {
				pending <- guest.ErrGone
			}
			if err := tt.call(c); !errors.Is(err, guest.ErrGone) {
				t.Errorf("err = %v", err)
			}
			if err := <-pending; !errors.Is(err, guest.ErrGone) {
				t.Errorf("a pending call: %v", err)
			}
			if tt.name == "reset" {
				return // only the stream is lost
			}
			<-c.Done()
			if err := exec(c); !errors.Is(err, guest.ErrGone) || !errors.Is(c.Err(), guest.ErrGone) {
				t.Errorf("a later call: %v", err)
			}
		})
	}
}

func TestSilentGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := liar(t, guest.Options{Confirm: 7 * time.Second}, func(wire.Frame) []byte { return nil })
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		begin := time.Now()
		_, err := c.Exec(ctx, guest.ExecRequest{Argv: []string{"true"}, Grace: 2 * time.Second})
		if !errors.Is(err, guest.ErrUnproven) || !errors.Is(err, why) || errors.Is(err, guest.ErrGone) {
			t.Errorf("err = %v", err)
		}
		if d := time.Since(begin); d != 10*time.Second { // 1 s limit, 2 s grace, 7 s for the word
			t.Errorf("took %v", d)
		}
		if err := c.Ping(ctx); !errors.Is(err, why) {
			t.Errorf("err = %v", err)
		}
		if _, err := c.Stat(ctx, "/"); !errors.Is(err, why) {
			t.Errorf("err = %v", err)
		}
		c.Close()
	})
}

func TestGuestThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, far := net.Pipe()
		go func() {
			hello := wire.Hello{Magic: wire.HelloMagic, Version: wire.Version}
			_, _ = wire.ReadFrame(far)
			_, _ = far.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.TypeHello, Payload: wire.Marshal(&hello)}))
		}()
		c, err := guest.Dial(t.Context(), host, guest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 40 { // more than any queue holds
			if err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("err = %v", err)
			}
			if _, err := c.Exec(ctx, guest.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("err = %v", err)
			}
		}
		c.Close()
		far.Close()
	})
}

func TestDialFails(t *testing.T) {
	t.Run("cancelled", func(t *testing.T) {
		host, far := net.Pipe()
		defer far.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		cancel(why)
		if _, err := guest.Dial(ctx, host, guest.Options{}); !errors.Is(err, why) {
			t.Errorf("err = %v", err)
		}
	})
	old := wire.Hello{Magic: wire.HelloMagic, Version: wire.Version + 1}
	for name, b := range map[string][]byte{
		"nothing":       {},
		"other version": wire.AppendFrame(nil, wire.Frame{Type: wire.TypeHello, Payload: wire.Marshal(&old)}),
		"no hello":      frame(wire.TypeReply, nil),
		"text":          []byte("exec /init: exec format error\n"),
	} {
		t.Run(name, func(t *testing.T) {
			host, far := net.Pipe()
			go func() {
				_, _ = wire.ReadFrame(far)
				_, _ = far.Write(b)
				far.Close()
			}()
			if _, err := guest.Dial(t.Context(), host, guest.Options{}); !errors.Is(err, guest.ErrGone) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// TestFirstExitThenDeath holds the order of facts: an exit that was reported
// stands, output that was not delivered is not silently missing.
func TestFirstExitThenDeath(t *testing.T) {
	exited := frame(wire.TypeReply, wire.Marshal(&wire.ExecReply{Exited: true, Status: 3}))
	c := liar(t, guest.Options{}, onOpen(append(append(frame(wire.TypeData0, []byte("part")), exited...), "junk junk junk"...)))
	var out bytes.Buffer
	x, err := c.Exec(t.Context(), guest.ExecRequest{Argv: []string{"true"}, Stdout: &out})
	if !errors.Is(err, guest.ErrGone) || x.Code != 0 && x.Code != 3 {
		t.Errorf("got %+v, %v", x, err)
	}
}

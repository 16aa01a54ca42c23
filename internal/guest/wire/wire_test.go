package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFrames(t *testing.T) {
	frames := []Frame{
		{Type: TypeOpen, Stream: 1, Payload: []byte{byte(OpExec)}},
		{Type: TypeData1, Stream: 1<<32 - 1, Payload: bytes.Repeat([]byte{7}, MaxPayload)},
		{Type: TypeEnd0, Stream: 2},
		{Type: TypePing, Payload: []byte("12345678")},
	}
	var b []byte
	for _, f := range frames {
		b = AppendFrame(b, f)
	}
	// One byte at a time gives what one big read gives.
	for _, r := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b))} {
		for i, want := range frames {
			got, err := ReadFrame(r)
			if err != nil || got.Type != want.Type || got.Stream != want.Stream || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("frame %d: %v, %v", i, got.Type, err)
			}
		}
		if _, err := ReadFrame(r); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
	for n := 1; n < 20; n++ {
		if _, err := ReadFrame(bytes.NewReader(AppendFrame(nil, frames[3])[:min(n, 16)])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func TestReadFrameRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"type 0":           {0, 0, 0, 0, 1, 0, 0, 0, 0},
		"unknown type":     {byte(typeLimit), 0, 0, 0, 1, 0, 0, 0, 0},
		"too long":         {byte(TypeData0), 0, 0, 0, 1, 0, 4, 0, 1},
		"data on stream 0": {byte(TypeData0), 0, 0, 0, 0, 0, 0, 0, 0},
		"ping on stream 1": {byte(TypePing), 0, 0, 0, 1, 0, 0, 0, 0},
		"a shell banner":   []byte("Welcome to Linux\n"),
	} {
		if _, err := ReadFrame(bytes.NewReader(b)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var messages = []Message{
	&Result{"c", "w"},
	&Empty{},
	&Hello{Magic: HelloMagic, Version: 1, PID: 2, UID: 3, GID: 1<<32 - 1, First: true, OS: "linux", Arch: "x"},
	&ExecRequest{Argv: []string{"a", "", "\xff\x01"}, Dir: "/", Env: []string{"A=b"}, UID: 1, GID: 2, Groups: []uint32{3, 4}, Stdin: true, NoNewPrivs: true},
	&ExecReply{Result: Result{"a", "b"}, Exited: true, Status: 255, Signal: 9, OOM: true, Killed: true, Proven: true},
	&PutRequest{"d", 1, 2, 1 << 60, -1},
	&GetRequest{"p", true, true, []string{"x"}, 9},
	&TransferReply{Entries: 1, Bytes: 2, Warnings: []string{"w"}},
	&PathRequest{"p"},
	&Names{[]string{"a", "b"}},
	&StatReply{Type: "t", Mode: 0o7777, Size: 1 << 50, UID: 1, GID: 2, Target: "x"},
	&User{Name: "n", UID: 1, GID: 2, Groups: []uint32{3}, Home: "h", Shell: "s"},
	&ProcessList{Processes: []Process{{1, 2, 3, 4, "c"}, {}}},
	&PIDs{[]int{1, -2}},
	&EndReply{Ended: 3, Processes: []Process{{PID: 4, PPID: 1, UID: 5, Start: 6, Command: "sleep"}}},
	&PortList{Ports: []Port{{"abcd", 65535, 7}}},
	&DigestReply{Digests: []Digest{{SHA256: "x"}, {Result: Result{"c", "w"}}}},
	&Record{KindFile, "n\xff", "l", 0o644, 1 << 40, -5},
}

func TestMessages(t *testing.T) {
	for _, m := range messages {
		b := Marshal(m)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
		if err := Unmarshal(b, got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T: %+v, %v", m, got, err)
		}
		for n := range b {
			if err := Unmarshal(b[:n], reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)); !errors.Is(err, ErrProtocol) {
				t.Errorf("%T cut at %d: %v", m, n, err)
			}
		}
		if err := Unmarshal(append(b, 0), got); !errors.Is(err, ErrProtocol) {
			t.Errorf("%T with a byte too much: %v", m, err)
		}
	}
}

func TestExtents(t *testing.T) {
	tests := []struct{ off, n, prev, size int64 }{{5, 1, 6, 10}, {5, 6, 0, 10}, {-1, 1, 0, 10}, {0, -1, 0, 10}, {11, 0, 0, 10}, {1 << 62, 1 << 62, 0, 10}}
	for _, tt := range tests {
		var b bytes.Buffer
		if err := WriteExtent(&b, tt.off, tt.n); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadExtent(&b, tt.prev, tt.size); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	if _, _, err := ReadExtent(strings.NewReader("short"), 0, 1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func pair(t *testing.T, accept func(*Stream, Op, []byte)) (client *Conn, server *Conn) {
	t.Helper()
	a, b := net.Pipe()
	client, server = NewConn(a, nil), NewConn(b, accept)
	client.Start()
	server.Start()
	t.Cleanup(client.Close)
	t.Cleanup(server.Close)
	return client, server
}

func TestStreamFlowControl(t *testing.T) {
	const total = 3 * Window
	sent := make(chan int, 1)
	client, _ := pair(t, func(s *Stream, op Op, req []byte) {
		go func() {
			n, _ := s.Write(0, make([]byte, total))
			sent <- n
			_ = s.CloseWrite(0)
			_ = s.SendReply(&Result{What: string(req)})
			s.Close()
		}()
	})
	s, err := client.Open(OpLedger, &PathRequest{strings.Repeat("r", 3*MaxPayload)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, err := client.Open(OpLedger, &Empty{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n := 0
	for { // the first stream is not read meanwhile
		b, err := other.Next(0)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n += len(b); len(b) > Window {
			t.Fatalf("%d bytes are buffered", len(b))
		}
	}
	<-other.Replied()
	if n != total || <-sent != total {
		t.Errorf("%d bytes", n)
	}
	s.mu.Lock()
	held := len(s.in[0].buf)
	s.mu.Unlock()
	if held > Window {
		t.Errorf("%d bytes are buffered of the stream that nobody reads", held)
	}
	select {
	case <-sent:
		t.Error("a sender went over its window")
	default:
	}
	if n, err := io.Copy(io.Discard, s.Reader(0)); err != nil || n != total {
		t.Errorf("%d bytes, %v", n, err)
	}
	<-s.Replied()
	var r Result
	if err := Unmarshal(s.Reply(), &r); err != nil || len(r.What) < 3*MaxPayload {
		t.Errorf("request of %d bytes, %v", len(r.What), err)
	}
	if err := s.receiveData(0, nil); err == nil {
		t.Error("data after the end was accepted")
	}
}

func TestStreamKillAndReset(t *testing.T) {
	kills := make(chan time.Duration, 1)
	gone := make(chan error, 1)
	client, _ := pair(t, func(s *Stream, op Op, req []byte) {
		go func() {
			s.OnKill(func(g time.Duration) { kills <- g })
			_, err := s.Next(0)
			gone <- err
			s.Close()
		}()
	})
	s, err := client.Open(OpExec, &Empty{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(3*time.Second, nil); err != nil || <-kills != 3*time.Second {
		t.Error("kill", err)
	}
	s.Reset()
	if err := <-gone; !errors.Is(err, ErrReset) {
		t.Error(err)
	}
	if _, err := s.Write(0, []byte("x")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestConnRefusesNonsense(t *testing.T) {
	data := func(n int) []byte { return AppendFrame(nil, Frame{TypeData0, 1, make([]byte, n)}) }
	credit := AppendFrame(nil, Frame{TypeCredit0, 1, []byte{0, 0, 0, 1}})
	for name, b := range map[string][]byte{
		"unopened stream":    AppendFrame(nil, Frame{TypeData0, 9, []byte("x")}),
		"open from a server": AppendFrame(nil, Frame{TypeOpen, 1, []byte{1}}),
		"kill from a server": AppendFrame(nil, Frame{TypeKill, 1, make([]byte, 4)}),
		"second hello":       AppendFrame(nil, Frame{TypeHello, 0, Marshal(messages[2])}),
		"over the window":    append(data(MaxPayload), data(1)...),
		"credit for nothing": credit,
		"short credit":       AppendFrame(nil, Frame{TypeCredit0, 1, nil}),
		"two replies":        bytes.Repeat(AppendFrame(nil, Frame{TypeReply, 1, nil}), 2),
		"data after the end": append(AppendFrame(nil, Frame{TypeEnd0, 1, nil}), data(1)...),
		"endless reply":      bytes.Repeat(AppendFrame(nil, Frame{TypeReplyPart, 1, make([]byte, MaxPayload)}), MaxReply/MaxPayload+1),
		"long ping":          AppendFrame(nil, Frame{TypePing, 0, make([]byte, 9)}),
		"text":               []byte("sh: not found\n"),
	} {
		t.Run(name, func(t *testing.T) {
			a, peer := net.Pipe()
			c := NewConn(a, nil)
			c.Start()
			defer c.Close()
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				_, _ = io.Copy(io.Discard, peer)
			}()
			s, err := c.Open(OpExec, &Empty{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = peer.Write(b) // fails when the client has seen enough
			<-c.Dead()
			if !errors.Is(c.Err(), ErrProtocol) {
				t.Errorf("err = %v", c.Err())
			}
			<-s.Done()
			peer.Close()
			<-drained
			if _, err := c.Open(OpExec, &Empty{}, nil); err == nil {
				t.Error("a dead connection opened a stream")
			}
		})
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(nil, Frame{TypeData0, 1, []byte("x")}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			fr, err := ReadFrame(r)
			if err != nil {
				return
			}
			again, err := ReadFrame(bytes.NewReader(AppendFrame(nil, fr)))
			if err != nil || !bytes.Equal(again.Payload, fr.Payload) || again.Type != fr.Type || again.Stream != fr.Stream {
				t.Fatalf("%v became %v, %v", fr, again, err)
			}
		}
	})
}

func FuzzMessages(f *testing.F) {
	for i, m := range messages {
		f.Add(i, Marshal(m))
	}
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		typ := reflect.TypeOf(messages[uint(i)%uint(len(messages))]).Elem()
		m := reflect.New(typ).Interface().(Message)
		if Unmarshal(b, m) != nil {
			return
		}
		again := reflect.New(typ).Interface().(Message)
		if err := Unmarshal(Marshal(m), again); err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}

// FuzzConn throws bytes at a connection of either side: it must end or wait, and
// never panic or keep a goroutine.
func FuzzConn(f *testing.F) {
	for t := Type(1); t < typeLimit; t++ {
		f.Add(true, AppendFrame(nil, Frame{t, 1, []byte{1, 2, 3, 4}}))
		f.Add(false, AppendFrame(AppendFrame(nil, Frame{TypeOpen, 1, []byte{1}}), Frame{t, 1, []byte{0, 0, 0, 4}}))
	}
	f.Fuzz(func(t *testing.T, client bool, b []byte) {
		accept := func(s *Stream, op Op, req []byte) {
			s.OnKill(func(time.Duration) {})
			_ = Unmarshal(req, &ExecRequest{})
		}
		if client {
			accept = nil
		}
		a, peer := net.Pipe()
		c := NewConn(a, accept)
		c.Start()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, peer)
		}()
		if client {
			if _, err := c.Open(OpExec, &Empty{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = peer.Write(b)
		c.Close()
		peer.Close()
		<-drained
	})
}

// TestOpenAtOnce opens streams from many goroutines: their requests reach the
// peer in any order.
func TestOpenAtOnce(t *testing.T) {
	client, server := pair(t, func(s *Stream, _ Op, req []byte) {
		go func() {
			_ = s.SendReply(&Result{What: string(req)})
			s.Close()
		}()
	})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 50 {
				s, err := client.Open(OpStat, &Empty{}, nil)
				if err != nil {
					t.Errorf("open: %v, server: %v", err, server.Err())
					return
				}
				select {
				case <-s.Replied():
				case <-s.Done():
					t.Errorf("ended: %v, server: %v", s.Err(), server.Err())
				}
				s.Close()
			}
		})
	}
	wg.Wait()
}

// TestOpenGivenUp holds that a request that was cancelled half-way leaves
// nothing at the peer.
func TestOpenGivenUp(t *testing.T) {
	a, peer := net.Pipe()
	server := NewConn(a, func(*Stream, Op, []byte) { t.Error("half a request was accepted") })
	server.Start()
	defer server.Close()
	part := Frame{TypeOpenPart, 7, make([]byte, 10)}
	if _, err := peer.Write(AppendFrame(AppendFrame(nil, part), Frame{TypeReset, 7, nil})); err != nil {
		t.Fatal(err)
	}
	// The pong says that everything before it was handled.
	if _, err := peer.Write(AppendFrame(nil, Frame{TypePing, 0, nil})); err != nil {
		t.Fatal(err)
	}
	if f, err := ReadFrame(peer); err != nil || f.Type != TypePong {
		t.Fatal(f, err)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.opening) > 0 || server.err != nil {
		t.Errorf("%d requests are open, %v", len(server.opening), server.err)
	}
}

package server

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/internal/guest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPumpSendsWhatIsInThePipe holds the end of a command whose pipe is still
// held by a process that it left: what is in the pipe when the leader has ended
// is sent, nothing later is, and the holder can write on.
func TestPumpSendsWhatIsInThePipe(t *testing.T) {
	r, w, err := pipe(0)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("x"), 60000)
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := r.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	client := wire.NewConn(a, nil)
	pumped := make(chan struct{})
	server := wire.NewConn(b, func(st *wire.Stream, _ wire.Op, _ []byte) {
		go func() {
			defer close(pumped)
			defer st.Close()
			pumpOutput(r, st, 0, func() {
				// Twice what the pipe holds: somebody still reads.
				go func() {
					_, err := w.Write(make([]byte, 200000))
					if err != nil {
						t.Errorf("the holder: %v", err)
					}
					w.Close()
				}()
			})
		}()
	})
	client.Start()
	server.Start()
	defer client.Close()
	defer server.Close()
	s, err := client.Open(wire.OpExec, &wire.Empty{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := io.ReadAll(s.Reader(0))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	<-pumped
}

func TestNowhere(t *testing.T) {
	in, out, err := nowhere()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	defer in.Close()
	if n, err := in.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v", n, err)
	}
	if st, err := out.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestParsePort(t *testing.T) {
	tests := []struct {
		line []string
		want wire.Port
		ok   bool
	}{
		{[]string{"0:", "0100007F:1F90", "00000000:0000", "0A", "0:0", "0:0", "0", "1000"}, wire.Port{Address: "\x7f\x00\x00\x01", Port: 8080, UID: 1000}, true},
		{[]string{"0:", "00000000000000000000000001000000:0050", "x", "0A", "", "", "", "0"}, wire.Port{Address: "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", Port: 80}, true},
		{[]string{"0:", "0100007F:1F90", "00000000:0000", "01", "", "", "", "0"}, wire.Port{}, false},
		{[]string{"sl", "local_address"}, wire.Port{}, false},
		{[]string{"0:", "zz:1F90", "x", "0A", "", "", "", "0"}, wire.Port{}, false},
		{[]string{"0:", "01:1F90", "x", "0A", "", "", "", "0"}, wire.Port{}, false},
	}
	for _, tt := range tests {
		if got, ok := parsePort(tt.line); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %+v, %v", tt.line, got, ok)
		}
	}
}

package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"assay/internal/guest"
	"assay/internal/guest/guesttest"
	"assay/internal/guest/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostLink attaches to a daemon on this machine.
type hostLink struct {
	t       *testing.T
	program string
	dir     string
	text    bool
	session string

	mu    sync.Mutex
	cur   *exec.Cmd
	in    io.WriteCloser
	files int
	lose  atomic.Int64 // the number of bytes after which an attachment is cut
}

func (l *hostLink) Attach(ctx context.Context, from uint64) (io.ReadCloser, error) {
	mode := "raw"
	if l.text {
		mode = "text"
	}
	cmd := exec.CommandContext(ctx, l.program, relay.AttachArg, l.dir, l.session, strconv.FormatUint(from, 10), mode, "")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.cur, l.in = cmd, in
	l.mu.Unlock()
	var r io.Reader = out
	if n := l.lose.Load(); n > 0 {
		r = io.LimitReader(out, n)
	}
	if l.text {
		r = relay.NewTextReader(r)
	}
	return &attachment{r, cmd, sync.Once{}}, nil
}

type attachment struct {
	io.Reader
	cmd  *exec.Cmd
	once sync.Once
}

func (a *attachment) Close() error {
	a.once.Do(func() {
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
	})
	return nil
}

func (l *hostLink) Send(_ context.Context, frames []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.text {
		_, err := l.in.Write(frames)
		return err
	}
	l.files++
	name := filepath.Join(l.dir, relay.InboxName, fmt.Sprintf("%016d", l.files))
	return os.WriteFile(name, relay.Seal(frames), 0o600)
}

func open(t *testing.T, text bool, lose int64) (*guest.Client, *relay.Tunnel) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "init")
	body, err := os.ReadFile(guesttest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, body, 0o755); err != nil {
		t.Fatal(err)
	}
	l := &hostLink{t: t, program: program, dir: dir, text: text, session: "one"}
	l.lose.Store(lose)
	tun := relay.NewTunnel(l, relay.Options{})
	tun.Start()
	c, err := guest.Dial(t.Context(), tun, guest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := tun.Greeting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		if p, err := os.FindProcess(h.PID); err == nil {
			_ = p.Kill()
		}
	})
	return c, tun
}

// TestTunnel moves bytes both ways through attachments that are cut again and
// again, in both ways of going up.
func TestTunnel(t *testing.T) {
	for _, c := range []struct {
		name string
		text bool
		lose int64
	}{{"raw", false, 0}, {"text", true, 0}, {"raw with cuts", false, 300_000}, {"text with cuts", true, 300_000}} {
		t.Run(c.name, func(t *testing.T) {
			client, tun := open(t, c.text, c.lose)
			in := bytes.Repeat([]byte("0123456789abcdef"), 200_000/16)
			var out bytes.Buffer
			x, err := client.Exec(t.Context(), guest.ExecRequest{
				Argv: []string{"/bin/sh", "-c", "cat; head -c 1000000 /dev/zero | tr '\\0' x; exit 3"}, Stdin: bytes.NewReader(in), Stdout: &out, Env: []string{"PATH=/usr/bin:/bin"},
			})
			if err != nil || x.Code != 3 {
				t.Fatalf("exit %+v, %v", x, err)
			}
			if want := string(in) + strings.Repeat("x", 1_000_000); out.String() != want {
				t.Errorf("%d bytes came, %d were to come, or they differ", out.Len(), len(want))
			}
			if c.lose > 0 && tun.Cuts() < 2 {
				t.Errorf("only %d cuts happened", tun.Cuts())
			}
			if c.lose == 0 && tun.Cuts() != 0 {
				t.Errorf("%d cuts happened without a reason", tun.Cuts())
			}
		})
	}
}

// TestLot holds a file of frames to its end: no part of it is taken for whole.
func TestLot(t *testing.T) {
	body := relay.Seal(relay.Append(relay.Append(nil, relay.Ack, 7, nil), relay.Data, 9, []byte("data")))
	frames, whole := relay.Lot(body)
	if !whole || len(frames) != 2 || frames[0].Offset != 7 || string(frames[1].Payload) != "data" {
		t.Errorf("a whole file gave %+v, %v", frames, whole)
	}
	for n := range len(body) {
		if _, whole := relay.Lot(body[:n]); whole {
			t.Errorf("%d bytes of %d are taken for whole", n, len(body))
		}
	}
	if _, whole := relay.Lot(append(body, 0)); whole {
		t.Error("a file with more after its end is taken for whole")
	}
}

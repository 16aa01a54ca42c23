package guest_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"testing"

	"assay/internal/guest"
	"assay/internal/guest/guesttest"
)

// BenchmarkExecTrue is the cost of a command through the guest; compare with
// BenchmarkBareTrue, a plain fork and exec by this process.
func BenchmarkExecTrue(b *testing.B) {
	g := guesttest.Start(b, false)
	req := guest.ExecRequest{Argv: []string{"/bin/true"}, Env: os.Environ(), Stdout: io.Discard, Stderr: io.Discard}
	for b.Loop() {
		if x, err := g.Exec(b.Context(), req); err != nil || x.Code != 0 {
			b.Fatal(x, err)
		}
	}
}

func BenchmarkBareTrue(b *testing.B) {
	for b.Loop() {
		cmd := exec.Command("/bin/true")
		cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPing(b *testing.B) {
	g := guesttest.Start(b, false)
	for b.Loop() {
		if err := g.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOutput(b *testing.B) {
	g := guesttest.Start(b, false)
	b.SetBytes(50e6)
	for b.Loop() {
		if _, err := g.Exec(b.Context(), guest.ExecRequest{Argv: []string{"head", "-c", "50000000", "/dev/zero"}, Env: []string{path}, Stdout: io.Discard}); err != nil {
			b.Fatal(err)
		}
	}
}

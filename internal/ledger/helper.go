package ledger

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"assay/fault"
	"assay/internal/archive"
	"assay/internal/guest/guestbin"
	"assay/internal/guest/server"
	"assay/sandbox"
)

// helper serves the ledger where a driver does not: the guest program is put
// into the sandbox once and run for each request.
type helper struct {
	s    *sandbox.Sandbox
	dir  string
	once sync.Once
	path string
	err  error
}

// architectures maps what uname -m prints to Go's names.
var architectures = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

// install puts the program beside the agent.
func (h *helper) install(ctx context.Context) error {
	unavailable := func(why string, err error) error {
		return &fault.Error{Code: CodeUnavailable, What: "this sandbox cannot record changes: " + why, Err: err}
	}
	res, err := h.s.RunCommand(ctx, []string{"uname", "-sm"}, sandbox.CommandOptions{Label: "ledger"})
	if err != nil {
		return err
	}
	system, machine, _ := strings.Cut(strings.TrimSpace(res.Stdout), " ")
	arch, ok := architectures[machine]
	if res.Code != 0 || system != "Linux" || !ok {
		return unavailable(fmt.Sprintf("it runs %q and there is no program for that", sandbox.Tail(res.Stdout, 60)), nil)
	}
	g, err := guestbin.Find("linux", arch)
	if err != nil {
		return unavailable("there is no program to record them with", err)
	}
	body, err := os.ReadFile(g.Path)
	if err != nil {
		return unavailable("the program to record them with cannot be read", err)
	}
	h.path = path.Join(h.dir, "init")
	return h.s.WriteFiles(ctx, h.dir, archive.File{Name: "init", Mode: 0o755, Body: body})
}

// Track runs one request.
func (h *helper) Track(ctx context.Context, request []byte, response io.Writer) error {
	h.once.Do(func() { h.err = h.install(ctx) })
	if h.err != nil {
		return h.err
	}
	res, err := h.s.RunCommand(ctx, []string{h.path, server.LedgerArg}, sandbox.CommandOptions{
		Stdin: bytes.NewReader(request), Stdout: response, OutputLimit: 4096, Label: "ledger",
	})
	if err != nil {
		return err
	}
	if res.Code != 0 {
		return &fault.Error{Code: "ledger-helper-failed", What: fmt.Sprintf("the ledger's helper ended with exit %d: %s", res.Code, sandbox.Tail(res.Stderr, 240))}
	}
	return nil
}

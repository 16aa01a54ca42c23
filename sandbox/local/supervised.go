package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"assay/internal/guest"
	"assay/internal/guest/guestbin"
	"assay/sandbox"
)

// attach gives a driver its runner: the guest, where one can run here, else
// process groups.
func (p *Provider) attach(ctx context.Context, d *driver, notes sandbox.Notes) (sandbox.Driver, error) {
	bin, err := p.supervisor()
	if err != nil || runtime.GOOS != "linux" {
		d.run = &groups{}
		if notes == nil {
			return d, nil
		}
		return d, notes.Diagnostic(sandbox.Diagnostic{
			Code: "local-unsupervised", Level: sandbox.Warning, DedupeKey: "local-unsupervised",
			Message: "no supervisor can run here: a timeout ends a command's process group, and processes that left it may live on",
		})
	}
	s, err := startGuest(ctx, bin)
	if err != nil {
		return nil, err
	}
	d.run = s
	return &supervised{d, s}, nil
}

// supervisor finds the guest, once: that reads the whole of it.
func (p *Provider) supervisor() (guestbin.Guest, error) {
	if p.Guest != "" {
		return guestbin.Guest{Path: p.Guest, Args: []string{"--init"}}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found.Path == "" {
		bin, err := guestbin.FindForHost()
		if err != nil {
			return bin, err
		}
		p.found = bin
	}
	return p.found, nil
}

// supervised is a driver whose processes are known.
type supervised struct {
	*driver
	guest *guestRunner
}

// Processes implements sandbox.ProcessEnder.
func (s *supervised) Processes(ctx context.Context) ([]sandbox.Process, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	ps, err := s.guest.client.Processes(ctx)
	if err != nil {
		return nil, unusable(err)
	}
	out := make([]sandbox.Process, len(ps))
	for i, p := range ps {
		out[i] = sandbox.Process{PID: p.PID, UID: int(p.UID), Command: p.Command}
	}
	return out, nil
}

// EndProcesses implements sandbox.ProcessEnder. It ends what this sandbox's
// commands left, and nothing else on this machine.
func (s *supervised) EndProcesses(ctx context.Context) ([]sandbox.Process, error) {
	ps, err := s.Processes(ctx)
	if err != nil {
		return nil, err
	}
	_, err = s.guest.client.EndProcesses(ctx)
	return ps, unusable(err)
}

// guestRunner runs commands below a guest process. It adopts what commands
// leave behind and ends it when its input ends, also when this process is
// killed.
type guestRunner struct {
	client *guest.Client
	cmd    *exec.Cmd
	once   sync.Once
	exited chan struct{}
}

// duplex is the guest's standard input and output.
type duplex struct {
	io.Reader
	in  io.WriteCloser
	out io.Closer
}

func (d duplex) Write(b []byte) (int, error) { return d.in.Write(b) }
func (d duplex) Close() error                { return errors.Join(d.in.Close(), d.out.Close()) }

func startGuest(ctx context.Context, bin guestbin.Guest) (*guestRunner, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inR.Close(), inW.Close())
	}
	cmd := exec.Command(bin.Path, bin.Args...)
	cmd.Dir, cmd.Env = "/", guest.StartEnv()
	cmd.Stdin, cmd.Stdout = inR, outW
	// Its own session: an interrupt from the terminal is for this process only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = errors.Join(inR.Close(), outW.Close()) // the child has its own
	if err != nil {
		return nil, fmt.Errorf("start the supervisor of local commands: %w", errors.Join(err, inW.Close(), outR.Close()))
	}
	g := &guestRunner{cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // it ends by our order; how does not matter
		close(g.exited)
	}()
	if g.client, err = guest.Dial(ctx, duplex{outR, inW, outR}, guest.Options{}); err != nil {
		_ = cmd.Process.Kill()
		<-g.exited
		return nil, fmt.Errorf("talk to the supervisor of local commands: %w", err)
	}
	return g, nil
}

func unusable(err error) error {
	if errors.Is(err, guest.ErrGone) || errors.Is(err, guest.ErrUnproven) {
		return fmt.Errorf("%w: %w", sandbox.ErrUnusable, err)
	}
	return err
}

func (g *guestRunner) exec(ctx context.Context, c sandbox.Cmd, env []string) (sandbox.Exit, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return sandbox.Exit{}, err
	}
	ids := make([]uint32, len(groups))
	for i, id := range groups {
		ids[i] = uint32(id)
	}
	e, err := g.client.Exec(ctx, guest.ExecRequest{
		Argv: c.Argv, Dir: c.Dir, Env: env, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Groups: ids,
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	return sandbox.Exit{Code: e.Code, Signal: e.Signal, OOM: e.OOM}, unusable(err)
}

func (g *guestRunner) lost() error { return unusable(g.client.Err()) }

func (g *guestRunner) stop(ctx context.Context) error {
	err := g.client.Shutdown(ctx)
	g.once.Do(func() { _ = g.client.Close() }) // the end of its input ends the guest as well
	select {
	case <-g.exited:
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), err)
	}
}

var (
	_ sandbox.Driver       = (*supervised)(nil)
	_ sandbox.ProcessEnder = (*supervised)(nil)
)

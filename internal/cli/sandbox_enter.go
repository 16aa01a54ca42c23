package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/keep"
	"assay/ref"
	"assay/sandbox"
)

func (a *app) sandboxEnter() *cobra.Command {
	var leave bool
	c := &cobra.Command{
		Use: "enter <id> [-- command…]", Short: "Open a shell in a kept sandbox, or run a command there",
		Long: "Wake a kept sandbox and open a shell in its workdir, as the user that the agent was. Input that is no terminal\n" +
			"is read to its end. Afterwards the sandbox sleeps again, with what was changed.",
		Example: "  " + a.w.Name + " sandbox enter 3fa1\n  " + a.w.Name + " sandbox enter 3fa1 -- npm test\n  echo ls | " + a.w.Name + " sandbox enter 3fa1",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, e, err := a.find(args[0])
			if err != nil {
				return err
			}
			return a.enter(c.Context(), r, e, args[1:], leave)
		},
	}
	c.Flags().BoolVar(&leave, "leave-running", false, "do not suspend it afterwards (docker, podman, e2b)")
	return c
}

// wakeLimit bounds the start and the end of a visit.
const wakeLimit = 3 * time.Minute

// enter wakes a kept sandbox, runs a command or a shell, and lets it sleep again.
func (a *app) enter(ctx context.Context, r keep.Registry, e keep.Entry, argv []string, leave bool) error {
	p, err := a.providerOf(e)
	if err != nil {
		return err
	}
	w, ok := p.(sandbox.Waker)
	if !ok {
		return fault.Configf("sandbox-unknown", "Look at it with the provider's own tools.", "%s sandboxes cannot be woken", e.Provider)
	}
	release, err := r.Lock(e.ID, "enter")
	if err != nil {
		return err
	}
	defer release()
	o := owner()
	o.Token, o.Registry, o.Run, o.Attempt, o.Experiment, o.Eval = ref.New(), r.Dir, e.Run, e.Attempt, e.Experiment, e.Eval
	waking, cancel := context.WithTimeout(ctx, wakeLimit)
	d, err := w.Wake(waking, e.SandboxID, sandbox.WakeRequest{User: e.User, Workdir: e.Workdir, Owner: o})
	cancel()
	if err != nil {
		judged := *sandbox.Judge(ctx, p, err)
		judged.What = cmp.Or(judged.What, "wake the kept sandbox "+e.ID)
		return &judged
	}
	e.State = keep.Alive
	exit, err := a.visit(ctx, p, d, e, argv, r.Put(e))
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeLimit)
	defer cancel()
	if serr := a.sleep(closing, r, e, d, leave); serr != nil {
		return errors.Join(err, serr)
	}
	if err != nil {
		return err
	}
	if exit.Code != 0 {
		return exitError(exit.Code)
	}
	return nil
}

// visit runs the command. ready is the error of what had to come before.
func (a *app) visit(ctx context.Context, p sandbox.Provider, d sandbox.Driver, e keep.Entry, argv []string, ready error) (sandbox.Exit, error) {
	if ready != nil {
		return sandbox.Exit{}, ready
	}
	face := sandbox.New(d, sandbox.Options{Provider: p, User: e.User})
	if len(argv) == 0 {
		shell, err := face.Shell(ctx)
		if err != nil {
			return sandbox.Exit{}, err
		}
		argv = shell[:1] // without what makes it run a script
	}
	c := sandbox.Cmd{Argv: argv, Dir: d.Workdir(), User: e.User, Stdin: a.p.Stdin, Stdout: a.p.Stdout, Stderr: a.p.Stderr}
	env, err := face.Environ(ctx, e.User)
	if err != nil {
		return sandbox.Exit{}, err
	}
	c.Env = env
	out := fileOf(a.p.Stdout)
	if a.p.Stdin == nil || out == nil || !term.IsTerminal(a.p.Stdin.Fd()) || !term.IsTerminal(out.Fd()) {
		return d.Exec(ctx, c)
	}
	return a.seated(ctx, d, c, out)
}

// seated runs a command for somebody at a terminal. Where the sandbox has no
// terminals of its own, its `script` program makes one.
func (a *app) seated(ctx context.Context, d sandbox.Driver, c sandbox.Cmd, out *os.File) (sandbox.Exit, error) {
	width, height, err := term.GetSize(out.Fd())
	if err != nil {
		width, height = 80, 24
	}
	t := sandbox.Terminal{Kind: a.p.env("TERM"), Width: uint(width), Height: uint(height)}
	resized, still := watchSize(out)
	defer still()
	t.Resized = resized
	fmt.Fprintf(a.p.Stderr, "entered %s in %s; leave with exit or Ctrl-D\n", d.ID(), c.Dir)
	enterer, ok := sandbox.AsDriver[sandbox.Enterer](d)
	if !ok {
		c.Env["TERM"] = cmp.Or(t.Kind, "xterm")
		probe := c
		probe.Argv, probe.Stdin, probe.Stdout, probe.Stderr = []string{"script", "--version"}, nil, nil, nil
		if x, err := d.Exec(ctx, probe); err != nil || x.Code != 0 {
			fmt.Fprintln(a.p.Stderr, "note: there is no `script` program inside, so this is a shell without a terminal")
			return d.Exec(ctx, c)
		}
		command := fmt.Sprintf("stty rows %d cols %d; exec %s", t.Height, t.Width, sandbox.Quote(c.Argv))
		c.Argv = []string{"script", "-qec", command, "/dev/null"}
	}
	saved, err := term.MakeRaw(a.p.Stdin.Fd())
	if err != nil {
		return sandbox.Exit{}, fmt.Errorf("prepare the terminal: %w", err)
	}
	defer func() { _ = term.Restore(a.p.Stdin.Fd(), saved) }()
	if ok {
		return enterer.Enter(ctx, c, t)
	}
	return d.Exec(ctx, c)
}

// sleep suspends a sandbox after a visit and notes it.
func (a *app) sleep(ctx context.Context, r keep.Registry, e keep.Entry, d sandbox.Driver, leave bool) error {
	if leave {
		l, ok := sandbox.AsDriver[sandbox.Leaver](d)
		if ok {
			if err := l.Leave(ctx); err != nil {
				return err
			}
			return r.Put(e)
		}
		fmt.Fprintf(a.p.Stderr, "note: a %s sandbox cannot be left running and is suspended\n", e.Provider)
	}
	s, ok := sandbox.AsDriver[sandbox.Suspender](d)
	if !ok {
		return fault.Configf("sandbox-suspend-failed", "Stop it with `sandbox stop`.", "the kept sandbox %s cannot be suspended", e.ID)
	}
	asleep, err := s.Suspend(ctx)
	if err != nil {
		return &fault.Error{Class: fault.ClassOf(err), Code: "sandbox-suspend-failed", What: "suspend the kept sandbox " + e.ID + ", which may still run", Fix: "Run `sandbox stop`, or enter and leave it again.", Err: err}
	}
	old := e
	e.State, e.SandboxID, e.ID = keep.Dormant, asleep.ID, keep.IDOf(e.Provider, asleep.ID)
	e.ExpiresAt = nil
	if !asleep.Expires.IsZero() {
		at := asleep.Expires.UTC()
		e.ExpiresAt = &at
	}
	if err := r.Put(e); err != nil || old.ID == e.ID {
		return err
	}
	// It sleeps under another id now; what it slept under before is of no use.
	fmt.Fprintf(a.p.Stderr, "note: the kept sandbox is %s from now on\n", e.ID)
	if p, err := a.providerOf(old); err == nil {
		if v, ok := p.(sandbox.Inventory); ok {
			if err := v.Destroy(ctx, old.SandboxID); err != nil {
				return err // it stays listed
			}
		}
	}
	return r.Forget(old.ID)
}

package attempt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/archive"
	"assay/internal/ledger"
	"assay/internal/plan"
	"assay/internal/pool"
	"assay/internal/redact"
	"assay/internal/snapshot"
	"assay/record"
	"assay/sandbox"
)

// The policy of repeated creates.
const (
	createTries = 4
	createBase  = time.Second
)

// create makes the sandbox. From here on it has an owner: it is stopped in the
// end whatever happens, or given to the pool it belongs to.
func (a *attempt) create(ctx context.Context) error {
	if a.sb != nil {
		return errNothing // taken over
	}
	env, lane := a.slot.Environment, a.env.Lane
	req := sandbox.CreateRequest{
		From: a.env.Prepared, Template: env.Template, Owner: a.env.Owner, User: a.slot.Settings.User, Workdir: a.slot.Settings.Workdir,
		Resources: a.slot.Settings.Resources, Network: a.slot.Settings.Network, Lifetime: a.slot.Settings.Lifetime,
		Timeout: a.slot.Timeout, Notes: notes{a, "sandbox.create"},
	}
	if a.env.Keep != nil && lane == nil {
		req.Keep, req.Owner.Registry = true, a.env.Keep.Registry.Dir
	}
	a.rec.Sandbox = a.sandboxRecord(env)
	a.rec.Sandbox.Use = 1
	if lane != nil {
		n, evicted, err := lane.Pool.Enter(ctx)
		if err != nil {
			return err
		}
		defer func() {
			if a.box == nil { // also where the provider's code panicked
				lane.Pool.Leave()
			}
		}()
		if evicted != nil {
			lane.Close(ctx, evicted, "its place is needed for another start point")
		}
		a.rec.Sandbox.Ordinal = n
	}
	d, err := a.createWithRetry(ctx, env, req)
	if err != nil {
		return err
	}
	face := sandbox.New(d, a.faceOptions())
	if lane != nil {
		a.adopt(&pool.Box{Key: lane.Key, Ordinal: a.rec.Sandbox.Ordinal, Uses: 1, Driver: d, Face: face, HostDir: a.slot.Eval.Dir})
		return nil
	}
	a.driver, a.sb = d, face
	a.push(undo{phase: "sandbox.stop", code: "sandbox-stop-failed", stop: true, limit: a.stopLimit(), do: a.stop})
	a.rec.Sandbox.ID, a.rec.Sandbox.Workdir = d.ID(), d.Workdir()
	a.newScratch()
	if !env.Info.Reset {
		// The environment outlives the attempt, so what was put beside the
		// agent is taken away again.
		a.push(undo{phase: "sandbox.cleanup", code: "scratch-not-removed", do: func(ctx context.Context) error {
			// Not through the face: what was put on the host is taken away
			// also where no command can run any more.
			if r, ok := sandbox.As[sandbox.Remover](a.sb); ok {
				return r.Remove(ctx, a.scratch)
			}
			return a.sb.Remove(ctx, a.scratch)
		}})
	}
	return nil
}

// newScratch names a place in the sandbox for what is put beside the agent.
func (a *attempt) newScratch() string {
	var b [4]byte
	rand.Read(b[:])
	a.scratch = "/tmp/.s-" + hex.EncodeToString(b[:])
	return a.scratch
}

// faceOptions are the settings of this attempt's face of its sandbox. The
// settings of the slot are shared by all attempts of the pair.
func (a *attempt) faceOptions() sandbox.Options {
	if a.secrets == nil {
		a.red = redact.New(a.loadSecrets()...)
	}
	envVars := maps.Clone(a.slot.Settings.Env)
	if envVars == nil {
		envVars = map[string]string{}
	}
	for name, v := range a.secrets {
		if slices.Contains(a.slot.Settings.SecretEnv, name) {
			envVars[name] = v
		}
	}
	return sandbox.Options{
		Provider: a.slot.Environment.Provider, Env: envVars, Path: a.slot.Settings.Path, User: a.slot.Settings.User,
		HostDir: a.slot.Eval.Dir, HostRoot: a.env.HostRoot, Redactor: a.red, Observe: a.observe,
	}
}

// sandboxRecord is what is known of the sandbox before there is one.
func (a *attempt) sandboxRecord(env *plan.Environment) *record.Sandbox {
	set := a.slot.Settings
	return &record.Sandbox{
		Provider: env.Info.Kind, Engine: env.Info.Engine, Key: string(env.Key), From: a.env.Prepared.Ref,
		User: set.User, Network: set.Network.Mode, Details: a.env.Prepared.Details, Limits: limits(set.Resources),
	}
}

func limits(r sandbox.Resources) map[string]any {
	b, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	var m map[string]any
	if json.Unmarshal(b, &m) != nil || len(m) == 0 {
		return nil
	}
	return m
}

// loadSecrets reads the named variables. Missing ones were refused before the
// first attempt.
func (a *attempt) loadSecrets() []string {
	a.secrets = map[string]string{}
	var values []string
	for _, name := range slices.Concat(a.slot.Settings.SecretEnv, a.info.SecretEnv, a.templateSecrets()) {
		v, ok := a.env.Secret(name)
		if !ok {
			continue
		}
		a.secrets[name] = v
		values = append(values, v)
		if len(v) < redact.MinLength {
			a.diagnostic("sandbox.create", sandbox.Diagnostic{Code: "secret-too-short", Level: sandbox.Warning, Message: fmt.Sprintf("the value of %s has fewer than %d characters and is not masked in output", name, redact.MinLength), DedupeKey: name})
		}
	}
	return append(values, a.judgeKey()...)
}

func (a *attempt) createWithRetry(ctx context.Context, env *plan.Environment, req sandbox.CreateRequest) (sandbox.Driver, error) {
	for try := 1; ; try++ {
		var b [16]byte
		rand.Read(b[:])
		req.Owner.Token = hex.EncodeToString(b[:])
		d, err := createOnce(ctx, env.Provider, req)
		if err == nil {
			return d, nil
		}
		judged := sandbox.Judge(ctx, env.Provider, err)
		out := *judged
		if out.Code == "" {
			out.Code = "sandbox-create-failed"
		}
		if out.What == "" {
			out.What = fmt.Sprintf("create a %s sandbox", env.Info.Kind)
			out.Err = err
		}
		if !env.Info.RetryCreate || judged.Class != fault.Transient || try == createTries || ctx.Err() != nil {
			return nil, &out
		}
		if r, ok := env.Provider.(sandbox.Reconciler); ok {
			if rerr := r.Reconcile(ctx, req.Owner); rerr != nil {
				a.diagnostic("sandbox.create", sandbox.Diagnostic{Code: "sandbox-provision-reconcile-failed", Level: sandbox.Error, Message: rerr.Error()})
				return nil, &out
			}
		}
		wait := time.Duration(float64(createBase<<(try-1)) * (0.5 + mrand.Float64()))
		if yerr := a.backOff(ctx, fmt.Sprintf("creating the sandbox failed (%s), trying again in %s", sandbox.Tail(err.Error(), 120), wait.Round(100*time.Millisecond)), wait); yerr != nil {
			return nil, &fault.Error{Class: fault.Canceled, Code: out.Code, What: out.What, Err: errors.Join(yerr, err)}
		}
	}
}

// createOnce asks the provider for a sandbox. A provider that does not even give
// up when its time is over is left behind; what it makes after all is stopped.
func createOnce(ctx context.Context, p sandbox.Provider, req sandbox.CreateRequest) (sandbox.Driver, error) {
	type made struct {
		d   sandbox.Driver
		err error
	}
	done := make(chan made, 1)
	go func() {
		m := made{err: errLeftGoroutine}
		defer func() {
			if p := recover(); p != nil {
				m.err = &fault.Error{Code: "panic", What: fmt.Sprintf("panic: %v", p), Err: errors.New(stack())}
			}
			done <- m
		}()
		m.d, m.err = p.Create(ctx, req)
	}()
	select {
	case m := <-done:
		return m.d, m.err
	case <-ctx.Done():
	}
	// It removes what it had half made, which may take as long as a stop.
	limit := time.NewTimer(StopWatchdog)
	defer limit.Stop()
	select {
	case m := <-done:
		return m.d, m.err
	case <-limit.C:
	}
	go func() {
		if m := <-done; m.d != nil {
			late, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "stop-limit", StopLimit, "built-in")
			defer cancel()
			_ = m.d.Stop(late) // nobody is left to be told
		}
	}()
	return nil, fault.Cause(ctx)
}

// backOff sleeps without holding the global slot.
func (a *attempt) backOff(ctx context.Context, why string, d time.Duration) error {
	notes{a, a.current()}.Progress(sandbox.Progress{Message: why})
	return a.env.Yield(ctx, "backing off", func(ctx context.Context) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return fault.Cause(ctx)
		}
	})
}

func (a *attempt) observe(c sandbox.CommandRecord) {
	b, err := json.Marshal(c)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.commands = append(a.commands, b)
	}
}

// setup runs the setup chains, lowest level first. The teardown chains go on
// the stack first: they run because setup was reached, also when it fails.
func (a *attempt) setup(ctx context.Context) error {
	if a.box != nil && a.box.Marked {
		return errNothing // it was set up before its first attempt
	}
	steps := 0
	for _, lv := range a.slot.Layers {
		for _, st := range lv.Layer.TeardownSteps() {
			steps++
			if a.box != nil {
				a.box.Teardown = slices.Insert(a.box.Teardown, 0, st)
				continue
			}
			a.push(undo{phase: "sandbox.teardown", code: "sandbox-teardown-fatal", fatal: true, host: onHost(st), do: func(ctx context.Context) error {
				return a.step(ctx, "sandbox.teardown", st)
			}})
		}
	}
	for _, lv := range a.slot.Layers {
		for _, st := range lv.Layer.SetupSteps() {
			steps++
			if err := a.step(ctx, "sandbox.setup", st); err != nil {
				return &fault.Error{Class: fault.ClassOf(err), Code: cause(err, "sandbox-setup-failed"), Fix: fault.FixOf(err), Scope: fault.ScopeOf(err), What: "setup of " + lv.Name + ": " + sandbox.Tail(st.Label(), 120), Err: err}
			}
		}
	}
	if steps == 0 {
		return errNothing
	}
	return nil
}

// onHost tells that a step is a command outside of the sandbox. Author code may
// be anything: it is told to hurry by its context.
func onHost(st sandbox.Step) bool { return st.Hook == nil && st.Command.Host }

// cause keeps the code of an infrastructure failure and replaces others by the
// phase's own.
func cause(err error, code string) string {
	switch c := fault.CodeOf(err); {
	case c == "" || c == "command-exit":
		return code
	default:
		return c
	}
}

// step runs one element of a chain.
func (a *attempt) step(ctx context.Context, phase string, st sandbox.Step) error {
	return runStep(ctx, a.sb, notes{a, phase}, a.slot.Eval.Dir, a.red, st)
}

func runStep(ctx context.Context, sb *sandbox.Sandbox, n sandbox.Notes, dir string, red *redact.Redactor, st sandbox.Step) error {
	if st.Hook != nil {
		return Bounded(ctx, func(ctx context.Context) error { return st.Hook(ctx, sb, n) })
	}
	return runDeclared(ctx, sb, dir, red, st.Command)
}

// declared runs a declared command, in the sandbox or on the host.
func (a *attempt) declared(ctx context.Context, c sandbox.Command) error {
	return runDeclared(ctx, a.sb, a.slot.Eval.Dir, a.red, c)
}

func runDeclared(ctx context.Context, sb *sandbox.Sandbox, dir string, red *redact.Redactor, c sandbox.Command) error {
	if c.Host {
		return HostCommand(ctx, c, dir, map[string]string{"ASSAY_SANDBOX_ID": sb.ID()}, red)
	}
	_, err := sb.RunDeclared(ctx, c, sandbox.CommandOptions{})
	return err
}

// prepare runs the per-attempt commands: the template owner's first.
func (a *attempt) prepare(ctx context.Context) error {
	ran := false
	for _, lv := range a.slot.Prepares() {
		for _, st := range lv.Layer.PrepareSteps() {
			ran = true
			if err := a.step(ctx, "sandbox.prepare", st); err != nil {
				return &fault.Error{Class: fault.ClassOf(err), Code: cause(err, "sandbox-prepare-failed"), Fix: fault.FixOf(err), Scope: fault.ScopeOf(err), What: "prepare of " + lv.Name + ": " + sandbox.Tail(st.Label(), 120), Err: err}
			}
		}
	}
	if !ran {
		return errNothing
	}
	return nil
}

// upload puts the eval's start files into the workdir.
func (a *attempt) upload(ctx context.Context) error {
	e := a.slot.Eval
	if e.Workspace == "" && len(e.Files) == 0 {
		return errNothing
	}
	if e.Workspace != "" {
		if err := a.sb.UploadDirectory(ctx, e.Workspace, "", sandbox.TransferOptions{Ignore: []string{".git"}}); err != nil {
			return err
		}
	}
	if len(e.Files) == 0 {
		return nil
	}
	files := make([]archive.File, 0, len(e.Files))
	for name, body := range e.Files {
		if !filepath.IsLocal(name) {
			return fault.Configf("eval-files", "Use paths below the workdir.", "file %q of eval %s leaves the workdir", name, e.ID)
		}
		files = append(files, archive.File{Name: path.Clean(filepath.ToSlash(name)), Body: []byte(body)})
	}
	slices.SortFunc(files, func(x, y archive.File) int { return strings.Compare(x.Name, y.Name) })
	return a.sb.WriteFiles(ctx, "", files...)
}

// session makes the n-th conversation.
func (a *attempt) session(phase string) *agent.Session {
	s := &agent.Session{
		Number: len(a.sessions) + 1, Sandbox: a.sb, Scratch: a.scratch, Model: a.slot.Experiment.Def.Model,
		ReasoningEffort: a.slot.Experiment.Def.ReasoningEffort, Flags: a.slot.Experiment.Def.Flags,
		Experiment: a.slot.Ref.Experiment, Eval: a.slot.Ref.Eval, Attempt: a.rec.ID, Ordinal: a.slot.Ref.Ordinal,
		Notes: notes{a, phase}, Solution: a.slot.Eval.Solution, Secrets: map[string]string{},
	}
	if a.tele != nil {
		s.Telemetry = a.tele.sent
	}
	if a.secrets == nil {
		a.red = redact.New(a.loadSecrets()...)
	}
	for _, name := range a.info.SecretEnv {
		if v, ok := a.secrets[name]; ok {
			s.Secrets[name] = v
		}
	}
	if sol := a.slot.Eval.Solution; sol != nil {
		s.SolutionDir = a.slot.Eval.SolutionDir
	}
	a.sessions = append(a.sessions, s)
	return s
}

func (a *attempt) ensure(ctx context.Context) error {
	s := a.session("agent.run")
	a.rec.Agent = &record.AgentInfo{Name: a.info.Name, Version: a.info.Version, Model: s.Model}
	e, ok := a.agent.(agent.Ensurer)
	if !ok {
		return errNothing
	}
	found := make(chan agent.Installed, 1)
	err := Bounded(ctx, func(ctx context.Context) error {
		got, err := e.Ensure(ctx, s)
		found <- got
		return err
	})
	if err != nil {
		return fault.Wrap(err, fault.ClassOf(err), cause(err, "agent-ensure-failed"), "make the agent ready")
	}
	got := <-found
	if got.Version != "" {
		a.rec.Agent.Version = got.Version
	}
	a.rec.Agent.Details = got.Details
	return nil
}

func (a *attempt) evalSetup(ctx context.Context) error {
	e := a.slot.Eval
	for _, c := range e.Teardown {
		a.push(undo{phase: "eval.teardown", code: "eval-teardown-failed", host: c.Host, do: func(ctx context.Context) error { return a.declared(ctx, c) }})
	}
	if len(e.Setup) == 0 {
		return errNothing
	}
	for _, c := range e.Setup {
		if err := a.declared(ctx, c); err != nil {
			return &fault.Error{Class: fault.ClassOf(err), Code: cause(err, "eval-setup-failed"), Fix: fault.FixOf(err), What: "setup of the eval: " + sandbox.Tail(c.Label(), 120), Err: err}
		}
	}
	return nil
}

// rules say what the ledger leaves out.
func (a *attempt) rules() snapshot.Rules {
	return snapshot.Rules{Ignore: append(slices.Clone(a.slot.Eval.Diff.Ignore), a.info.Artifacts...), Include: a.slot.Eval.Diff.Include}
}

// baseline marks the state that is not the agent's work, and the tools that the
// grader will use.
func (a *attempt) baseline(ctx context.Context) error {
	if a.box != nil {
		a.ledger = ledger.Resume(a.sb, a.scratch, a.box.Point)
	} else {
		a.ledger = ledger.Open(a.sb, a.scratch, a.rules())
	}
	// Where the exec server looks itself, both looks travel together.
	shell := func() error { return a.sb.MarkShell(ctx) }
	if a.aside() {
		done := make(chan error, 1)
		go func() { done <- a.guarded(func() error { return a.sb.MarkShell(ctx) }) }()
		shell = sync.OnceValue(func() error { return <-done })
		defer func() { _ = shell() }() // nothing of a phase outlives it
	}
	stats, err := a.ledger.Mark(ctx)
	switch code := fault.CodeOf(err); {
	case err == nil:
		if stats.Special > 0 {
			a.diagnostic("workspace.baseline", sandbox.Diagnostic{Code: "ledger-special-files", Level: sandbox.Warning, Message: fmt.Sprintf("%d sockets, pipes or devices in the workdir are not part of the diff", stats.Special)})
		}
	case code == ledger.CodeUnavailable:
		a.mu.Lock()
		a.noLedger = err
		a.mu.Unlock()
		a.diagnostic("workspace.baseline", sandbox.Diagnostic{Code: "workspace-diff-unavailable", Level: sandbox.Warning, Message: err.Error()})
	default:
		return err
	}
	return shell()
}

// aside reports whether the sandbox answers questions of the ledger and about
// files by itself, without commands: such questions may be asked beside each
// other, and while processes are ended.
func (a *attempt) aside() bool {
	_, tracks := sandbox.As[sandbox.Tracker](a.sb)
	_, digests := sandbox.As[sandbox.Digester](a.sb)
	return tracks && digests
}

func (a *attempt) agentSetup(ctx context.Context) error {
	st, ok := a.agent.(agent.Starter)
	if !ok {
		return errNothing
	}
	s := a.sessions[0]
	a.push(undo{phase: "agent.teardown", code: "agent-teardown-failed", do: func(ctx context.Context) error { return st.Teardown(ctx, s) }})
	if err := Bounded(ctx, func(ctx context.Context) error { return st.Setup(ctx, s) }); err != nil {
		return fault.Wrap(err, fault.ClassOf(err), cause(err, "agent-setup-failed"), "set the agent up")
	}
	return nil
}

// body runs the eval's test.
func (a *attempt) body(ctx context.Context) error {
	a.t = assay.NewT(a)
	patience := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(bodyPatience, func() { close(patience) }) })
	defer stop()
	out := a.t.RunBody(ctx, func(ctx context.Context, t *assay.T) error {
		if err := a.slot.Eval.Body()(ctx, t); err != nil {
			return err
		}
		t.Conclude(ctx)
		return nil
	}, patience)
	a.mu.Lock()
	a.left = true // from here on the attempt is the engine's alone
	a.mu.Unlock()
	a.rec.Skip = out.Skip
	return out.Err
}

// collect gathers the evidence, also after a failure or a timeout: then on a
// budget of its own, as far as the sandbox still answers.
func (a *attempt) collect(ctx context.Context) error {
	if a.t == nil {
		return nil
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = a.closing("evidence-limit", evidenceLimit)
		defer cancel()
	}
	if a.ledger != nil && a.lostLedger() == nil && a.windows > 0 && a.sb.Unusable() == nil {
		if err := a.timed(ctx, "workspace.diff", func(ctx context.Context) error { _, err := a.diff(ctx, 1, a.windows); return err }); err != nil {
			a.lost(err)
		}
	}
	return a.timed(ctx, "assertions.evaluate", func(ctx context.Context) error { a.rec.Checks = a.t.Finish(ctx); return nil })
}

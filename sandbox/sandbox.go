package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"assay/fault"
	"assay/internal/redact"
)

// Sandbox is what everyone but a provider holds: the uniform face of one live
// environment. Paths, environment, bounded output, retries of file operations,
// redaction and evidence are done here, once for all providers. It is safe for
// concurrent use.
//
// Paths: an empty path, "." and an omitted Cwd are the workdir; a relative path
// is below it; an absolute path is itself. "~" and "$HOME" are ordinary
// characters. Relative host paths are below Options.HostDir.
type Sandbox struct {
	d Driver
	o Options

	mu       sync.Mutex
	unusable error
	environ  map[string]map[string]string
	shell    []string
	shellSum string // content of shell[0] as MarkShell saw it
	state    *hookState
}

// Options are the settings of one sandbox's face.
type Options struct {
	// Provider judges the driver's errors; nil leaves them unjudged.
	Provider Provider
	// Env is set for every command; Path is put before PATH, in order.
	Env  map[string]string
	Path []string
	// User is the identity of commands that name none.
	User string
	// HostDir resolves relative host paths; HostRoot, when set, confines them.
	HostDir, HostRoot string
	// Redactor masks summaries and evidence.
	Redactor *redact.Redactor
	// Observe gets each outermost command after it ended. It must be quick.
	Observe func(CommandRecord)
	// Transferred is told of each host file or folder that was uploaded.
	Transferred func(hostPath string)
}

// New returns the face of a driver.
func New(d Driver, o Options) *Sandbox {
	return &Sandbox{d: d, o: o, environ: map[string]map[string]string{}, state: &hookState{}}
}

// Next returns another face of the instance behind prev, for its next user. What
// hooks keep for the instance (see State) and what was learned of it stay.
func Next(prev *Sandbox, o Options) *Sandbox {
	s := New(prev.d, o)
	prev.mu.Lock()
	defer prev.mu.Unlock()
	s.state, s.shell = prev.state, prev.shell
	maps.Copy(s.environ, prev.environ)
	return s
}

// ID is the provider's own identifier of the instance.
func (s *Sandbox) ID() string { return s.d.ID() }

// Workdir is the absolute directory in which the agent works.
func (s *Sandbox) Workdir() string { return s.d.Workdir() }

// Path resolves a sandbox path against the workdir.
func (s *Sandbox) Path(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(s.d.Workdir(), p)
}

// Stop destroys the environment. It is idempotent, and repeated while it fails
// transiently: what is not stopped goes on costing.
func (s *Sandbox) Stop(ctx context.Context) error {
	s.markUnusable(errors.New("it was stopped"))
	return s.repeat(ctx, "stop the sandbox", func() error { return s.d.Stop(ctx) })
}

// Unusable returns why the sandbox must not be used again, or nil.
func (s *Sandbox) Unusable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unusable
}

func (s *Sandbox) markUnusable(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unusable == nil {
		s.unusable = why
	}
}

// CommandOptions are the settings of one command. The zero value runs it in the
// workdir as the sandbox's user until the attempt's deadline.
type CommandOptions struct {
	// Cwd is resolved by the path rules.
	Cwd string
	// Env is merged over the sandbox's; PATH is managed and refused here.
	Env map[string]string
	// User runs this command as another identity.
	User string
	// Timeout is the command's own limit.
	Timeout time.Duration
	// Stdin is the input; nil is empty.
	Stdin io.Reader
	// Stdout and Stderr get the live output besides the result. A slow writer
	// slows the command; it never reorders.
	Stdout, Stderr io.Writer
	// OutputLimit bounds each stream of the result, in bytes; 0 is
	// DefaultOutputLimit.
	OutputLimit int
	// Sensitive values are masked in summaries, evidence and errors.
	Sensitive []string
	// Label replaces the command line in summaries.
	Label string
	// Trusted runs the command for the grader: PATH keeps only directories that
	// the layer names and those outside HOME and the workdir, and git reads
	// neither the user's nor the system's configuration. Shell start-up files
	// are never read.
	Trusted bool
}

// Result is how a command ended. After an error it holds what was known until
// then, with Partial set.
type Result struct {
	Exit
	// Stdout and Stderr hold the head and the tail, with a line that counts
	// what was dropped between them.
	Stdout, Stderr               string
	StdoutDropped, StderrDropped int64
	// Summary is the redacted command line, at most 160 characters.
	Summary  string
	Duration time.Duration
	Partial  bool
}

// CommandRecord is the evidence of one outermost command. Output is kept for
// commands that did not exit 0.
type CommandRecord struct {
	Summary  string        `json:"summary"`
	Cwd      string        `json:"cwd"`
	User     string        `json:"user,omitempty"`
	EnvKeys  []string      `json:"envKeys,omitempty"`
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"durationNs"`
	Exit     *int          `json:"exit,omitempty"` // absent when it never ended
	Signal   string        `json:"signal,omitempty"`
	OOM      bool          `json:"oom,omitempty"`
	Outcome  string        `json:"outcome"` // "ok", "observed", "failed", "error"
	Error    string        `json:"error,omitempty"`
	Stdout   string        `json:"stdout,omitempty"`
	Stderr   string        `json:"stderr,omitempty"`
	Dropped  int64         `json:"dropped,omitempty"`
}

// CommandError is returned for a non-zero exit by the OrThrow operations.
type CommandError struct{ Result Result }

// Error names the command, its exit and the end of what it printed.
func (e *CommandError) Error() string {
	tail := e.Result.Stderr
	if strings.TrimSpace(tail) == "" {
		tail = e.Result.Stdout
	}
	tail = Tail(tail, 240)
	msg := fmt.Sprintf("%s: exit %d", e.Result.Summary, e.Result.Code)
	if e.Result.OOM {
		msg += " (out of memory)"
	} else if e.Result.Signal != "" {
		msg += " (" + e.Result.Signal + ")"
	}
	if tail != "" {
		msg += ": " + tail
	}
	return msg
}

// RunCommand runs an executable with its arguments; nothing interprets them. A
// non-zero exit is a result. Commands are never repeated.
func (s *Sandbox) RunCommand(ctx context.Context, argv []string, opts ...CommandOptions) (Result, error) {
	return s.run(ctx, argv, one(opts), false)
}

// RunCommandOrThrow is RunCommand with an error, code "command-exit", for a
// non-zero exit. The error is a *CommandError underneath.
func (s *Sandbox) RunCommandOrThrow(ctx context.Context, argv []string, opts ...CommandOptions) (Result, error) {
	return s.run(ctx, argv, one(opts), true)
}

// RunShell runs a script through bash, or sh where there is no bash.
func (s *Sandbox) RunShell(ctx context.Context, script string, opts ...CommandOptions) (Result, error) {
	return s.runShell(ctx, script, one(opts), false)
}

// RunShellOrThrow is RunShell with an error for a non-zero exit.
func (s *Sandbox) RunShellOrThrow(ctx context.Context, script string, opts ...CommandOptions) (Result, error) {
	return s.runShell(ctx, script, one(opts), true)
}

// RunDeclared runs a command as a layer or an eval declares it.
func (s *Sandbox) RunDeclared(ctx context.Context, c Command, opts CommandOptions) (Result, error) {
	opts.Cwd, opts.User, opts.Timeout = c.Cwd, c.User, c.Timeout
	opts.Env = merge(opts.Env, c.Env)
	if c.Name != "" {
		opts.Label = c.Name
	}
	if len(c.Argv) > 0 {
		return s.run(ctx, c.Argv, opts, true)
	}
	return s.runShell(ctx, c.Shell, opts, true)
}

// maxInline is the longest script passed on argv: the kernel takes 128 KiB for
// one argument.
const maxInline = 96 << 10

// removeLimit bounds the removal of the file of a longer one.
const removeLimit = 5 * time.Second

func (s *Sandbox) runShell(ctx context.Context, script string, o CommandOptions, throw bool) (Result, error) {
	shell, err := s.Shell(ctx)
	if err != nil {
		return Result{Partial: true}, err
	}
	if o.Label == "" {
		o.Label = script
	}
	if len(script) <= maxInline {
		return s.run(ctx, append(shell, "-c", script), o, throw)
	}
	name := fmt.Sprintf("/tmp/.script-%d.sh", time.Now().UnixNano())
	if err := s.WriteText(ctx, name, script); err != nil {
		return Result{Partial: true}, err
	}
	defer func() { // here, because a script may leave by exit or be ended
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
		defer cancel()
		s.forgetScript(late, name)
	}()
	return s.run(ctx, append(shell, name), o, throw)
}

// forgetScript removes a script's file. It leaves no evidence of its own, and a
// rest in /tmp harms nobody.
func (s *Sandbox) forgetScript(ctx context.Context, name string) {
	if r, ok := As[Remover](s); ok {
		_ = r.Remove(ctx, name)
		return
	}
	_, _ = s.d.Exec(ctx, Cmd{Argv: []string{"rm", "-f", "--", name}, Dir: "/", User: s.o.User})
}

// Shell returns the absolute shell that scripts run with, and its options: bash
// without start-up files, or sh. It is found once; the engine asks before the
// agent runs, so that an agent cannot choose it.
func (s *Sandbox) Shell(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	found := s.shell
	s.mu.Unlock()
	if found != nil {
		return append([]string(nil), found...), nil
	}
	found, err := s.findShell(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.shell = found
	s.mu.Unlock()
	return append([]string(nil), found...), nil
}

var bashOptions = []string{"--noprofile", "--norc"}

func (s *Sandbox) findShell(ctx context.Context) ([]string, error) {
	for _, p := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh"} {
		ok, err := s.PathExists(ctx, p)
		if err != nil {
			return nil, err
		}
		if ok && strings.HasSuffix(p, "bash") {
			return append([]string{p}, bashOptions...), nil
		}
		if ok {
			return []string{p}, nil
		}
	}
	return nil, fault.Configf("sandbox.no-shell", "Use an image that has bash or sh, or write the command with argv instead of a script.", "the sandbox has neither bash nor sh")
}

// baseEnv returns the environment of a user as the driver reports it.
func (s *Sandbox) baseEnv(ctx context.Context, user string) (map[string]string, error) {
	s.mu.Lock()
	env, ok := s.environ[user]
	s.mu.Unlock()
	if ok {
		return env, nil
	}
	env = map[string]string{}
	if e, ok := As[Environer](s); ok {
		var err error
		if env, err = e.Environ(ctx, user); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.environ[user] = env
	s.mu.Unlock()
	return env, nil
}

// systemPath is the PATH of environments that declare none.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ returns the complete managed environment of commands of a user; ""
// is the sandbox's own.
func (s *Sandbox) Environ(ctx context.Context, user string) (map[string]string, error) {
	if user == "" {
		user = s.o.User
	}
	base, err := s.baseEnv(ctx, user)
	if err != nil {
		return nil, err
	}
	env := merge(maps.Clone(base), s.o.Env)
	if env == nil {
		env = map[string]string{}
	}
	dirs := env["PATH"]
	if dirs == "" {
		dirs = systemPath
	}
	if !strings.Contains(":"+dirs+":", ":/usr/local/bin:") {
		// Globally installed npm binaries are always visible.
		dirs += ":/usr/local/bin"
	}
	if len(s.o.Path) > 0 {
		dirs = strings.Join(s.o.Path, ":") + ":" + dirs
	}
	env["PATH"] = dirs
	return env, nil
}

// trusted returns env without what a command run earlier could have planted.
func (s *Sandbox) trusted(env map[string]string) map[string]string {
	env = maps.Clone(env)
	var dirs []string
	for dir := range strings.SplitSeq(env["PATH"], ":") {
		below := func(root string) bool {
			return root != "" && root != "/" && (dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/"))
		}
		named := slices.Contains(s.o.Path, dir)
		if named || path.IsAbs(dir) && !below(env["HOME"]) && !below(s.Workdir()) && !below("/tmp") {
			dirs = append(dirs, dir)
		}
	}
	env["PATH"] = strings.Join(dirs, ":")
	env["GIT_CONFIG_GLOBAL"], env["GIT_CONFIG_NOSYSTEM"] = "/dev/null", "1"
	// A repository's own configuration is read by git all the same; at least it
	// starts no program for a look at the status.
	env["GIT_CONFIG_COUNT"], env["GIT_CONFIG_KEY_0"], env["GIT_CONFIG_VALUE_0"] = "1", "core.fsmonitor", "false"
	for _, k := range []string{"BASH_ENV", "ENV", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "NODE_OPTIONS", "PROMPT_COMMAND"} {
		if _, declared := s.o.Env[k]; !declared {
			delete(env, k)
		}
	}
	return env
}

// MarkShell finds the shell and remembers its content, so that VerifyShell can
// tell later whether it was replaced. The engine calls it before the agent runs.
func (s *Sandbox) MarkShell(ctx context.Context) error {
	shell, err := s.Shell(ctx)
	if fault.CodeOf(err) == "sandbox.no-shell" {
		return nil // commands with argv still work
	}
	if err != nil {
		return err
	}
	d, ok := As[Digester](s)
	if !ok {
		return nil
	}
	sums, err := d.Digest(ctx, shell[:1])
	if err != nil {
		return s.judge(ctx, err, "look at "+shell[0])
	}
	s.mu.Lock()
	s.shellSum = sums[0]
	s.mu.Unlock()
	return nil
}

// VerifyShell returns an error, code "grader-shell-changed", when the shell that
// checks run with is not the one that MarkShell saw.
func (s *Sandbox) VerifyShell(ctx context.Context) error {
	s.mu.Lock()
	want, shell := s.shellSum, s.shell
	s.mu.Unlock()
	if want == "" || len(shell) == 0 {
		return nil
	}
	d, ok := As[Digester](s)
	if !ok {
		return nil
	}
	sums, err := d.Digest(ctx, shell[:1])
	if err != nil {
		return s.judge(ctx, err, "look at "+shell[0])
	}
	if sums[0] != want {
		return &fault.Error{Code: "grader-shell-changed", What: "the shell " + shell[0] + " was replaced or removed while the agent ran, so checks cannot trust it", Fix: "Run the agent as a user that cannot write system files (`user:` of the sandbox)."}
	}
	return nil
}

func (s *Sandbox) run(ctx context.Context, argv []string, o CommandOptions, throw bool) (Result, error) {
	red := s.o.Redactor
	if len(o.Sensitive) > 0 {
		red = red.With(o.Sensitive...)
	}
	label := o.Label
	if label == "" {
		label = Summary(argv)
	}
	res := Result{Summary: clip(Clean(red.String(label)), 160), Partial: true}
	if len(argv) == 0 || argv[0] == "" {
		return res, fault.Configf("command-empty", "Name an executable.", "an empty command cannot run")
	}
	if _, ok := o.Env["PATH"]; ok {
		return res, fault.Configf("command-path-managed", "Use `path:` of the sandbox layer (Layer.Path) to put directories before PATH.", "PATH is managed by the sandbox and cannot be set for one command")
	}
	if why := s.Unusable(); why != nil {
		return res, &fault.Error{Code: "sandbox-unusable", What: "run " + res.Summary, Err: fmt.Errorf("%w: %w", ErrUnusable, why)}
	}
	user := o.User
	if user == "" {
		user = s.o.User
	}
	env, err := s.Environ(ctx, user)
	if err != nil {
		return res, s.judge(ctx, err, "run "+res.Summary)
	}
	if o.Trusted {
		env = s.trusted(env)
	}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = fault.WithTimeout(ctx, "command-timeout", o.Timeout, "command")
		defer cancel()
	}
	limit := o.OutputLimit
	if limit == 0 {
		limit = DefaultOutputLimit
	}
	stdout, stderr := NewOutput(limit), NewOutput(limit)
	start := time.Now()
	exit, err := s.d.Exec(ctx, Cmd{
		Argv: argv, Dir: s.Path(o.Cwd), Env: merge(env, o.Env), User: user, Stdin: o.Stdin,
		Stdout: tee(stdout, o.Stdout), Stderr: tee(stderr, o.Stderr),
	})
	res.Exit, res.Duration, res.Partial = exit, time.Since(start), err != nil
	res.Stdout, res.Stderr = stdout.String(), stderr.String()
	res.StdoutDropped, res.StderrDropped = stdout.Dropped(), stderr.Dropped()
	if err != nil {
		err = s.judge(ctx, err, res.Summary)
	} else if throw && exit.Code != 0 {
		masked := res
		masked.Stdout, masked.Stderr = red.String(res.Stdout), red.String(res.Stderr)
		err = &fault.Error{Code: "command-exit", Err: &CommandError{Result: masked}}
	}
	s.observe(res, o, user, start, err, red)
	return res, err
}

func (s *Sandbox) observe(res Result, o CommandOptions, user string, start time.Time, err error, red *redact.Redactor) {
	if s.o.Observe == nil {
		return
	}
	rec := CommandRecord{Summary: res.Summary, Cwd: s.Path(o.Cwd), User: user, Start: start, Duration: res.Duration, Signal: res.Signal, OOM: res.OOM, Outcome: "ok"}
	for k := range o.Env {
		rec.EnvKeys = append(rec.EnvKeys, k)
	}
	if !res.Partial {
		code := res.Code
		rec.Exit = &code
		if code != 0 {
			rec.Outcome = "observed"
		}
	}
	if err != nil {
		rec.Outcome = "failed"
		if res.Partial {
			rec.Outcome = "error"
		}
		rec.Error = clip(Clean(red.String(err.Error())), 1024)
	}
	if rec.Outcome != "ok" {
		rec.Stdout, rec.Stderr, rec.Dropped = red.String(res.Stdout), red.String(res.Stderr), res.StdoutDropped+res.StderrDropped
	}
	s.o.Observe(rec)
}

// judge wraps a driver's error with its class and what was being done.
func (s *Sandbox) judge(ctx context.Context, err error, what string) error {
	if errors.Is(err, ErrUnusable) {
		s.markUnusable(err) // whatever operation met it first
	}
	j := Judge(ctx, s.o.Provider, err)
	out := *j
	if j.What != "" || j == err {
		out = fault.Error{Class: j.Class, Code: j.Code, Stage: j.Stage, Fix: j.Fix, Scope: j.Scope, Err: err}
	}
	out.What = what
	if cause := fault.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		out.Err = fmt.Errorf("%w: %w", cause, err)
	}
	if out.Code == "" {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out.Code = "not-found"
		case errors.Is(err, fs.ErrPermission):
			out.Code = "permission-denied"
		case errors.Is(err, ErrUnusable):
			out.Code = "sandbox-unusable"
		default:
			out.Code = "sandbox-io"
		}
	}
	return &out
}

// EndProcesses ends what commands left running and tells what it was. A driver
// without that power reports an error with code "processes-unsupported".
func (s *Sandbox) EndProcesses(ctx context.Context) ([]Process, error) {
	p, ok := As[ProcessEnder](s)
	if !ok {
		return nil, &fault.Error{Code: "processes-unsupported", What: "this sandbox cannot list or end its processes"}
	}
	ps, err := p.EndProcesses(ctx)
	if err != nil {
		return ps, s.judge(ctx, err, "end the processes left running")
	}
	return ps, nil
}

func tee(o *Output, live io.Writer) io.Writer {
	if live == nil {
		return o
	}
	return io.MultiWriter(o, live)
}

func one(opts []CommandOptions) CommandOptions {
	switch len(opts) {
	case 0:
		return CommandOptions{}
	case 1:
		return opts[0]
	default:
		panic("sandbox: at most one CommandOptions")
	}
}

func merge(base, over map[string]string) map[string]string {
	if len(over) == 0 {
		return base
	}
	out := make(map[string]string, len(base)+len(over))
	maps.Copy(out, base)
	maps.Copy(out, over)
	return out
}

// Summary renders an argument vector on one line, quoted where a shell would
// need it, at most 160 characters.
func Summary(argv []string) string {
	var b strings.Builder
	for i, a := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(Word(a))
		if b.Len() > 400 {
			break
		}
	}
	return clip(Clean(b.String()), 160)
}

// Clean makes text from a sandbox fit for one line of a terminal: escape
// sequences, control and bidirectional characters are removed, white space is
// folded, invalid UTF-8 is replaced.
func Clean(s string) string {
	return strings.Join(strings.Fields(StripControl(s)), " ")
}

// StripControl removes escape sequences, control characters other than newline
// and tab, and bidirectional overrides, and replaces invalid UTF-8.
func StripControl(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == 0x1b || r == 0x9b {
			i += n + escapeLength(s[i+n:], r)
			continue
		}
		i += n
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0:
		case r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c:
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// escapeLength is the length of an ECMA-48 escape sequence after its
// introducer.
func escapeLength(s string, intro rune) int {
	i := 0
	if intro == 0x1b {
		if s == "" {
			return 0
		}
		switch s[0] {
		case '[':
			i = 1
		case ']', 'P', '_', '^', 'X': // string sequences end with BEL or ESC \
			for j := 1; j < len(s); j++ {
				if s[j] == 0x07 {
					return j + 1
				}
				if s[j] == 0x1b {
					if j+1 < len(s) && s[j+1] == '\\' {
						return j + 2
					}
					return j
				}
			}
			return len(s)
		default:
			if s[0] < 0x20 || s[0] > 0x7e {
				return 0
			}
			for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f {
				i++
			}
			return min(i+1, len(s))
		}
	}
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x3f {
		i++
	}
	if i < len(s) && s[i] >= 0x40 && s[i] <= 0x7e {
		i++
	}
	return i
}

// Tail returns the last n characters of s, cleaned to one line.
func Tail(s string, n int) string {
	if len(s) > 8*n {
		s = s[len(s)-8*n:]
	}
	r := []rune(Clean(s))
	if len(r) > n {
		return "…" + string(r[len(r)-n+1:])
	}
	return string(r)
}

func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// Word renders one argument as a person would type it in a POSIX shell: quoted
// only where the shell needs it.
func Word(a string) string {
	if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`;&|<>(){}*?[]#~!") {
		return Quote([]string{a})
	}
	return a
}

// Quote renders an argument vector as a POSIX shell command that runs exactly
// it.
func Quote(argv []string) string {
	q := make([]string, len(argv))
	for i, a := range argv {
		q[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(q, " ")
}

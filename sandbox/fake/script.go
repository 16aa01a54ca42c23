package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"

	"assay/fault"
)

// Script says what a fake sandbox holds, how commands answer and what goes
// wrong. The zero value is a plain sandbox in which everything works.
type Script struct {
	// User is the default identity; empty means "user" with uid 1000.
	User string `yaml:"user,omitempty" json:"user,omitempty"`
	// Workdir is the working directory; empty means "workspace" in the home of
	// the default user.
	Workdir string `yaml:"workdir,omitempty" json:"workdir,omitempty"`
	// Users are further identities. root and user always exist.
	Users []User `yaml:"users,omitempty" json:"users,omitempty"`
	// Files are texts by path; relative ones are below the workdir.
	Files map[string]string `yaml:"files,omitempty" json:"files,omitempty"`
	// Commands are canned answers. The first that matches a program with its
	// arguments answers instead of the simulation, wherever the program is
	// started: by the caller or by a script.
	Commands []Response `yaml:"commands,omitempty" json:"commands,omitempty"`
	// Faults are what goes wrong. They are no content and change no key.
	Faults Faults `yaml:"faults,omitempty" json:"-"`
}

// User is an identity of a fake sandbox.
type User struct {
	Name string `yaml:"name" json:"name"`
	UID  int    `yaml:"uid" json:"uid"`
	// Home is the home directory; empty means /home/NAME.
	Home string `yaml:"home,omitempty" json:"home,omitempty"`
}

// Response is a canned answer to a command.
type Response struct {
	// Match is a regular expression on the arguments joined by spaces; Argv is
	// the exact argument vector. Exactly one of them is set.
	Match string   `yaml:"match,omitempty" json:"match,omitempty"`
	Argv  []string `yaml:"argv,omitempty" json:"argv,omitempty"`
	// Stdout and Stderr are printed after Delay.
	Stdout string `yaml:"stdout,omitempty" json:"stdout,omitempty"`
	Stderr string `yaml:"stderr,omitempty" json:"stderr,omitempty"`
	Exit   int    `yaml:"exit,omitempty" json:"exit,omitempty"`
	// OOM reports that memory ran out; the exit is then a SIGKILL.
	OOM   bool          `yaml:"oom,omitempty" json:"oom,omitempty"`
	Delay time.Duration `yaml:"delay,omitempty" json:"delay,omitempty"`
	// Hang never answers.
	Hang bool `yaml:"hang,omitempty" json:"hang,omitempty"`
	// Writes and Deletes change files before the command ends; relative paths
	// are below the command's directory.
	Writes  map[string]string `yaml:"writes,omitempty" json:"writes,omitempty"`
	Deletes []string          `yaml:"deletes,omitempty" json:"deletes,omitempty"`
	// Times bounds how often the answer is given in one sandbox; 0 is no bound.
	// Afterwards later answers get their turn.
	Times int `yaml:"times,omitempty" json:"times,omitempty"`

	re *regexp.Regexp
}

// Faults are what goes wrong, by operation.
type Faults struct {
	Check   Fault `yaml:"check,omitempty"`
	Prepare Fault `yaml:"prepare,omitempty"`
	// Create fails after the instance exists, and removes it again.
	Create Fault `yaml:"create,omitempty"`
	Exec   Fault `yaml:"exec,omitempty"`
	Put    Fault `yaml:"put,omitempty"`
	Get    Fault `yaml:"get,omitempty"`
	Stop   Fault `yaml:"stop,omitempty"`
	// VanishAfter lets a sandbox disappear after so many commands; 0 is never.
	VanishAfter int `yaml:"vanishAfter,omitempty"`
	// Lifetime is how asking for a longer life fails.
	Lifetime Fault `yaml:"lifetime,omitempty"`
	// MaxLifetime bounds the life of every sandbox, as a service does that caps
	// it: asking for more at its birth fails, and later it gets no more; 0 is no
	// bound.
	MaxLifetime time.Duration `yaml:"maxLifetime,omitempty"`
}

// Fault is how one operation fails. The zero value never fails. Counts run over
// all sandboxes of a provider.
type Fault struct {
	// Transient, Transport and Fail let the first n calls fail: with an error
	// of class transient, with a broken connection, with an unjudged error.
	Transient int `yaml:"transient,omitempty"`
	Transport int `yaml:"transport,omitempty"`
	Fail      int `yaml:"fail,omitempty"`
	// Config and Resource let every call fail with this text and class. A resource
	// is the disk where the text says so, else memory.
	Config   string `yaml:"config,omitempty"`
	Resource string `yaml:"resource,omitempty"`
	// Class lets the first Times calls (0: all) fail with that class: "config",
	// "transient", "resource" or "unknown".
	Class string `yaml:"class,omitempty"`
	Times int    `yaml:"times,omitempty"`
	// Stage names the step of Prepare that fails; empty means "prepare".
	Stage string `yaml:"stage,omitempty"`
	// Stall lets every call stand still until its context ends.
	Stall bool `yaml:"stall,omitempty"`
}

// ReadScript reads a script file. Unknown fields are errors.
func ReadScript(file string) (Script, error) {
	var s Script
	b, err := os.ReadFile(file)
	if err != nil {
		return s, &fault.Error{Class: fault.Config, Code: "sandbox.fake-script", What: "read the script of the fake sandbox", Err: err, Fix: "Name an existing file in `fake: {script: ...}`."}
	}
	if len(strings.TrimSpace(string(b))) > 0 {
		if err := yaml.UnmarshalWithOptions(b, &s, yaml.Strict()); err != nil {
			return s, &fault.Error{Class: fault.Config, Code: "sandbox.fake-script", What: filepath.Base(file), Err: err, Fix: "Correct the script of the fake sandbox."}
		}
	}
	return s, s.compile()
}

// compile checks a script and prepares its expressions.
func (s *Script) compile() error {
	bad := func(format string, args ...any) error {
		return fault.Configf("sandbox.fake-script", "Correct the script of the fake sandbox.", format, args...)
	}
	s.Commands = slices.Clone(s.Commands)
	for i := range s.Commands {
		c := &s.Commands[i]
		if (c.Match == "") == (len(c.Argv) == 0) {
			return bad("command %d needs either match or argv", i+1)
		}
		if c.Exit < 0 || c.Exit > 255 {
			return bad("command %d exits with %d, which is no exit code", i+1, c.Exit)
		}
		if c.Match != "" {
			re, err := regexp.Compile(c.Match)
			if err != nil {
				return bad("command %d: %v", i+1, err)
			}
			c.re = re
		}
	}
	if s.Workdir != "" && !path.IsAbs(s.Workdir) {
		return bad("the workdir %q is not absolute", s.Workdir)
	}
	for _, f := range []Fault{s.Faults.Check, s.Faults.Prepare, s.Faults.Create, s.Faults.Exec, s.Faults.Put, s.Faults.Get, s.Faults.Stop, s.Faults.Lifetime} {
		if _, ok := classes[f.Class]; !ok {
			return bad("there is no fault class %q", f.Class)
		}
	}
	return nil
}

var classes = map[string]fault.Class{"": fault.Unknown, "unknown": fault.Unknown, "config": fault.Config, "transient": fault.Transient, "resource": fault.Resource}

// failure is an error that a script ordered. Classify knows it.
type failure struct {
	class fault.Class
	text  string
}

func (f *failure) Error() string { return f.text }

// trip counts the calls of one operation and fails those that the script wants
// to fail.
type trip struct {
	mu    sync.Mutex
	calls int
	// reached is closed when a call stands still; it may be nil.
	reached chan struct{}
	stalled sync.Once
}

// next counts a call and returns how it fails, or nil.
func (t *trip) next(ctx context.Context, op string, f Fault) error {
	t.mu.Lock()
	t.calls++
	n := t.calls
	t.mu.Unlock()
	failed := func(class fault.Class, text string) error {
		code := "sandbox.fake-" + op
		if class == fault.Resource {
			code = ranOut(text)
		}
		return &fault.Error{
			Code: code, What: op, Err: &failure{class, text},
			Fix: "Remove the fault `" + op + "` from the script of the fake sandbox.",
		}
	}
	switch {
	case f.Stall:
		t.stalled.Do(func() {
			if t.reached != nil {
				close(t.reached)
			}
		})
		<-ctx.Done()
		return context.Cause(ctx)
	case n <= f.Transient:
		return failed(fault.Transient, "the service is overloaded")
	case n <= f.Transport:
		return failed(fault.Transient, "the connection was reset")
	case n <= f.Fail:
		return failed(fault.Unknown, "it did not work")
	case f.Config != "":
		return failed(fault.Config, f.Config)
	case f.Resource != "":
		return failed(fault.Resource, f.Resource)
	case f.Class != "" && (f.Times == 0 || n <= f.Times):
		return failed(classes[f.Class], "failed as scripted ("+f.Class+")")
	}
	return nil
}

// ranOut is the code of what a failure of class resource says ran out.
func ranOut(text string) string {
	for _, w := range []string{"enospc", "disk", "space"} {
		if strings.Contains(strings.ToLower(text), w) {
			return "enospc"
		}
	}
	return "oom"
}

func (t *trip) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls
}

// scripted answers a command as the script says.
func (p *proc) scripted(argv []string) (int, bool) {
	line := strings.Join(argv, " ")
	for i := range p.m.script.Commands {
		r := &p.m.script.Commands[i]
		if r.re != nil && r.re.MatchString(line) || r.re == nil && slices.Equal(r.Argv, argv) {
			if p.m.use(i, r.Times) {
				return p.answer(r), true
			}
		}
	}
	return 0, false
}

func (p *proc) answer(r *Response) int {
	if r.Hang {
		<-p.ctx.Done()
		return 137
	}
	if r.Delay > 0 && !p.sleep(r.Delay) {
		return 137
	}
	for name, body := range r.Writes {
		full := path.Clean(p.abs(name))
		err := p.m.tree.mkdirAll(path.Dir(full), 0o755, p.cred())
		if err == nil {
			err = p.m.tree.place(full, []byte(body), 0o644, p.cred())
		}
		if err != nil {
			p.complain([]string{"script"}, err)
			return 1
		}
	}
	for _, name := range r.Deletes {
		if err := p.m.tree.removeAll(path.Clean(p.abs(name)), p.cred()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.complain([]string{"script"}, err)
			return 1
		}
	}
	p.print(1, r.Stdout)
	p.print(2, r.Stderr)
	if r.OOM {
		p.oom = true
		p.signal(9)
		return 137
	}
	return r.Exit
}

// errGone is why a sandbox that vanished cannot be used.
var errGone = errors.New("the instance does not exist any more")

func scriptPath(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

func unknownUser(name string) error {
	return &fault.Error{Class: fault.Config, Code: "sandbox.user-unknown", What: fmt.Sprintf("there is no user %q in the sandbox", name), Fix: "Name the user in `users:` of the script."}
}

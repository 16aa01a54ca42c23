package sandboxtest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/snapshot"
	"assay/sandbox"
	"assay/sandbox/fake"
	"assay/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var serial atomic.Int64

// sins break one promise each; the promise's test must notice.
func sins() map[string]func(*sinner) {
	all := map[string]func(*sinner){}
	for _, group := range []map[string]func(*sinner){providerSins(), execSins(), treeSins(), fileSins(), stopSins(), powerSins(), faceSins()} {
		for k, v := range group {
			all[k] = v
		}
	}
	return all
}

func providerSins() map[string]func(*sinner) {
	return map[string]func(*sinner){
		"info-is-pure": func(s *sinner) {
			s.info = func(i sandbox.Info) sandbox.Info { i.Concurrency = int(serial.Add(1)); return i }
		},
		"key-is-deterministic": func(s *sinner) {
			s.key = func(sandbox.Key) sandbox.Key { return sandbox.Key(fmt.Sprint(serial.Add(1))) }
		},
		"key-follows-content":    func(s *sinner) { s.key = func(sandbox.Key) sandbox.Key { return "same" } },
		"check-passes":           func(s *sinner) { s.check = func(error) error { return errors.New("down") } },
		"check-names-the-remedy": func(s *sinner) { s.check = func(error) error { return errors.New("401") } },
		"prepare-is-idempotent": func(s *sinner) {
			s.prepare = func(context.Context, sandbox.Provider, sandbox.Template, sandbox.Steps) (sandbox.Prepared, error) {
				return sandbox.Prepared{Ref: fmt.Sprint(serial.Add(1))}, nil
			}
		},
		"prepare-classes": func(s *sinner) { // the work runs outside of Steps.Do
			s.prepare = func(ctx context.Context, p sandbox.Provider, t sandbox.Template, _ sandbox.Steps) (sandbox.Prepared, error) {
				return p.Prepare(ctx, t, sandbox.Harness{}, direct{})
			}
		},
		"prepare-classes/unjudged": func(s *sinner) { s.classify = func(error) fault.Class { return fault.Unknown } },
		"prepare-obeys-cancel": func(s *sinner) {
			s.prepare = func(context.Context, sandbox.Provider, sandbox.Template, sandbox.Steps) (sandbox.Prepared, error) {
				return sandbox.Prepared{Ref: "x"}, nil
			}
		},
		"create-failure-leaves-nothing": func(s *sinner) { s.instances = func([]string) []string { return []string{"left"} } },
		"create-cancel-leaves-nothing":  func(s *sinner) { s.instances = func([]string) []string { return []string{"left"} } },
		"owner-labels-from-birth":       func(s *sinner) { s.create = func(r *sandbox.CreateRequest) { r.Owner.Run = "" } },
		"owner-labels-from-birth/token": func(s *sinner) { s.create = func(r *sandbox.CreateRequest) { r.Owner.Token = "" } },
		"classify-judges-only-its-own":  func(s *sinner) { s.classify = func(error) fault.Class { return fault.Transient } },
	}
}

// direct is a Steps that keeps no account.
type direct struct{}

func (direct) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

func execSins() map[string]func(*sinner) {
	var running atomic.Int64
	return map[string]func(*sinner){
		"exec-exit-is-a-result": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			if e.Code == 124 {
				err = context.DeadlineExceeded
			}
			return e, err
		}),
		"exec-signal-is-a-result": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			e.Signal = ""
			return e, err
		}),
		"exec-127-and-126": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			if e.Code == 127 {
				err = errors.New("executable not found")
			}
			return e, err
		}),
		"exec-argv-is-exact": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Argv = []string{"/bin/sh", "-c", strings.Join(c.Argv, " ")}
			return d.Exec(ctx, c)
		}),
		"exec-env": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Env = nil
			return d.Exec(ctx, c)
		}),
		"exec-dir": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Dir = d.Workdir()
			return d.Exec(ctx, c)
		}),
		"exec-no-stdin-is-empty": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			if c.Stdin == nil {
				c.Stdin = strings.NewReader("terminal")
			}
			return d.Exec(ctx, c)
		}),
		"exec-stdin-is-exact": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			if c.Stdin != nil {
				c.Stdin = io.LimitReader(c.Stdin, 64<<10)
			}
			return d.Exec(ctx, c)
		}),
		"exec-unread-stdin-does-not-hang": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			if r, ok := c.Stdin.(*bytes.Reader); ok && r.Len() > 0 {
				err = errors.New("broken pipe")
			}
			return e, err
		}),
		"exec-streams-apart-and-in-order": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Stderr = c.Stdout
			return d.Exec(ctx, c)
		}),
		"exec-output-is-bytes": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Stdout = decoding{c.Stdout}
			return d.Exec(ctx, c)
		}),
		"exec-large-output": cutOutput,
		"exec-parallel": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			running.Add(1)
			e, err := d.Exec(ctx, c)
			if running.Load() > 1 {
				e.Code = 0 // somebody else's
			}
			if ctx.Err() == nil && e.Code > 15 {
				running.Add(-1)
			}
			return e, err
		}),
		"exec-user": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.User = ""
			return d.Exec(ctx, c)
		}),
		"exec-transport-failure-is-an-error": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, _ := d.Exec(ctx, c)
			return e, nil
		}),
		"exec-vanished-sandbox-is-unusable": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			if err != nil {
				err = errors.New("no such container")
			}
			return e, err
		}),
		"exec-view-is-neutral": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Env["ASSAY_SANDBOX"] = "1"
			return d.Exec(ctx, c)
		}),
	}
}

// decoding replaces what is no UTF-8.
type decoding struct{ w io.Writer }

func (d decoding) Write(b []byte) (int, error) {
	_, err := io.WriteString(d.w, strings.ToValidUTF8(string(b), "\ufffd"))
	return len(b), err
}

// limited drops everything after n bytes.
type limited struct {
	mu sync.Mutex
	w  io.Writer
	n  int
}

func (l *limited) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := min(len(b), l.n)
	l.n -= k
	_, err := l.w.Write(b[:k])
	return len(b), err
}

func cutOutput(s *sinner) {
	s.exec = func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
		c.Stdout = &limited{w: c.Stdout, n: 64 << 10}
		return d.Exec(ctx, c)
	}
}

// detached leaves a cancelled command running.
func detached(s *sinner) {
	s.exec = func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
		type result struct {
			e   sandbox.Exit
			err error
		}
		done := make(chan result, 1)
		go func() {
			e, err := d.Exec(context.WithoutCancel(ctx), c)
			done <- result{e, err}
		}()
		select {
		case r := <-done:
			return r.e, r.err
		case <-ctx.Done():
			return sandbox.Exit{}, ctx.Err()
		}
	}
}

func enderOf(d sandbox.Driver) sandbox.ProcessEnder {
	p, _ := sandbox.AsDriver[sandbox.ProcessEnder](d)
	return p
}

func asExit(code int) func(*sinner) {
	return executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
		e, err := d.Exec(ctx, c)
		if err != nil {
			e, err = sandbox.Exit{Code: code}, nil
		}
		return e, err
	})
}

func treeSins() map[string]func(*sinner) {
	return map[string]func(*sinner){
		"exec-background-does-not-hang": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			if ps, _ := enderOf(d).Processes(ctx); len(ps) > 0 {
				err = errors.New("the stream is still open")
			}
			return e, err
		}),
		"exec-background-survives": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			e, err := d.Exec(ctx, c)
			if c.Env["ST_MARK"] != "" {
				// The service is ended and its trace is forged.
				_, _ = enderOf(d).EndProcesses(ctx)
				c.Argv[2] = `echo x >"$1/hb"`
				_, _ = d.Exec(ctx, c)
			}
			return e, err
		}),
		"exec-timeout-is-an-error":          asExit(124),
		"exec-cancel-is-an-error":           asExit(130),
		"exec-cancel-ends-the-tree":         detached,
		"exec-writers-are-quiet-afterwards": detached,
		"exec-known-status-wins": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			_, _ = d.Exec(ctx, c)
			return sandbox.Exit{Code: 7}, ctx.Err()
		}),
	}
}

func swallowPut(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
	_ = d.Put(ctx, dir, r)
	return nil
}

func fileSins() map[string]func(*sinner) {
	as := func(ctx context.Context, d sandbox.Driver, user string, argv ...string) {
		_, _ = d.Exec(ctx, sandbox.Cmd{Argv: argv, Dir: "/", User: user})
	}
	n := 0
	return map[string]func(*sinner){
		"files-round-trip":               putting(func(h *tar.Header, _ *[]byte) bool { h.Mode = 0o644; return true }),
		"files-round-trip/empty-folders": putting(func(h *tar.Header, _ *[]byte) bool { return h.Typeflag != tar.TypeDir }),
		"files-odd-names": putting(func(h *tar.Header, _ *[]byte) bool {
			h.Name = strings.TrimSpace(h.Name)
			return true
		}),
		"files-many": putting(func(*tar.Header, *[]byte) bool { n++; return n != 1200 }),
		"files-large": putting(func(_ *tar.Header, body *[]byte) bool {
			*body = (*body)[:min(len(*body), 1<<20)]
			return true
		}),
		"put-replaces": func(s *sinner) {
			seen := map[string]bool{}
			putting(func(h *tar.Header, _ *[]byte) bool { old := seen[h.Name]; seen[h.Name] = true; return !old })(s)
		},
		"put-makes-the-directory": func(s *sinner) {
			s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
				if err := d.Get(ctx, dir, io.Discard); err != nil {
					return err
				}
				return d.Put(ctx, dir, r)
			}
		},
		"put-belongs-to-the-user": func(s *sinner) {
			s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
				err := d.Put(ctx, dir, r)
				as(ctx, d, "root", "chown", "-R", "root", dir)
				return err
			}
		},
		"put-strips-setuid": func(s *sinner) {
			s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
				err := d.Put(ctx, dir, r)
				as(ctx, d, "root", "chmod", "6755", dir+"/tool")
				return err
			}
		},
		"put-refuses-hostile-archives": func(s *sinner) { s.put = swallowPut },
		"put-refuses-hostile-archives/followed": func(s *sinner) {
			s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
				changed, err := rewrite(r, func(h *tar.Header, _ *[]byte) bool {
					if h.Typeflag == tar.TypeReg && strings.HasPrefix(h.Name, "../") {
						as(ctx, d, "root", "sh", "-c", `echo evil >"$1"`, "sh", path.Join(dir, "..", h.Name))
						as(ctx, d, "root", "sh", "-c", `echo evil >"$1"`, "sh", path.Join(dir, h.Name))
					}
					return true
				})
				if err != nil {
					return err
				}
				return d.Put(ctx, dir, changed)
			}
		},
		"put-cut-stream-leaves-no-partial-file": func(s *sinner) {
			s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
				err := d.Put(ctx, dir, r)
				if err != nil {
					as(ctx, d, "root", "touch", dir+"/cut")
				}
				return err
			}
		},
		"put-transport-failure-is-an-error": func(s *sinner) { s.put = swallowPut },
		"get-one-file": getting(func(h *tar.Header, _ *[]byte) bool {
			h.Name = "home/" + h.Name
			return true
		}),
		"get-never-follows-links": getting(func(h *tar.Header, _ *[]byte) bool { return h.Typeflag != tar.TypeSymlink }),
		"get-missing-does-not-exist": func(s *sinner) {
			s.get = func(ctx context.Context, d sandbox.Driver, p string, w io.Writer) error {
				if err := d.Get(ctx, p, w); err != nil {
					return errors.New("exit status 1")
				}
				return nil
			}
		},
		"get-transport-failure-is-not-missing": func(s *sinner) {
			s.get = func(ctx context.Context, d sandbox.Driver, p string, w io.Writer) error {
				if err := d.Get(ctx, p, w); err != nil {
					return fs.ErrNotExist
				}
				return nil
			}
		},
		"get-failing-reader-is-an-error": func(s *sinner) {
			s.get = func(ctx context.Context, d sandbox.Driver, p string, w io.Writer) error {
				var buf bytes.Buffer
				err := d.Get(ctx, p, &buf)
				_, _ = w.Write(buf.Bytes())
				return err
			}
		},
	}
}

func stopSins() map[string]func(*sinner) {
	return map[string]func(*sinner){
		"stop-removes-the-instance": func(s *sinner) {
			s.stop = func(context.Context, sandbox.Driver, int) error { return nil }
		},
		"stop-is-idempotent": secondStopFails,
		"stop-ends-a-running-command": func(s *sinner) {
			asExit(0)(s)
		},
		"stop-is-bounded": func(s *sinner) {
			s.stop = func(ctx context.Context, d sandbox.Driver, _ int) error { _ = d.Stop(ctx); return nil }
		},
		"stop-leaves-no-goroutine": func(s *sinner) {
			s.create = func(*sandbox.CreateRequest) {
				end, done := make(chan struct{}), make(chan struct{})
				go func() { <-end; close(done) }()
				s.cleanup(func() { close(end); <-done })
			}
		},
		"stopped-sandbox-is-unusable": asExit(0),
		"sandboxes-are-apart":         withDriver(func(d *sinDriver) sandbox.Driver { return sameID{d} }),
	}
}

func secondStopFails(s *sinner) {
	s.stop = func(ctx context.Context, d sandbox.Driver, n int) error {
		if n > 1 {
			return errors.New("no such container")
		}
		return d.Stop(ctx)
	}
}

type sameID struct{ *sinDriver }

func (sameID) ID() string { return "always" }

// opaque hides the powers of a driver.
type opaque struct{ d sandbox.Driver }

func (o opaque) ID() string      { return o.d.ID() }
func (o opaque) Workdir() string { return o.d.Workdir() }
func (o opaque) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	return o.d.Exec(ctx, c)
}

func (o opaque) Put(ctx context.Context, dir string, r io.Reader) error { return o.d.Put(ctx, dir, r) }

func (o opaque) Get(ctx context.Context, p string, w io.Writer) error { return o.d.Get(ctx, p, w) }
func (o opaque) Stop(ctx context.Context) error                       { return o.d.Stop(ctx) }

type homeless struct{ *sinDriver }

func (homeless) Environ(context.Context, string) (map[string]string, error) {
	return map[string]string{"PATH": "/bin:/usr/bin"}, nil
}

type blind struct{ *sinDriver }

func (blind) Stat(context.Context, string) (sandbox.FileStat, error) {
	return sandbox.FileStat{}, errors.New("stat failed")
}

type forgetful struct {
	*sinDriver
	op, instead snapshot.Op
}

func (f forgetful) Track(ctx context.Context, req []byte, w io.Writer) error {
	t, _ := sandbox.AsDriver[sandbox.Tracker](f.Driver)
	return t.Track(ctx, bytes.Replace(req, []byte(`"op":"`+f.op+`"`), []byte(`"op":"`+f.instead+`"`), 1), w)
}

type merciful struct{ *sinDriver }

func (merciful) Processes(context.Context) ([]sandbox.Process, error)    { return nil, nil }
func (merciful) EndProcesses(context.Context) ([]sandbox.Process, error) { return nil, nil }

type sloppy struct{ *sinDriver }

func (sloppy) Digest(_ context.Context, p []string) ([]string, error) {
	return make([]string, len(p)), nil
}

type hoarder struct{ *sinDriver }

func (hoarder) Remove(context.Context, string) error { return nil }

type shortLived struct{ *sinDriver }

func (shortLived) EnsureLifetime(context.Context, time.Duration) (time.Time, error) {
	return time.Now(), nil
}

type hopeful struct{ *sinDriver }

func (hopeful) Health(context.Context) error { return nil }

// amnesiac loses a file when it is suspended.
type amnesiac struct{ *sinDriver }

func (a amnesiac) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	r, _ := sandbox.AsDriver[sandbox.Remover](a.Driver)
	if err := r.Remove(ctx, a.Workdir()+"/kept/f"); err != nil {
		return sandbox.Dormant{}, err
	}
	s, _ := sandbox.AsDriver[sandbox.Suspender](a.Driver)
	return s.Suspend(ctx)
}

// jealous destroys on Stop what was suspended.
type jealous struct{ *sinDriver }

func (j jealous) Stop(ctx context.Context) error {
	j.s.Provider.(*fake.Provider).Vanish(j.ID())
	return j.sinDriver.Stop(ctx)
}

func powerSins() map[string]func(*sinner) {
	return map[string]func(*sinner){
		"powers-are-claimed-or-absent": withDriver(func(d *sinDriver) sandbox.Driver { return opaque{d} }),
		"power-environer":              withDriver(func(d *sinDriver) sandbox.Driver { return homeless{d} }),
		"power-stater":                 withDriver(func(d *sinDriver) sandbox.Driver { return blind{d} }),
		"power-tracker":                withDriver(func(d *sinDriver) sandbox.Driver { return forgetful{d, snapshot.OpCommit, snapshot.OpStatus} }),
		"power-tracker-reset":          withDriver(func(d *sinDriver) sandbox.Driver { return forgetful{d, snapshot.OpReset, snapshot.OpStatus} }),
		"power-process-ender":          withDriver(func(d *sinDriver) sandbox.Driver { return merciful{d} }),
		"power-digester":               withDriver(func(d *sinDriver) sandbox.Driver { return sloppy{d} }),
		"power-remover":                withDriver(func(d *sinDriver) sandbox.Driver { return hoarder{d} }),
		"power-lifetimer":              withDriver(func(d *sinDriver) sandbox.Driver { return shortLived{d} }),
		"power-reporter":               withDriver(func(d *sinDriver) sandbox.Driver { return hopeful{d} }),
		"power-reconciler":             func(s *sinner) { s.reconcile = func() error { return nil } },
		"power-inventory":              func(s *sinner) { s.create = func(r *sandbox.CreateRequest) { r.Owner.StartTime = "" } },
		"power-inventory/left":         func(s *sinner) { s.destroy = func(string) error { return nil } },
		"power-suspender":              withDriver(func(d *sinDriver) sandbox.Driver { return amnesiac{d} }),
		"power-suspender/destroyed":    withDriver(func(d *sinDriver) sandbox.Driver { return jealous{d} }),
	}
}

func faceSins() map[string]func(*sinner) {
	return map[string]func(*sinner){
		"face-commands": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			_, err := d.Exec(ctx, c)
			return sandbox.Exit{}, err
		}),
		"face-command-timeout": asExit(124),
		"face-environment": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Env = nil
			return d.Exec(ctx, c)
		}),
		"face-large-output-is-bounded": cutOutput,
		"face-text-and-bytes": putting(func(_ *tar.Header, body *[]byte) bool {
			*body = bytes.ReplaceAll(*body, []byte("\r\n"), []byte("\n"))
			return true
		}),
		"face-paths": executing(func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error) {
			c.Dir = "/"
			return d.Exec(ctx, c)
		}),
		"face-file-transfer":      putting(func(h *tar.Header, _ *[]byte) bool { h.Mode = 0o600; return true }),
		"face-directory-transfer": getting(func(h *tar.Header, _ *[]byte) bool { return h.Typeflag != tar.TypeSymlink }),
		"face-checkpoint": func(s *sinner) {
			s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
				if dir == "/" {
					return nil
				}
				return d.Put(ctx, dir, r)
			}
		},
		"face-end-processes": withDriver(func(d *sinDriver) sandbox.Driver { return merciful{d} }),
		"face-stop":          secondStopFails,
	}
}

// TestEveryPromiseCanFail runs each promise against a provider that keeps it and
// against one that breaks it.
func TestEveryPromiseCanFail(t *testing.T) {
	broken := sins()
	for _, p := range sandboxtest.Promises() {
		var mine []string
		for name := range broken {
			if name == p.Name || strings.HasPrefix(name, p.Name+"/") {
				mine = append(mine, name)
			}
		}
		if len(mine) == 0 {
			t.Errorf("no sin breaks the promise %s", p.Name)
		}
		t.Run(p.Name+"/kept", func(t *testing.T) {
			if r := observe(t, p, harness(t, func(*sinner) {})); r.failed || r.skipped {
				t.Errorf("failed %v, skipped %v:\n%s", r.failed, r.skipped, r.log.String())
			}
		})
		for _, name := range mine {
			t.Run(name+"/broken", func(t *testing.T) {
				if r := observe(t, p, harness(t, broken[name])); !r.failed {
					t.Errorf("the broken promise was not noticed (skipped %v):\n%s", r.skipped, r.log.String())
				}
			})
		}
	}
	for name := range broken {
		base, _, _ := strings.Cut(name, "/")
		known := false
		for _, p := range sandboxtest.Promises() {
			known = known || p.Name == base
		}
		if !known {
			t.Errorf("the sin %s breaks no promise that there is", name)
		}
	}
}

package sandboxtest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/fake"
	"assay/sandbox/sandboxtest"
)

// sinner is a provider that keeps all promises but those its hooks break. A nil
// hook changes nothing.
type sinner struct {
	sandbox.Provider
	info      func(sandbox.Info) sandbox.Info
	key       func(sandbox.Key) sandbox.Key
	check     func(error) error
	prepare   func(ctx context.Context, p sandbox.Provider, t sandbox.Template, s sandbox.Steps) (sandbox.Prepared, error)
	create    func(r *sandbox.CreateRequest)
	classify  func(error) fault.Class
	driver    func(d *sinDriver) sandbox.Driver
	reconcile func() error
	destroy   func(id string) error
	exec      func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error)
	put       func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error
	get       func(ctx context.Context, d sandbox.Driver, p string, w io.Writer) error
	stop      func(ctx context.Context, d sandbox.Driver, n int) error
	// instances changes what the harness sees of leftovers.
	instances func([]string) []string
	cleanup   func(func())
}

func (s *sinner) Info() sandbox.Info {
	if s.info != nil {
		return s.info(s.Provider.Info())
	}
	return s.Provider.Info()
}

func (s *sinner) Key(ctx context.Context, t sandbox.Template, h sandbox.Harness) (sandbox.Key, error) {
	k, err := s.Provider.Key(ctx, t, h)
	if s.key != nil {
		k = s.key(k)
	}
	return k, err
}

func (s *sinner) Check(ctx context.Context) error {
	err := s.Provider.Check(ctx)
	if s.check != nil {
		err = s.check(err)
	}
	return err
}

func (s *sinner) Prepare(ctx context.Context, t sandbox.Template, h sandbox.Harness, st sandbox.Steps) (sandbox.Prepared, error) {
	if s.prepare != nil {
		return s.prepare(ctx, s.Provider, t, st)
	}
	return s.Provider.Prepare(ctx, t, h, st)
}

func (s *sinner) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	if s.create != nil {
		s.create(&r)
	}
	d, err := s.Provider.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	s.cleanup(func() { s.Provider.(*fake.Provider).Vanish(d.ID()) }) // whatever the sin did
	out := &sinDriver{Driver: d, s: s}
	if s.driver != nil {
		return s.driver(out), nil
	}
	return out, nil
}

func (s *sinner) Classify(err error) fault.Class {
	if s.classify != nil {
		return s.classify(err)
	}
	return s.Provider.Classify(err)
}

func (s *sinner) Reconcile(ctx context.Context, o sandbox.Owner) error {
	if s.reconcile != nil {
		return s.reconcile()
	}
	return s.Provider.(sandbox.Reconciler).Reconcile(ctx, o)
}

func (s *sinner) Inventory(ctx context.Context) ([]sandbox.Instance, error) {
	return s.Provider.(sandbox.Inventory).Inventory(ctx)
}

func (s *sinner) Destroy(ctx context.Context, id string) error {
	if s.destroy != nil {
		return s.destroy(id)
	}
	return s.Provider.(sandbox.Inventory).Destroy(ctx, id)
}

func (s *sinner) Wake(ctx context.Context, id string, r sandbox.WakeRequest) (sandbox.Driver, error) {
	return s.Provider.(sandbox.Waker).Wake(ctx, id, r)
}

// sinDriver passes everything on but what its provider's hooks take.
type sinDriver struct {
	sandbox.Driver
	s     *sinner
	stops atomic.Int64
}

func (d *sinDriver) Unwrap() sandbox.Driver { return d.Driver }

func (d *sinDriver) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	if d.s.exec != nil {
		return d.s.exec(ctx, d.Driver, c)
	}
	return d.Driver.Exec(ctx, c)
}

func (d *sinDriver) Put(ctx context.Context, dir string, r io.Reader) error {
	if d.s.put != nil {
		return d.s.put(ctx, d.Driver, dir, r)
	}
	return d.Driver.Put(ctx, dir, r)
}

func (d *sinDriver) Get(ctx context.Context, p string, w io.Writer) error {
	if d.s.get != nil {
		return d.s.get(ctx, d.Driver, p, w)
	}
	return d.Driver.Get(ctx, p, w)
}

func (d *sinDriver) Stop(ctx context.Context) error {
	n := int(d.stops.Add(1))
	if d.s.stop != nil {
		return d.s.stop(ctx, d.Driver, n)
	}
	return d.Driver.Stop(ctx)
}

// harness is a healthy harness over the fake, seen through a sinner.
func harness(t *testing.T, sin func(*sinner)) sandboxtest.Harness {
	p := fake.New(fake.Script{Users: []fake.User{{Name: "other", UID: 1200}}})
	var s *sinner
	wrap := func(q *fake.Provider) *sinner {
		s := &sinner{Provider: q, cleanup: t.Cleanup}
		sin(s)
		return s
	}
	s = wrap(p)
	lister := func(q *fake.Provider, s *sinner) func(context.Context, string) ([]string, error) {
		return func(_ context.Context, token string) ([]string, error) {
			ids := q.Instances(token)
			if s.instances != nil {
				ids = s.instances(ids)
			}
			return ids, nil
		}
	}
	broken := func(f fake.Faults) func(testing.TB) sandboxtest.Broken {
		return func(testing.TB) sandboxtest.Broken {
			q := fake.New(fake.Script{Faults: f})
			s := wrap(q)
			return sandboxtest.Broken{Provider: s, Template: q.Template(), Instances: lister(q, s), Reached: q.CreateStalled()}
		}
	}
	other := fake.New(fake.Script{Files: map[string]string{"a": "1"}})
	return sandboxtest.Harness{
		Provider: s, Template: p.Template(), Others: []sandbox.Template{other.Template()}, User: "other", LargeOutput: 1 << 20,
		Instances: lister(p, s),
		Labels:    func(_ context.Context, id string) (map[string]string, error) { return p.Labels(id), nil },
		Marked: func(_ context.Context, d sandbox.Driver, mark string) (int, error) {
			return p.Marked(d.ID(), "ST_MARK", mark), nil
		},
		Powers: []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Suspender", "Inventory", "Waker"},
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.CheckFails:       broken(fake.Faults{Check: fake.Fault{Config: "the token is wrong"}}),
			sandboxtest.PrepareConfig:    broken(fake.Faults{Prepare: fake.Fault{Config: "step 2 exits 1"}}),
			sandboxtest.PrepareTransient: broken(fake.Faults{Prepare: fake.Fault{Transient: 9}}),
			sandboxtest.CreateFails:      broken(fake.Faults{Create: fake.Fault{Transient: 9}}),
			sandboxtest.CreateStalls:     broken(fake.Faults{Create: fake.Fault{Stall: true}}),
			sandboxtest.ExecFails:        broken(fake.Faults{Exec: fake.Fault{Transport: 9}}),
			sandboxtest.PutFails:         broken(fake.Faults{Put: fake.Fault{Transient: 9}}),
			sandboxtest.GetFails:         broken(fake.Faults{Get: fake.Fault{Transient: 9}}),
			sandboxtest.StopStalls:       broken(fake.Faults{Stop: fake.Fault{Stall: true}}),
			sandboxtest.Vanishes: func(testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Trigger: func(_ context.Context, d sandbox.Driver) error { p.Vanish(d.ID()); return nil }}
			},
		},
	}
}

// rewrite passes a tar stream through f, which may change an entry or return
// false to drop it.
func rewrite(r io.Reader, f func(h *tar.Header, body *[]byte) bool) (io.Reader, error) {
	var out bytes.Buffer
	tr, tw := tar.NewReader(r), tar.NewWriter(&out)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return &out, tw.Close()
		}
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		if !f(h, &body) {
			continue
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		h.Format = tar.FormatPAX
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := tw.Write(body); err != nil {
			return nil, err
		}
	}
}

func putting(f func(h *tar.Header, body *[]byte) bool) func(*sinner) {
	return func(s *sinner) {
		s.put = func(ctx context.Context, d sandbox.Driver, dir string, r io.Reader) error {
			changed, err := rewrite(r, f)
			if err != nil {
				return err
			}
			return d.Put(ctx, dir, changed)
		}
	}
}

func getting(f func(h *tar.Header, body *[]byte) bool) func(*sinner) {
	return func(s *sinner) {
		s.get = func(ctx context.Context, d sandbox.Driver, p string, w io.Writer) error {
			var buf bytes.Buffer
			if err := d.Get(ctx, p, &buf); err != nil {
				return err
			}
			changed, err := rewrite(&buf, f)
			if err != nil {
				return err
			}
			_, err = io.Copy(w, changed)
			return err
		}
	}
}

func executing(f func(ctx context.Context, d sandbox.Driver, c sandbox.Cmd) (sandbox.Exit, error)) func(*sinner) {
	return func(s *sinner) { s.exec = f }
}

func withDriver(f func(d *sinDriver) sandbox.Driver) func(*sinner) {
	return func(s *sinner) { s.driver = f }
}

package hostbox

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Fault is something that goes wrong with requests to a double.
type Fault struct {
	// Method and Path select requests: an empty Method is any, and Path is a
	// part of the path. Match, when set, decides further.
	Method, Path string
	Match        func(*http.Request) bool
	// Skip lets so many selected requests pass first. Times is how many then
	// get the fault; 0 is all.
	Skip, Times int

	// Status answers with Body and Header instead; 0 does not.
	Status int
	Header map[string]string
	Body   string
	// After carries the request out before the fault happens.
	After bool
	// Drop closes the connection without an answer.
	Drop bool
	// CutAfter closes the connection after so many bytes of the answer.
	CutAfter int
	// Slow waits so long before each write of the answer.
	Slow time.Duration
	// Hang gives no answer until the client is gone.
	Hang bool
	// Reached, when set, is closed when the fault first happens.
	Reached chan struct{}

	seen, used int
}

// Faults is a handler's surroundings in which faults happen. The zero value lets
// everything pass.
type Faults struct {
	mu   sync.Mutex
	list []*Fault
	open map[*answer]bool
	log  []string
}

// Inject adds a fault and returns what takes it away.
func (f *Faults) Inject(x Fault) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &x
	f.list = append(f.list, p)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, one := range f.list {
			if one == p {
				f.list = append(f.list[:i:i], f.list[i+1:]...)
				return
			}
		}
	}
}

// Requests lists the requests so far, "METHOD path".
func (f *Faults) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.log...)
}

// Cut breaks the connections of answers that are under way and whose path
// contains part.
func (f *Faults) Cut(part string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for a := range f.open {
		if strings.Contains(a.path, part) {
			a.abort()
			n++
		}
	}
	return n
}

func (f *Faults) find(r *http.Request) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, r.Method+" "+r.URL.Path)
	for _, x := range f.list {
		if x.Method != "" && x.Method != r.Method || !strings.Contains(r.URL.Path, x.Path) || x.Match != nil && !x.Match(r) {
			continue
		}
		x.seen++
		if x.seen <= x.Skip || x.Times > 0 && x.used >= x.Times {
			continue
		}
		x.used++
		if x.used == 1 && x.Reached != nil {
			close(x.Reached)
		}
		return x
	}
	return nil
}

// Wrap puts a handler into the surroundings.
func (f *Faults) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := f.find(r)
		if x == nil {
			x = &Fault{}
		}
		if x.After {
			h.ServeHTTP(&discard{header: http.Header{}}, r)
		}
		switch {
		case x.Hang:
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case x.Drop:
			panic(http.ErrAbortHandler)
		case x.Status != 0:
			for k, v := range x.Header {
				w.Header().Set(k, v)
			}
			if w.Header().Get("Content-Type") == "" {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(x.Status)
			_, _ = w.Write([]byte(x.Body)) // the client may be gone
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		a := &answer{ResponseWriter: w, path: r.URL.Path, cancel: cancel, left: x.CutAfter, limited: x.CutAfter > 0, slow: x.Slow}
		f.mu.Lock()
		if f.open == nil {
			f.open = map[*answer]bool{}
		}
		f.open[a] = true
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			delete(f.open, a)
			cut := a.cut
			f.mu.Unlock()
			if cut {
				panic(http.ErrAbortHandler)
			}
		}()
		h.ServeHTTP(a, r.WithContext(ctx))
	})
}

// answer is an answer that may be cut.
type answer struct {
	http.ResponseWriter
	path    string
	cancel  context.CancelFunc
	limited bool
	left    int
	slow    time.Duration
	cut     bool // guarded by Faults.mu
}

func (a *answer) abort() { a.cut = true; a.cancel() }

func (a *answer) Write(p []byte) (int, error) {
	if a.slow > 0 {
		time.Sleep(a.slow)
	}
	if a.limited {
		if len(p) > a.left {
			_, _ = a.ResponseWriter.Write(p[:a.left])
			a.Flush()
			panic(http.ErrAbortHandler)
		}
		a.left -= len(p)
	}
	return a.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (a *answer) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController through.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// discard takes an answer that nobody gets.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"assay/fault"
	"assay/internal/atomicfile"
	"assay/internal/event"
	"assay/report/annotate"
	"assay/report/markdown"
	"assay/sandbox"
)

// summaryFile is the summary of the last invocation, in the folder of the record.
const summaryFile = "summary.md"

// reporting is what an invocation leaves behind for people who were not there: a
// summary in the record's folder and, in a job of GitHub Actions, on the job's
// page with annotations of what could not be prepared.
type reporting struct {
	a       *app
	root    string
	summary *markdown.Summary
	next    event.Sink

	mu     sync.Mutex
	broken []event.Prepare
}

func (a *app) reporting(root string, next event.Sink) *reporting {
	return &reporting{a: a, root: root, summary: markdown.New(), next: next}
}

// Handle takes an event and passes it on.
func (r *reporting) Handle(e event.Event) {
	r.summary.Handle(e)
	if p, ok := e.(event.Prepare); ok && p.Status == event.Broken {
		r.mu.Lock()
		r.broken = append(r.broken, p)
		r.mu.Unlock()
	}
	r.next(e)
}

// finish writes what there is to say. failure is why nothing ran, or nil. What
// cannot be written is told and changes no verdict.
func (r *reporting) finish(failure error) {
	r.summary.Failed(failure)
	env := r.a.p.Env
	if v, _ := env("GITHUB_ACTIONS"); v == "true" {
		r.mu.Lock()
		for _, p := range r.broken {
			// A standard output for machines stays one; GitHub reads both.
			fmt.Fprintln(r.a.p.Stderr, annotate.Prepare(p))
		}
		r.mu.Unlock()
	}
	text := r.summary.String()
	if text == "" {
		return
	}
	var disk atomicfile.Disk
	err := disk.Replace(filepath.Join(r.root, summaryFile), []byte(text))
	if page, _ := env("GITHUB_STEP_SUMMARY"); page != "" {
		err = errors.Join(err, appendTo(page, text+"\n"))
	}
	if err != nil {
		fmt.Fprintf(r.a.p.Stderr, "warning: the summary could not be written: %s\n", sandbox.Clean(err.Error()))
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// whyNothingRan is the error of an invocation whose first attempt never started,
// or nil where it was interrupted.
func whyNothingRan(err error) error {
	if fault.ClassOf(err) == fault.Canceled {
		return nil
	}
	return err
}

package native

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/sandbox"
)

// source makes sandboxes of one start point.
type source struct {
	p *Provider
	r sandbox.CreateRequest
}

func newBox(b *testing.B, spec Spec) source {
	b.Helper()
	p := provider(b)
	if err := p.Check(b.Context()); err != nil {
		b.Skipf("SKIPPED, no native sandboxes here: %v", err)
	}
	r := request(b, p, spec)
	r.Network.Mode = "none"
	return source{p, r}
}

func (m source) create(b *testing.B) sandbox.Driver {
	b.Helper()
	d, err := m.p.Create(b.Context(), m.r)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func must(b *testing.B, d sandbox.Driver) {
	b.Helper()
	if x, err := d.Exec(b.Context(), sandbox.Cmd{Argv: []string{"/usr/bin/true"}, Dir: "/"}); err != nil || x.Code != 0 {
		b.Fatalf("true: %+v, %v", x, err)
	}
}

func stopped(b *testing.B, d sandbox.Driver) {
	b.Helper()
	if err := d.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// bareClone builds the floor's program.
func bareClone(b *testing.B) string {
	b.Helper()
	bin := filepath.Join(b.TempDir(), "bareclone")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./testdata/bareclone")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return bin
}

func clone(b *testing.B, bin string) {
	b.Helper()
	cmd := exec.Command(bin, "/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
}

// spent is the processor time of this process and of its children so far.
func spent(b *testing.B) (d time.Duration) {
	b.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var ru syscall.Rusage
		if err := syscall.Getrusage(who, &ru); err != nil {
			b.Fatal(err)
		}
		d += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	return d
}

// versus lets floor and subject take turns and reports both medians, their ratio
// and that of the processor time, which a busy machine changes less.
func versus(b *testing.B, floor, subject func()) {
	b.Helper()
	var fs, ss []time.Duration
	timed := func(f func(), cpu *time.Duration) time.Duration {
		before, start := spent(b), time.Now()
		f()
		d := time.Since(start)
		*cpu += spent(b) - before
		return d
	}
	floor()
	subject()
	var fcpu, scpu time.Duration
	for b.Loop() {
		fs = append(fs, timed(floor, &fcpu))
		ss = append(ss, timed(subject, &scpu))
	}
	slices.Sort(fs)
	slices.Sort(ss)
	f, s := fs[len(fs)/2], ss[len(ss)/2]
	b.ReportMetric(float64(f.Microseconds())/1000, "floor-ms")
	b.ReportMetric(float64(s.Microseconds())/1000, "subject-ms")
	b.ReportMetric(float64(s)/float64(f), "ratio")
	b.ReportMetric(float64(fcpu.Microseconds())/1000/float64(len(fs)), "floor-cpu-ms")
	b.ReportMetric(float64(scpu.Microseconds())/1000/float64(len(ss)), "subject-cpu-ms")
	b.ReportMetric(float64(scpu)/float64(fcpu), "cpu-ratio")
	b.ReportMetric(float64(len(fs)), "rounds")
}

// BenchmarkCreate compares create, exec true and destroy with a bare clone
// into the same namespaces with an overlay and one exec. Target: at most 2.
func BenchmarkCreate(b *testing.B) {
	bin := bareClone(b)
	b.Run("tools", func(b *testing.B) {
		m := newBox(b, Spec{})
		versus(b, func() { clone(b, bin) }, func() { d := m.create(b); must(b, d); stopped(b, d) })
	})
	b.Run("image", func(b *testing.B) {
		m := newBox(b, Spec{Image: saved(b, imageOf(b, slicePath))})
		versus(b, func() { clone(b, bin) }, func() { d := m.create(b); must(b, d); stopped(b, d) })
	})
}

// BenchmarkExec compares one command in a running sandbox with a bare fork
// and exec. Target: at most 1.5 times that and 1 ms.
func BenchmarkExec(b *testing.B) {
	m := newBox(b, Spec{})
	d := m.create(b)
	defer stopped(b, d)
	versus(b, func() {
		if err := exec.Command("/usr/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}, func() { must(b, d) })
}

// BenchmarkAlive holds 200 sandboxes at once and reports the memory of all
// their processes, shared pages counted in proportion. Target: under 400 MB.
func BenchmarkAlive(b *testing.B) {
	m := newBox(b, Spec{})
	for b.Loop() {
		var ds []sandbox.Driver
		before := children(b)
		for range 200 {
			d := m.create(b)
			must(b, d)
			ds = append(ds, d)
		}
		total := int64(0)
		for pid := range children(b) {
			if !before[pid] {
				total += memoryOf(pid)
			}
		}
		b.ReportMetric(float64(total)/(1<<20), "MB")
		for _, d := range ds {
			stopped(b, d)
		}
	}
}

// children are the pids of all processes below this one.
func children(b *testing.B) map[int]bool {
	b.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	parent := map[int]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		var pid, ppid int
		var state string
		_, _ = fmt.Sscan(string(text), &pid)
		_, _ = fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &ppid)
		parent[pid] = ppid
	}
	out := map[int]bool{}
	for pid := range parent {
		for p := pid; p > 1; p = parent[p] {
			if parent[p] == os.Getpid() {
				out[pid] = true
				break
			}
		}
	}
	return out
}

// memoryOf is a process's proportional share of memory, in bytes.
func memoryOf(pid int) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var kb int64
		if rest, ok := strings.CutPrefix(sc.Text(), "Pss:"); ok {
			_, _ = fmt.Sscan(rest, &kb)
			return kb << 10
		}
	}
	return 0
}

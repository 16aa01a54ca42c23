package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// execution is one command for the engine's own exec.
type execution struct {
	user, dir      string
	argv, env      []string
	stdin          io.Reader
	stdout, stderr io.Writer
	// end ends the command's processes when ctx ends first, and returns why.
	end func() error
}

// ended is how an execution ended.
type ended struct {
	Code int
	// unstarted: there never was a process; words is what the engine said.
	unstarted bool
	words     string
	// over: ctx ended first, and execution.end was called.
	over bool
}

const (
	// A background process can hold a command's output open for ever. After the
	// command's exit is known, output is read until it was quiet for drainQuiet,
	// and not longer than drainMax.
	drainQuiet = 200 * time.Millisecond
	drainMax   = 3 * time.Second

	pollFirst = 4 * time.Millisecond
	pollMost  = 250 * time.Millisecond
)

// run starts a command and waits until the engine says that it has ended. The
// end of its output says nothing: the engine's own record of the exit does.
func (d *plain) run(ctx context.Context, x execution) (ended, error) {
	id, h, err := d.e.exec(ctx, d.id, client.ExecCreateOptions{
		User: x.user, WorkingDir: x.dir, Cmd: x.argv, Env: x.env,
		AttachStdin: x.stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		if opOf(err) == "exec start" && statusOf(err) == http.StatusBadRequest {
			return ended{unstarted: true, words: err.Error()}, nil
		}
		return ended{}, err
	}
	defer h.Close()
	if x.stdin != nil {
		go func() {
			// A command that reads no more makes this write fail, and that is
			// its own business.
			_, _ = io.Copy(struct{ io.Writer }{h.Conn}, x.stdin)
			_ = h.CloseWrite()
		}()
	}
	out := &output{d: d, ctx: ctx, id: id, h: h, done: make(chan struct{})}
	go out.copy(x.stdout, x.stderr)
	st, err := d.await(ctx, id, out.done)
	if err != nil && x.end != nil && fault.Cause(ctx) != nil {
		// What the command said before it was ended is still on its way.
		err = x.end()
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMax)
		defer cancel()
		out.drain(rest)
		out.abandon()
		return ended{over: true}, err
	}
	if err != nil {
		out.abandon()
		return ended{}, err
	}
	if !st.started {
		out.abandon()
		return ended{}, fmt.Errorf("the engine does not know how the command ended")
	}
	out.drain(ctx)
	if why := out.failed(); why != nil {
		return ended{}, why
	}
	return ended{Code: st.code, unstarted: out.unstarted.Load(), words: out.words.String()}, nil
}

// await polls the engine until an exec has ended. eof is closed when its output
// ended, which makes the next look due at once. A status that is known when ctx
// ends is returned.
func (d *plain) await(ctx context.Context, id string, eof <-chan struct{}) (execState, error) {
	pause := pollFirst
	for {
		st, err := d.e.execInspect(ctx, id)
		if err == nil && !st.running && st.started {
			return st, nil
		}
		if err == nil && !st.started && pause >= pollMost {
			return st, nil
		}
		if cause := fault.Cause(ctx); cause != nil {
			look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
			st, err := d.e.execInspect(look, id)
			cancel()
			if err == nil && !st.running && st.started {
				return st, nil
			}
			return execState{}, cause
		}
		if err != nil {
			return execState{}, err
		}
		t := time.NewTimer(pause)
		select {
		case <-eof:
			eof, pause = nil, pollFirst
		case <-ctx.Done():
		case <-t.C:
			pause = min(2*pause, pollMost)
		}
		t.Stop()
	}
}

// output copies the streams of one exec.
type output struct {
	d    *plain
	ctx  context.Context
	id   string
	h    *client.HijackedResponse
	done chan struct{}

	exited    atomic.Bool
	stopped   atomic.Bool // no further Write
	last      atomic.Int64
	unstarted atomic.Bool
	words     bytes.Buffer // what the engine said of an exec that did not start

	mu  sync.Mutex
	err error // of a writer, or of the stream before the exit
}

func (o *output) copy(stdout, stderr io.Writer) {
	defer close(o.done)
	first := &firstLook{o: o, w: stdout}
	_, err := stdcopy.StdCopy(first, &guarded{o, stderr}, o)
	if err != nil && !o.exited.Load() && !errors.Is(err, os.ErrDeadlineExceeded) {
		o.fail(err)
	}
}

// Read reads the stream; after the exit each read extends the deadline, up to
// the last one.
func (o *output) Read(p []byte) (int, error) {
	n, err := o.h.Reader.Read(p)
	if n > 0 && o.exited.Load() {
		o.extend()
	}
	return n, err
}

func (o *output) extend() {
	end := time.Now().Add(drainQuiet)
	if last := time.Unix(0, o.last.Load()); end.After(last) {
		end = last
	}
	_ = o.h.Conn.SetReadDeadline(end)
}

// drain reads what is left after the exit. A slow writer is waited for until ctx
// ends.
func (o *output) drain(ctx context.Context) {
	o.last.Store(time.Now().Add(drainMax).UnixNano())
	o.exited.Store(true)
	o.extend()
	select {
	case <-o.done:
	case <-ctx.Done():
		o.abandon()
	}
}

// abandon ends the copy. A Write that is blocked in the caller's own writer is
// waited for only so long.
func (o *output) abandon() {
	o.stopped.Store(true)
	o.h.Close()
	t := time.NewTimer(drainMax)
	defer t.Stop()
	select {
	case <-o.done:
	case <-t.C:
	}
}

func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// failed returns the first failure of a caller's writer. A stream that broke is
// no failure when the exit is known.
func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.As(o.err, new(callerError)) {
		return o.err
	}
	return nil
}

// guarded writes to a caller's writer until the exec is given up.
type guarded struct {
	o *output
	w io.Writer
}

func (g *guarded) Write(p []byte) (int, error) {
	if g.w == nil || g.o.stopped.Load() {
		return len(p), nil
	}
	if _, err := g.w.Write(p); err != nil {
		g.o.fail(callerError{err})
		g.w = nil
	}
	return len(p), nil
}

// firstLook asks, before the first output is passed on, whether there is a
// process at all: the engine reports a failed start as text on standard output.
type firstLook struct {
	o      *output
	w      io.Writer
	looked bool
}

func (f *firstLook) Write(p []byte) (int, error) {
	if !f.looked {
		f.looked = true
		if st, err := f.o.d.e.execInspect(f.o.ctx, f.o.id); err == nil && st.never {
			f.o.unstarted.Store(true)
		}
	}
	if f.o.unstarted.Load() {
		if f.o.words.Len() < saidLimit {
			f.o.words.Write(p)
		}
		return len(p), nil
	}
	return (&guarded{f.o, f.w}).Write(p)
}

// The scripts decide with nothing but the builtins of the image's own sh: a grep
// or cat that a command planted is never asked, and a container without room for
// one more process is swept as well. A process that is a zombie counts as ended:
// someone has only not asked for its status yet.
const (
	// scriptPath is where the scripts find what only describes a process. It has
	// no folder for local additions, in which programs are planted first.
	scriptPath = "/usr/bin:/bin:/usr/sbin:/sbin"

	// has succeeds when file $2 has $1 in it; NUL bytes are read over.
	has = `has() { while l=; IFS= read -r l || [ -n "$l" ]; do case $l in *"$1"*) return 0;; esac; done 2>/dev/null < "$2"; return 1; }
`
	// alive goes on to the next folder d of /proc when its process has ended. It
	// leaves the process's state and what follows it in s.
	alive = `{ read -r s < "$d/stat"; } 2>/dev/null || continue; s=${s##*) }; case $s in Z*|X*|x*) continue;; esac`

	// treeScript kills the processes with a marker until two scans in a row find
	// none, and prints what it cannot vouch for: processes that carry no marker
	// at all. $1 is the marker, $2 a uid whose processes another run looks at.
	treeScript = has + `n=0 clean=0 killed=0
while [ $clean -lt 2 ]; do
  n=$((n+1)); [ $n -gt 500 ] && exit 3
  found=0
  for d in /proc/[0-9]*; do
    has "$1" "$d/environ" || continue
    ` + alive + `
    kill -9 "${d#/proc/}" 2>/dev/null; found=1 killed=$((killed+1))
  done
  if [ $found = 0 ]; then clean=$((clean+1)); else clean=0; fi
done
echo "killed $killed"
for d in /proc/[0-9]*; do
  p=${d#/proc/}; [ "$p" = 1 ] && continue
  ` + alive + `
  has "INVOCATION_ID=" "$d/environ" && continue
  u=; while read -r k v rest; do [ "$k" = Uid: ] && u=$v; :; done 2>/dev/null < "$d/status" || continue
  [ -z "$u" ] && continue
  [ "$u" = "$2" ] && continue
  [ -n "$3" ] && [ "$u" != "$3" ] && continue
  [ -d "$d" ] && echo "stranger $p"
done
exit 0`

	listScript = `for d in /proc/[0-9]*; do
  p=${d#/proc/}; [ "$p" = 1 ] && continue; [ "$p" = $$ ] && continue
  ` + alive + `
  k=${s#? }; k=${k%% *}; [ "$k" = $$ ] && continue
  n=; { read -r n < "$d/comm"; } 2>/dev/null; [ "$k" = 1 ] && [ "$n" = cat ] && continue
  u=; while read -r k v rest; do [ "$k" = Uid: ] && u=$v; :; done 2>/dev/null < "$d/status" || continue
  c=$(tr '\0\n' '  ' < "$d/cmdline" 2>/dev/null | head -c 200)
  echo "$p $u $c"
done
exit 0`

	endScript = `n=0 clean=0
while [ $clean -lt 2 ]; do
  n=$((n+1)); [ $n -gt 500 ] && exit 3
  found=0
  for d in /proc/[0-9]*; do
    p=${d#/proc/}; [ "$p" = 1 ] && continue; [ "$p" = $$ ] && continue
    ` + alive + `
    k=${s#? }; k=${k%% *}; [ "$k" = $$ ] && continue; [ "$p" = "$KEEP" ] && continue
    c=; { read -r c < "$d/comm"; } 2>/dev/null
    if [ "$k" = 1 ] && [ -z "$KEEP" ] && [ "$c" = cat ]; then KEEP=$p; continue; fi
    kill -9 "$p" 2>/dev/null; found=1
  done
  if [ $found = 0 ]; then clean=$((clean+1)); else clean=0; fi
done
exit 0`

	// oomScript prints how many processes of the container the kernel has killed
	// because memory ran out, by either version of control groups.
	oomScript = `for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  [ -r "$f" ] || continue
  while read -r k v; do [ "$k" = oom_kill ] && echo "$v"; :; done < "$f"
done
exit 0`
)

// ranOut reports whether the kernel has killed a process of the container for
// memory since it was asked last.
func (d *plain) ranOut(ctx context.Context) bool {
	out, err := d.script(ctx, "0:0", oomScript)
	if err != nil {
		return false // nobody knows
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	more := n > d.oomKills
	d.oomKills = n
	return more
}

// treeLimit bounds the end of one command's process tree.
const treeLimit = 15 * time.Second

// endTree ends the processes of a command whose context ended, and returns the
// cause. When it cannot vouch that none is left, the container is killed and the
// error matches ErrUnusable.
func (d *plain) endTree(ctx context.Context, id string, u plainUser) error {
	cause := context.Cause(ctx)
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", treeLimit, "built-in")
	defer cancel()
	err := d.sweep(clean, id, u)
	if err == nil {
		return cause
	}
	kerr := d.e.kill(clean, d.id)
	if kerr != nil {
		kerr = fmt.Errorf("kill the container: %w", kerr)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrUnusable, errors.Join(cause, fmt.Errorf("the command's processes could not be proven dead: %w", err), kerr))
}

// sweep kills the processes with a marker. The kernel shows the environment of a
// process only to its own user, so root and the command's user both look.
func (d *plain) sweep(ctx context.Context, id string, u plainUser) error {
	mark := marker + "=" + id
	var strangers []string
	for try := range 5 {
		killed := 0
		strangers = nil
		for _, look := range d.looks(u) {
			out, err := d.script(ctx, look.user, treeScript, mark, look.except, look.only)
			if err != nil {
				return err
			}
			n, odd, err := parseSweep(out)
			if err != nil {
				return err
			}
			killed, strangers = killed+n, append(strangers, odd...)
		}
		if len(strangers) == 0 {
			if killed == 0 {
				return nil
			}
			continue
		}
		// A process that is about to end, or about to be another program, has
		// no environment for a moment: only one that stays so is a stranger.
		select {
		case <-time.After(20 * time.Millisecond << try):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if len(strangers) > 0 {
		return fmt.Errorf("processes %s carry no mark of any command", strings.Join(strangers, ", "))
	}
	return errors.New("new processes kept coming")
}

type look struct{ user, except, only string }

func (d *plain) looks(u plainUser) []look {
	if u.uid == 0 {
		return []look{{user: "0:0"}}
	}
	uid := strconv.Itoa(int(u.uid))
	return []look{{user: fmt.Sprintf("%d:%d", u.uid, u.gid), only: uid}, {user: "0:0", except: uid}}
}

// parseSweep reads the output of treeScript. Output without its first line is
// not the script's own.
func parseSweep(out string) (killed int, strangers []string, err error) {
	said := false
	for line := range strings.Lines(out) {
		switch k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k {
		case "killed":
			if killed, err = strconv.Atoi(v); err != nil {
				return 0, nil, err
			}
			said = true
		case "stranger":
			strangers = append(strangers, v)
		}
	}
	if !said {
		return 0, nil, errors.New("the sandbox's shell did not run the look at its processes")
	}
	return killed, strangers, nil
}

func parseProcesses(out string) []sandbox.Process {
	var ps []sandbox.Process
	for line := range strings.Lines(out) {
		pid, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		uid, cmd, _ := strings.Cut(rest, " ")
		p, err1 := strconv.Atoi(pid)
		u, err2 := strconv.Atoi(uid)
		if err1 == nil && err2 == nil {
			ps = append(ps, sandbox.Process{PID: p, UID: u, Command: strings.TrimSpace(cmd)})
		}
	}
	return ps
}

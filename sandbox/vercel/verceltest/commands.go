package verceltest

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"assay/internal/hostbox"
)

// command is one command with everything that it wrote.
type command struct {
	id, name, cwd string
	args          []string
	session       string
	started       int64
	proc          *hostbox.Proc
	over          chan struct{}

	mu       sync.Mutex
	lines    []line
	more     chan struct{} // closed when something is added
	exit     *int
	duration int64
}

type line struct {
	Stream string `json:"stream"`
	Data   string `json:"data"`
}

func (c *command) add(stream string, p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, line{stream, string(p)})
	close(c.more)
	c.more = make(chan struct{})
}

type sink struct {
	c      *command
	stream string
}

func (k sink) Write(p []byte) (int, error) {
	k.c.add(k.stream, p)
	return len(p), nil
}

func (c *command) view() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := map[string]any{"id": c.id, "name": c.name, "args": c.args, "cwd": c.cwd, "sessionId": c.session, "exitCode": nil, "startedAt": c.started}
	if c.exit != nil {
		v["exitCode"], v["durationMs"] = *c.exit, c.duration
	}
	return v
}

func (s *Server) run(w http.ResponseWriter, r *http.Request, se *session) {
	var in struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Cwd     string            `json:"cwd"`
		Env     map[string]string `json:"env"`
		Sudo    bool              `json:"sudo"`
		Wait    bool              `json:"wait"`
		Logs    bool              `json:"logs"`
		Timeout int64             `json:"timeout"`
	}
	if !decode(w, r, &in) {
		return
	}
	c := &command{id: "cmd_" + random(16), name: in.Command, args: in.Args, cwd: in.Cwd, session: se.id, started: now(), over: make(chan struct{}), more: make(chan struct{})}
	if c.args == nil {
		c.args = []string{}
	}
	if c.cwd == "" {
		c.cwd = Workdir
	}
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home/vercel-sandbox", "USER": "vercel-sandbox", "LOGNAME": "vercel-sandbox"}
	uid := 1000
	for _, m := range []map[string]string{se.box.env, in.Env} {
		for k, v := range m {
			env[k] = v
		}
	}
	if in.Sudo {
		uid, env["USER"], env["SUDO_USER"] = 0, "root", "vercel-sandbox"
	}
	var list []string
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	p, err := se.machine.Run(hostbox.Command{Argv: append([]string{in.Command}, c.args...), Dir: c.cwd, Env: list, UID: uid, GID: uid, Stdout: sink{c, "stdout"}, Stderr: sink{c, "stderr"}, Drain: 200 * time.Millisecond})
	if errors.Is(err, hostbox.ErrNoDir) {
		fail(w, http.StatusBadRequest, "bad_request", "the working directory does not exist: "+c.cwd)
		return
	}
	if err != nil {
		fail(w, http.StatusGone, "sandbox_stopped", err.Error())
		return
	}
	c.proc = p
	se.mu.Lock()
	se.commands[c.id] = c
	se.mu.Unlock()
	go c.reap(in.Timeout)
	if !in.Wait {
		reply(w, http.StatusOK, map[string]any{"command": c.view()})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := &lines{w: w}
	out.send(map[string]any{"command": c.view()})
	if s.follow(r, out, se, c, in.Logs) {
		out.send(map[string]any{"command": c.view()})
	}
}

// reap keeps the end of a command. The service's exit code of a signal is 128
// and its number.
func (c *command) reap(timeout int64) {
	if timeout > 0 {
		t := time.AfterFunc(time.Duration(timeout)*time.Millisecond, func() { _ = c.proc.SignalGroup(9) })
		defer t.Stop()
	}
	<-c.proc.Done()
	x := c.proc.Exit()
	code := x.Code
	if x.Signal != 0 {
		code = 128 + x.Signal
	}
	c.mu.Lock()
	c.exit, c.duration = &code, now()-c.started
	c.mu.Unlock()
	close(c.over)
}

// lines writes one JSON value per line.
type lines struct {
	w   http.ResponseWriter
	err error
}

func (l *lines) send(v any) {
	body, err := json.Marshal(v)
	if err == nil {
		_, err = l.w.Write(append(body, '\n'))
	}
	if err != nil {
		l.err = err
		return
	}
	if f, ok := l.w.(http.Flusher); ok {
		f.Flush()
	}
}

// follow streams a command's output from its start and reports whether the
// command has ended.
func (s *Server) follow(r *http.Request, out *lines, se *session, c *command, logs bool) bool {
	var limit <-chan time.Time
	if s.StreamLimit > 0 {
		t := time.NewTimer(s.StreamLimit)
		defer t.Stop()
		limit = t.C
	}
	at := 0
	drain := func() {
		for {
			c.mu.Lock()
			rest := c.lines[at:]
			c.mu.Unlock()
			if len(rest) == 0 {
				return
			}
			for _, l := range rest {
				if logs && out.err == nil {
					out.send(l)
				}
			}
			at += len(rest)
		}
	}
	for {
		c.mu.Lock()
		more := c.more
		c.mu.Unlock()
		drain()
		if out.err != nil {
			return false // the command runs on
		}
		select {
		case <-more:
		case <-c.over:
			drain()
			return true
		case <-limit:
			out.send(map[string]any{"stream": "error", "data": map[string]string{"code": "sandbox_stream_closed", "message": "The stream was closed"}})
			return false
		case <-se.ctx.Done():
			out.send(map[string]any{"stream": "error", "data": map[string]string{"code": "sandbox_stopped", "message": "Sandbox has stopped"}})
			return false
		case <-r.Context().Done():
			return false
		}
	}
}

func (s *Server) command(w http.ResponseWriter, r *http.Request, se *session) *command {
	se.mu.Lock()
	c := se.commands[r.PathValue("cid")]
	se.mu.Unlock()
	if c == nil {
		fail(w, http.StatusNotFound, "not_found", "Command not found")
	}
	return c
}

func (s *Server) getCommand(w http.ResponseWriter, r *http.Request, se *session) {
	c := s.command(w, r, se)
	if c == nil {
		return
	}
	if r.URL.Query().Get("wait") == "true" {
		select {
		case <-c.over:
		case <-r.Context().Done():
			return
		case <-se.ctx.Done():
			fail(w, http.StatusGone, "sandbox_stopped", "Sandbox has stopped")
			return
		}
	}
	reply(w, http.StatusOK, map[string]any{"command": c.view()})
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request, se *session) {
	if c := s.command(w, r, se); c != nil {
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.WriteHeader(http.StatusOK)
		s.follow(r, &lines{w: w}, se, c, true)
	}
}

func (s *Server) kill(w http.ResponseWriter, r *http.Request, se *session) {
	c := s.command(w, r, se)
	if c == nil {
		return
	}
	var in struct {
		Signal int `json:"signal"`
	}
	if !decode(w, r, &in) {
		return
	}
	_ = c.proc.Signal(in.Signal) // one that has ended is fine
	reply(w, http.StatusOK, map[string]any{"command": c.view()})
}

const uid = 1000 // of vercel-sandbox

func (s *Server) write(w http.ResponseWriter, r *http.Request, se *session) {
	root, err := se.machine.Files()
	if err != nil {
		fail(w, http.StatusGone, "sandbox_stopped", err.Error())
		return
	}
	defer func() { _ = root.Close() }()
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_request", err.Error())
		return
	}
	cwd := r.Header.Get("X-Cwd")
	if cwd == "" {
		cwd = Workdir
	}
	tr := tar.NewReader(z)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = unpack(root, path.Join(cwd, h.Name), h, tr)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, "bad_request", err.Error())
			return
		}
	}
	reply(w, http.StatusOK, map[string]any{})
}

func unpack(root *os.Root, p string, h *tar.Header, body io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return hostbox.MkdirAll(root, p, uid, uid)
	}
	if err := hostbox.MkdirAll(root, path.Dir(p), uid, uid); err != nil {
		return err
	}
	f, err := root.OpenFile(hostbox.Rel(p), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Chmod(os.FileMode(h.Mode).Perm()), f.Chown(uid, uid), f.Close())
}

type pathRequest struct {
	Path string `json:"path"`
	Cwd  string `json:"cwd"`
}

func (p pathRequest) full() string {
	if path.IsAbs(p.Path) {
		return path.Clean(p.Path)
	}
	cwd := p.Cwd
	if cwd == "" {
		cwd = Workdir
	}
	return path.Join(cwd, p.Path)
}

func (s *Server) read(w http.ResponseWriter, r *http.Request, se *session) {
	var in pathRequest
	if !decode(w, r, &in) {
		return
	}
	root, err := se.machine.Files()
	if err != nil {
		fail(w, http.StatusGone, "sandbox_stopped", err.Error())
		return
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(hostbox.Rel(in.full()))
	if err != nil {
		fail(w, http.StatusNotFound, "not_found", "File not found: "+in.Path)
		return
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		fail(w, http.StatusBadRequest, "bad_request", "Not a file: "+in.Path)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = io.Copy(w, f) // the client may be gone
}

func (s *Server) mkdir(w http.ResponseWriter, r *http.Request, se *session) {
	var in pathRequest
	if !decode(w, r, &in) {
		return
	}
	root, err := se.machine.Files()
	if err != nil {
		fail(w, http.StatusGone, "sandbox_stopped", err.Error())
		return
	}
	defer func() { _ = root.Close() }()
	name := strings.TrimSuffix(hostbox.Rel(in.full()), "/")
	err = root.Mkdir(name, 0o755)
	if err == nil {
		err = root.Lchown(name, uid, uid)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_request", err.Error())
		return
	}
	reply(w, http.StatusOK, map[string]any{})
}

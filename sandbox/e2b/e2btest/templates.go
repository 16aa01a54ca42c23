package e2btest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"assay/internal/hostbox"
)

// template is a start point.
type template struct {
	id, alias  string
	label      string // of a snapshot
	snapshotOf string
	saved      string // what hostbox saved, or "" for this machine as it is
	env        map[string]string
	user       string
	workdir    string
	ready      bool
}

// build is one build of a template.
type build struct {
	id, template, name string
	tags               []string
	steps              []Step

	mu     sync.Mutex
	status string
	logs   []map[string]any
	reason map[string]any
}

// Step is one step of a build as it was sent.
type Step struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash,omitempty"`
	Force     bool     `json:"force"`
}

func (s *Server) templateRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v3/templates", s.register)
	mux.HandleFunc("GET /templates/{id}/files/{hash}", s.fileLink)
	mux.HandleFunc("PUT /_upload/{hash}", s.putFile)
	mux.HandleFunc("POST /v2/templates/{id}/builds/{build}", s.startBuild)
	mux.HandleFunc("GET /templates/{id}/builds/{build}/status", s.buildStatus)
	mux.HandleFunc("GET /templates/{id}/{what}", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.PathValue("id") == "aliases":
			r.SetPathValue("alias", r.PathValue("what"))
			s.alias(w, r)
		case r.PathValue("what") == "tags":
			s.tags(w, r)
		default:
			fail(w, http.StatusNotFound, "no matching operation was found", "")
		}
	})
	mux.HandleFunc("POST /templates/tags", s.addTags)
	mux.HandleFunc("DELETE /templates/tags", s.dropTags)
	mux.HandleFunc("DELETE /templates/{id}", s.deleteTemplate)
}

// lookup finds a start point by id, alias, "team/alias" and tag.
func (s *Server) lookup(name string) *template {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookupLocked(name)
}

func (s *Server) lookupLocked(name string) *template {
	if t := s.templates[name]; t != nil && t.ready {
		return t
	}
	bare := strings.TrimPrefix(name, "team/")
	alias, tag, ok := strings.Cut(bare, ":")
	if !ok {
		tag = "default"
	}
	if t := s.templates[alias]; t != nil && t.ready && !ok {
		return t
	}
	if id := s.names[alias+":"+tag]; id != "" {
		if t := s.templates[id]; t != nil && t.ready {
			return t
		}
	}
	return nil
}

var nameForm = regexp.MustCompile(`^(team/)?[a-z0-9_-]+(:[a-z0-9._-]+)?$`)

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if !decode(w, r, &in) {
		return
	}
	if len(in.Name) > 128 || !nameForm.MatchString(in.Name) {
		fail(w, http.StatusBadRequest, "invalid template name", "")
		return
	}
	alias, tag, ok := strings.Cut(strings.TrimPrefix(in.Name, "team/"), ":")
	tags := slices.Clone(in.Tags)
	if ok {
		tags = append([]string{tag}, tags...)
	}
	if len(tags) == 0 {
		tags = []string{"default"}
	}
	s.mu.Lock()
	s.next++
	id := "tpl" + alias + "x"
	b := &build{id: fmt.Sprintf("00000000-0000-4000-8000-%012d", s.next), template: id, name: alias, tags: tags, status: "waiting"}
	s.builds[b.id] = b
	s.mu.Unlock()
	reply(w, http.StatusAccepted, map[string]any{
		"templateID": id, "buildID": b.id, "public": false, "aliases": []string{alias}, "names": []string{"team/" + alias}, "tags": tags,
	})
}

var hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *Server) fileLink(w http.ResponseWriter, r *http.Request) {
	hash := r.PathValue("hash")
	if !hashForm.MatchString(hash) {
		fail(w, http.StatusBadRequest, "invalid files hash", "")
		return
	}
	s.mu.Lock()
	present := s.files[hash] != ""
	s.mu.Unlock()
	v := map[string]any{"present": present}
	if !present {
		v["url"], v["headers"] = s.URL+"/_upload/"+hash, map[string]string{"x-ms-blob-type": "BlockBlob"}
	}
	reply(w, http.StatusCreated, v)
}

func (s *Server) putFile(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength < 0 {
		w.WriteHeader(http.StatusNotImplemented) // as object stores answer to chunks
		return
	}
	if r.Header.Get("X-Api-Key") != "" || r.Header.Get("X-Ms-Blob-Type") != "BlockBlob" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	file := filepath.Join(s.dir, r.PathValue("hash"))
	f, err := os.Create(file)
	if err == nil {
		_, err = io.Copy(f, r.Body)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	s.mu.Lock()
	s.files[r.PathValue("hash")] = file
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
}

func (s *Server) startBuild(w http.ResponseWriter, r *http.Request) {
	var in struct {
		FromImage         string          `json:"fromImage"`
		FromTemplate      string          `json:"fromTemplate"`
		FromImageRegistry json.RawMessage `json:"fromImageRegistry"`
		Force             bool            `json:"force"`
		StartCmd          string          `json:"startCmd"`
		ReadyCmd          string          `json:"readyCmd"`
		Steps             []Step          `json:"steps"`
	}
	if !decode(w, r, &in) {
		return
	}
	s.mu.Lock()
	b := s.builds[r.PathValue("build")]
	s.mu.Unlock()
	if b == nil || b.template != r.PathValue("id") {
		fail(w, http.StatusNotFound, "build not found", "")
		return
	}
	if (in.FromImage == "") == (in.FromTemplate == "") {
		fail(w, http.StatusBadRequest, "exactly one of fromImage and fromTemplate is required", "")
		return
	}
	b.mu.Lock()
	if b.status != "waiting" {
		b.mu.Unlock()
		fail(w, http.StatusBadRequest, "build is not in waiting state", "")
		return
	}
	b.status, b.steps = "building", in.Steps
	b.mu.Unlock()
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.build(b, in.FromTemplate, in.StartCmd, in.ReadyCmd)
	}()
	empty(w, http.StatusAccepted)
}

// Steps are the steps of a build as they were sent.
func (s *Server) Steps(buildID string) []Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.builds[buildID]; b != nil {
		return b.steps
	}
	return nil
}

func (b *build) log(step, level, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.logs = append(b.logs, map[string]any{"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "level": level, "message": fmt.Sprintf(format, args...), "step": step})
}

func (b *build) failed(step, message string) {
	b.log(step, "error", "%s", message)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.reason = "error", map[string]any{"message": message, "step": step, "logEntries": []any{}}
}

// build carries a build out on a machine.
func (s *Server) build(b *build, from, start, ready string) {
	ctx := context.Background()
	t := template{id: b.template, alias: b.name, user: "user", env: map[string]string{}}
	if from != "" {
		base := s.lookup(from)
		if base == nil {
			b.failed("base", fmt.Sprintf("template '%s' not found", from))
			return
		}
		t.saved, t.user, t.workdir = base.saved, base.user, base.workdir
		for k, v := range base.env {
			t.env[k] = v
		}
	}
	m, err := hostbox.Start(ctx, hostbox.Options{Users: []hostbox.User{{Name: "user", UID: 1000, Home: "/home/user"}}, From: t.saved})
	if err != nil {
		b.failed("base", err.Error())
		return
	}
	defer func() { _ = m.Stop() }()
	for i, st := range b.steps {
		name := strconv.Itoa(i + 1)
		b.log(name, "info", "[builder %d/%d] %s %s", i+1, len(b.steps), st.Type, strings.Join(st.Args, " "))
		if err := s.step(m, b, &t, st, name); err != nil {
			b.failed(name, err.Error())
			return
		}
	}
	if start != "" || ready != "" {
		if err := s.finish(m, b, &t, start, ready); err != nil {
			b.failed("finalize", err.Error())
			return
		}
	}
	dir := s.saveDir()
	if err := m.Save(ctx, dir); err != nil {
		b.failed("finalize", err.Error())
		return
	}
	t.saved, t.ready = dir, true
	unique := b.template + "/" + b.id
	s.mu.Lock()
	s.templates[unique] = &t
	for _, tag := range b.tags {
		s.names[b.name+":"+tag] = unique
		if tag == "default" {
			s.names[b.template+":"+tag] = unique
		}
	}
	if s.names[b.template+":default"] == "" {
		s.names[b.template+":default"] = unique
	}
	s.mu.Unlock()
	b.log("finalize", "info", "Build finished")
	b.mu.Lock()
	b.status = "ready"
	b.mu.Unlock()
}

// shell runs a command of a build.
func shell(m *hostbox.Box, t *template, user, script string, out io.Writer) (hostbox.Exit, error) {
	root, err := m.Files()
	if err != nil {
		return hostbox.Exit{}, err
	}
	a, err := hostbox.Lookup(root, user)
	_ = root.Close()
	if err != nil {
		return hostbox.Exit{}, err
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + a.Home, "USER=" + a.Name}
	for k, v := range t.env {
		env = append(env, k+"="+v)
	}
	dir := t.workdir
	if dir == "" {
		dir = a.Home
	}
	p, err := m.Run(hostbox.Command{Argv: []string{"/bin/bash", "-l", "-c", script}, Dir: dir, Env: env, UID: a.UID, GID: a.GID, Stdout: out, Stderr: out})
	if err != nil {
		return hostbox.Exit{}, err
	}
	<-p.Done()
	return p.Exit(), nil
}

func (s *Server) step(m *hostbox.Box, b *build, t *template, st Step, name string) error {
	arg := func(i int) string {
		if i < len(st.Args) {
			return st.Args[i]
		}
		return ""
	}
	switch st.Type {
	case "RUN":
		user := t.user
		if arg(1) != "" {
			user = arg(1)
		}
		var out bytes.Buffer
		x, err := shell(m, t, user, arg(0), &out)
		if text := strings.TrimSpace(out.String()); text != "" {
			b.log(name, "info", "%s", text)
		}
		if err == nil && x.Code != 0 {
			err = fmt.Errorf("failed to run command '%s': exit status %d", arg(0), x.Code)
		}
		return err
	case "ENV":
		for i := 0; i+1 < len(st.Args); i += 2 {
			t.env[st.Args[i]] = os.Expand(st.Args[i+1], func(k string) string { return t.env[k] })
		}
		return nil
	case "USER":
		t.user = arg(0)
		if t.user == "root" || t.user == "user" {
			return nil
		}
		x, err := shell(m, t, "root", "id "+t.user+" 2>/dev/null || useradd -m "+t.user, io.Discard)
		if err == nil && x.Code != 0 {
			err = fmt.Errorf("failed to make user '%s'", t.user)
		}
		return err
	case "WORKDIR":
		t.workdir = arg(0)
		root, err := m.Files()
		if err != nil {
			return err
		}
		defer func() { _ = root.Close() }()
		a, err := hostbox.Lookup(root, t.user)
		if err != nil {
			return err
		}
		return hostbox.MkdirAll(root, t.workdir, a.UID, a.GID)
	case "COPY":
		return s.copy(m, t, st)
	default:
		return fmt.Errorf("unknown step %s", st.Type)
	}
}

// copy unpacks an uploaded archive as Docker's COPY would.
func (s *Server) copy(m *hostbox.Box, t *template, st Step) error {
	s.mu.Lock()
	file := s.files[st.FilesHash]
	s.mu.Unlock()
	if file == "" || len(st.Args) < 2 {
		return errors.New("the files of the COPY were not uploaded")
	}
	root, err := m.Files()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	owner := t.user
	if len(st.Args) > 2 && st.Args[2] != "" {
		owner = st.Args[2]
	}
	owner, _, _ = strings.Cut(owner, ":")
	a, err := hostbox.Lookup(root, owner)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var r io.Reader = f
	if z, err := gzip.NewReader(f); err == nil {
		r = z
	} else if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	src, dest := path.Clean(st.Args[0]), st.Args[1]
	if !path.IsAbs(dest) {
		dest = path.Join("/", t.workdir, dest) + strings.Repeat("/", len(dest)-len(strings.TrimRight(dest, "/")))
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := place(root, h, tr, src, dest, st, a); err != nil {
			return err
		}
	}
}

// place puts one entry where it belongs.
func place(root *os.Root, h *tar.Header, body io.Reader, src, dest string, st Step, a hostbox.Account) error {
	name := path.Clean(h.Name)
	to := path.Join(dest, strings.TrimPrefix(strings.TrimPrefix(name, src), "/"))
	if name == src && h.Typeflag == tar.TypeReg && strings.HasSuffix(dest, "/") || strings.ContainsAny(src, "*?[") {
		to = path.Join(dest, path.Base(name))
	}
	mode := os.FileMode(h.Mode).Perm()
	if len(st.Args) > 3 && st.Args[3] != "" {
		if n, err := strconv.ParseUint(st.Args[3], 8, 32); err == nil {
			mode = os.FileMode(n).Perm()
		}
	}
	if err := hostbox.MkdirAll(root, path.Dir(to), a.UID, a.GID); err != nil {
		return err
	}
	rel := hostbox.Rel(to)
	switch h.Typeflag {
	case tar.TypeDir:
		return hostbox.MkdirAll(root, to, a.UID, a.GID)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, rel)
	case tar.TypeReg:
		f, err := root.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, body)
		return errors.Join(err, f.Chmod(mode), f.Chown(a.UID, a.GID), f.Close())
	}
	return nil
}

// finish runs the start command and waits until the ready command succeeds.
func (s *Server) finish(m *hostbox.Box, b *build, t *template, start, ready string) error {
	if start != "" {
		x, err := shell(m, t, t.user, "nohup /bin/bash -l -c '"+strings.ReplaceAll(start, "'", `'\''`)+"' >/dev/null 2>&1 &", io.Discard)
		if err != nil || x.Code != 0 {
			return errors.Join(err, fmt.Errorf("failed to run start command: exit status %d", x.Code))
		}
	}
	if ready == "" {
		return nil
	}
	limit := time.Now().Add(time.Minute)
	for time.Now().Before(limit) {
		x, err := shell(m, t, t.user, ready, io.Discard)
		if err != nil {
			return err
		}
		if x.Code == 0 {
			b.log("finalize", "info", "Template is ready")
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("the ready command did not succeed")
}

func (s *Server) buildStatus(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	b := s.builds[r.PathValue("build")]
	s.mu.Unlock()
	if b == nil || b.template != r.PathValue("id") {
		fail(w, http.StatusBadRequest, "build not found", "")
		return
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("logsOffset"))
	b.mu.Lock()
	defer b.mu.Unlock()
	page := b.logs[min(max(offset, 0), len(b.logs)):]
	page = page[:min(len(page), 100)]
	entries := make([]any, 0, len(page))
	for _, e := range page {
		entries = append(entries, e)
	}
	v := map[string]any{"templateID": b.template, "buildID": b.id, "status": b.status, "logs": []string{}, "logEntries": entries}
	if b.reason != nil {
		v["reason"] = b.reason
	}
	reply(w, http.StatusOK, v)
}

func (s *Server) alias(w http.ResponseWriter, r *http.Request) {
	alias := r.PathValue("alias")
	if strings.HasPrefix(alias, "others-") {
		fail(w, http.StatusForbidden, "you don't have access to this template", "")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.names {
		if n, _, _ := strings.Cut(name, ":"); n == alias {
			reply(w, http.StatusOK, map[string]any{"templateID": "tpl" + alias + "x", "public": false})
			return
		}
	}
	fail(w, http.StatusNotFound, "template alias not found", "")
}

func (s *Server) addTags(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if !decode(w, r, &in) {
		return
	}
	alias, tag, ok := strings.Cut(strings.TrimPrefix(in.Target, "team/"), ":")
	if !ok {
		tag = "default"
	}
	s.mu.Lock()
	unique := s.names[alias+":"+tag]
	if unique != "" {
		for _, t := range in.Tags {
			s.names[alias+":"+t] = unique
		}
	}
	s.mu.Unlock()
	if unique == "" {
		fail(w, http.StatusNotFound, fmt.Sprintf("tag '%s' does not exist for template '%s'", tag, alias), "")
		return
	}
	reply(w, http.StatusCreated, map[string]any{"tags": in.Tags, "buildID": path.Base(unique)})
}

func (s *Server) dropTags(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if !decode(w, r, &in) {
		return
	}
	if slices.Contains(in.Tags, "default") {
		fail(w, http.StatusBadRequest, "the default tag cannot be deleted", "")
		return
	}
	s.mu.Lock()
	for _, t := range in.Tags {
		delete(s.names, strings.TrimPrefix(in.Name, "team/")+":"+t)
	}
	s.mu.Unlock()
	empty(w, http.StatusNoContent)
}

func (s *Server) tags(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	alias := strings.TrimSuffix(strings.TrimPrefix(id, "tpl"), "x")
	out := []any{}
	s.mu.Lock()
	for name, unique := range s.names {
		if n, tag, _ := strings.Cut(name, ":"); n == alias || n == id && alias == id {
			out = append(out, map[string]any{"tag": tag, "buildID": path.Base(unique), "createdAt": time.Now().UTC().Format(time.RFC3339)})
		}
	}
	s.mu.Unlock()
	reply(w, http.StatusOK, out)
}

func (s *Server) deleteTemplate(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.mu.Lock()
	t := s.templates[id]
	if t != nil {
		for name, one := range s.templates {
			if one == t {
				delete(s.templates, name)
			}
		}
	}
	found := t != nil
	for name, unique := range s.names {
		if strings.HasPrefix(unique, id+"/") || strings.HasPrefix(name, id+":") {
			delete(s.names, name)
			found = true
		}
	}
	s.mu.Unlock()
	if !found {
		fail(w, http.StatusNotFound, fmt.Sprintf("template '%s' not found", id), "")
		return
	}
	empty(w, http.StatusNoContent)
}

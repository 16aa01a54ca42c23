package e2btest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

func (s *Server) sandboxRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { empty(w, http.StatusNoContent) })
	second := func(do http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if s.OnlyV1 {
				fail(w, http.StatusNotFound, "no matching operation was found", "")
				return
			}
			do(w, r)
		}
	}
	mux.HandleFunc("POST /v2/sandboxes", second(func(w http.ResponseWriter, r *http.Request) { s.create(w, r, 2) }))
	mux.HandleFunc("POST /v2/sandboxes/{id}/connect", second(s.connect))
	mux.HandleFunc("POST /sandboxes", func(w http.ResponseWriter, r *http.Request) { s.create(w, r, 1) })
	mux.HandleFunc("POST /sandboxes/{id}/connect", s.connect)
	mux.HandleFunc("POST /sandboxes/{id}/resume", s.resume)
	mux.HandleFunc("GET /v2/sandboxes", s.list)
	mux.HandleFunc("GET /sandboxes", s.listRunning)
	mux.HandleFunc("GET /sandboxes/{id}", s.with(s.describe))
	mux.HandleFunc("DELETE /sandboxes/{id}", s.with(func(w http.ResponseWriter, _ *http.Request, b *box) {
		s.kill(b)
		empty(w, http.StatusNoContent)
	}))
	mux.HandleFunc("POST /sandboxes/{id}/timeout", s.with(s.timeout))
	mux.HandleFunc("POST /sandboxes/{id}/refreshes", s.with(s.refresh))
	mux.HandleFunc("POST /sandboxes/{id}/pause", s.with(s.doPause))
	mux.HandleFunc("POST /sandboxes/{id}/snapshots", s.with(s.snapshot))
	mux.HandleFunc("GET /snapshots", s.snapshots)
	mux.HandleFunc("PUT /sandboxes/{id}/network", s.with(func(w http.ResponseWriter, _ *http.Request, _ *box) { empty(w, http.StatusNoContent) }))
	mux.HandleFunc("GET /sandboxes/{id}/metrics", s.with(func(w http.ResponseWriter, _ *http.Request, _ *box) { reply(w, http.StatusOK, []any{}) }))
}

func missing(w http.ResponseWriter, id string) {
	fail(w, http.StatusNotFound, fmt.Sprintf("Sandbox %q doesn't exist or you don't have access to it", id), "")
}

// with finds the sandbox of a request.
func (s *Server) with(do func(http.ResponseWriter, *http.Request, *box)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := s.find(r.PathValue("id"))
		if b == nil {
			missing(w, r.PathValue("id"))
			return
		}
		do(w, r, b)
	}
}

type newSandbox struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int              `json:"timeout"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	Secure          bool              `json:"secure"`
	Network         *struct {
		AllowOut []string `json:"allowOut"`
		DenyOut  []string `json:"denyOut"`
	} `json:"network"`
}

// check refuses what the service refuses.
func (s *Server) check(n *newSandbox, seconds int) (status int, message string) {
	longest := s.MaxLife
	if longest == 0 {
		longest = 24 * time.Hour
	}
	switch {
	case n.TemplateID == "":
		return http.StatusBadRequest, "validation error: templateID is required"
	case seconds <= 0:
		return http.StatusBadRequest, "Timeout must be greater than 0"
	case time.Duration(seconds)*time.Second > longest:
		return http.StatusBadRequest, fmt.Sprintf("Timeout cannot be greater than %d hours", int(longest.Hours()))
	case n.AutoPauseMemory != nil && !*n.AutoPauseMemory && !n.AutoPause:
		return http.StatusBadRequest, "autoPauseMemory requires autoPause"
	}
	if n.Network != nil {
		for _, host := range n.Network.AllowOut {
			named := strings.ContainsAny(host, "abcdefghijklmnopqrstuvwxyz")
			if named && !slices.Contains(n.Network.DenyOut, "0.0.0.0/0") {
				return http.StatusBadRequest, "a domain in allowOut requires 0.0.0.0/0 in denyOut"
			}
		}
	}
	return 0, ""
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, version int) {
	var n newSandbox
	if !decode(w, r, &n) {
		return
	}
	seconds := 300
	if version == 1 {
		seconds = 15
	}
	if n.Timeout != nil {
		seconds = *n.Timeout
	}
	if status, message := s.check(&n, seconds); status != 0 {
		fail(w, status, message, "")
		return
	}
	t := s.lookup(n.TemplateID)
	if t == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("template '%s' not found", n.TemplateID), "")
		return
	}
	b := &box{id: "i" + random(20), template: t, metadata: n.Metadata, env: n.EnvVars, started: time.Now().UTC(), autoPause: n.AutoPause}
	if version == 2 || n.Secure {
		b.token = "ent_" + random(40)
	}
	s.mu.Lock()
	if s.MaxSandboxes > 0 && len(s.sandboxes) >= s.MaxSandboxes {
		s.mu.Unlock()
		fail(w, http.StatusTooManyRequests, fmt.Sprintf("you have reached the maximum number of concurrent E2B sandboxes (%d)", s.MaxSandboxes), "")
		return
	}
	s.mu.Unlock()
	// The service makes a sandbox whether or not the client still waits.
	if err := s.boot(context.WithoutCancel(r.Context()), t, b); err != nil {
		fail(w, http.StatusInternalServerError, err.Error(), "sandbox_create_failed")
		return
	}
	s.mu.Lock()
	s.sandboxes[b.id] = b
	s.setLife(b, time.Now().Add(time.Duration(seconds)*time.Second))
	s.mu.Unlock()
	reply(w, http.StatusCreated, s.view(b))
}

// view is a sandbox as create and connect return it.
func (s *Server) view(b *box) map[string]any {
	v := map[string]any{
		"templateID": b.template.id, "sandboxID": b.id, "alias": b.template.alias, "clientID": "6532622b",
		"envdVersion": envdVersion, "trafficAccessToken": nil, "domain": nil,
	}
	if b.token != "" {
		v["envdAccessToken"] = b.token
	}
	if s.Unknown {
		v["newField"] = map[string]any{"of": []int{1}}
	}
	return v
}

// info is a sandbox as get and list return it.
func (s *Server) info(b *box) map[string]any {
	v := s.view(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	state := "running"
	if b.paused {
		state = "paused"
	}
	meta := b.metadata
	if meta == nil {
		meta = map[string]string{}
	}
	for k, val := range map[string]any{
		"startedAt": b.started.Format(time.RFC3339Nano), "endAt": b.endAt.UTC().Format(time.RFC3339Nano), "state": state,
		"cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024, "metadata": meta, "volumeMounts": []any{},
	} {
		v[k] = val
	}
	return v
}

func (s *Server) describe(w http.ResponseWriter, _ *http.Request, b *box) {
	v := s.info(b)
	v["allowInternetAccess"], v["network"] = nil, map[string]any{}
	v["lifecycle"] = map[string]any{"onTimeout": "kill", "autoResume": false}
	reply(w, http.StatusOK, v)
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	b := s.find(r.PathValue("id"))
	if b == nil {
		missing(w, r.PathValue("id"))
		return
	}
	var in struct {
		Timeout *int `json:"timeout"`
	}
	if !decode(w, r, &in) {
		return
	}
	seconds := 300
	if in.Timeout != nil {
		seconds = *in.Timeout
	}
	s.mu.Lock()
	status := http.StatusOK
	at := time.Now().Add(time.Duration(seconds) * time.Second)
	if b.paused {
		b.paused, status = false, http.StatusCreated
		_ = b.machine.Thaw() // one that is gone is found missing next time
		s.setLife(b, at)
	} else if at.After(b.endAt) {
		s.setLife(b, at)
	}
	s.mu.Unlock()
	reply(w, status, s.view(b))
}

func (s *Server) resume(w http.ResponseWriter, r *http.Request) {
	b := s.find(r.PathValue("id"))
	if b == nil {
		missing(w, r.PathValue("id"))
		return
	}
	s.mu.Lock()
	paused := b.paused
	s.mu.Unlock()
	if !paused {
		fail(w, http.StatusConflict, "sandbox is already running", "")
		return
	}
	s.connect(w, r)
}

func (s *Server) timeout(w http.ResponseWriter, r *http.Request, b *box) {
	var in struct {
		Timeout int `json:"timeout"`
	}
	if !decode(w, r, &in) {
		return
	}
	longest := s.MaxLife
	if longest == 0 {
		longest = 24 * time.Hour
	}
	s.mu.Lock()
	if b.paused {
		s.mu.Unlock()
		missing(w, b.id)
		return
	}
	at := time.Now().Add(time.Duration(in.Timeout) * time.Second)
	if latest := b.started.Add(longest); at.After(latest) {
		at = latest // capped, without a word
	}
	s.setLife(b, at)
	s.mu.Unlock()
	empty(w, http.StatusNoContent)
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request, b *box) {
	var in struct {
		Duration int `json:"duration"`
	}
	if !decode(w, r, &in) {
		return
	}
	s.mu.Lock()
	if at := time.Now().Add(time.Duration(max(in.Duration, 15)) * time.Second); at.After(b.endAt) {
		s.setLife(b, at)
	}
	s.mu.Unlock()
	empty(w, http.StatusNoContent)
}

var errPaused = errors.New("sandbox is already paused")

func (s *Server) pause(b *box) error {
	s.mu.Lock()
	if b.paused {
		s.mu.Unlock()
		return errPaused
	}
	b.paused = true
	if b.timer != nil {
		b.timer.Stop()
	}
	err := b.machine.Freeze()
	s.mu.Unlock()
	s.Cut("/process.Process/") // connections do not survive
	return err
}

func (s *Server) doPause(w http.ResponseWriter, _ *http.Request, b *box) {
	if err := s.pause(b); err != nil {
		fail(w, http.StatusConflict, err.Error(), "")
		return
	}
	empty(w, http.StatusNoContent)
}

func (s *Server) snapshot(w http.ResponseWriter, r *http.Request, b *box) {
	var in struct {
		Name string `json:"name"`
	}
	if !decode(w, r, &in) {
		return
	}
	dir := s.saveDir()
	if err := b.machine.Save(r.Context(), dir); err != nil {
		fail(w, http.StatusInternalServerError, err.Error(), "internal_server_error")
		return
	}
	id := "snapshot-" + random(12)
	name := id
	if in.Name != "" {
		name = "team/" + in.Name + ":default"
	}
	s.mu.Lock()
	t := *b.template
	t.id, t.alias, t.saved, t.snapshotOf, t.label = id, "", dir, b.id, name
	s.templates[id] = &t
	if in.Name != "" {
		s.templates[name] = &t
	}
	s.mu.Unlock()
	reply(w, http.StatusCreated, map[string]any{"snapshotID": name, "names": []string{name}})
}

func (s *Server) snapshots(w http.ResponseWriter, r *http.Request) {
	of := r.URL.Query().Get("sandboxID")
	out := []any{}
	s.mu.Lock()
	for id, t := range s.templates {
		if t.snapshotOf != "" && id == t.id && (of == "" || of == t.snapshotOf) {
			out = append(out, map[string]any{"snapshotID": t.label, "names": []string{t.label}})
		}
	}
	s.mu.Unlock()
	reply(w, http.StatusOK, out)
}

// selected returns the sandboxes that a filter selects, oldest first.
func (s *Server) selected(metadata string, states []string) ([]*box, error) {
	want := map[string]string{}
	if metadata != "" {
		form, err := url.QueryUnescape(metadata)
		if err != nil {
			return nil, err
		}
		for pair := range strings.SplitSeq(form, "&") {
			k, v, _ := strings.Cut(pair, "=")
			if k, err = url.QueryUnescape(k); err != nil {
				return nil, err
			}
			if want[k], err = url.QueryUnescape(v); err != nil {
				return nil, err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*box
next:
	for _, b := range s.sandboxes {
		state := "running"
		if b.paused {
			state = "paused"
		}
		if !slices.Contains(states, state) {
			continue
		}
		for k, v := range want {
			if b.metadata[k] != v {
				continue next
			}
		}
		out = append(out, b)
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].started.Before(out[j].started) || out[i].started.Equal(out[j].started) && out[i].id < out[j].id
	})
	return out, nil
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	states := []string{"running", "paused"}
	if v := q.Get("state"); v != "" {
		states = strings.Split(v, ",")
	}
	all, err := s.selected(q.Get("metadata"), states)
	if err != nil {
		fail(w, http.StatusBadRequest, "validation error: "+err.Error(), "")
		return
	}
	size := s.PageSize
	if size == 0 {
		size = 100
	}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 && n < size {
		size = n
	}
	start := 0
	if tok := q.Get("nextToken"); tok != "" {
		raw, err := base64.RawURLEncoding.DecodeString(tok)
		if err != nil {
			fail(w, http.StatusBadRequest, "invalid next token", "")
			return
		}
		for start < len(all) && all[start].started.Format(time.RFC3339Nano)+"__"+all[start].id <= string(raw) {
			start++
		}
	}
	end := min(start+size, len(all))
	out := []any{}
	for _, b := range all[start:end] {
		v := s.info(b)
		delete(v, "envdAccessToken")
		out = append(out, v)
	}
	if end < len(all) {
		last := all[end-1]
		w.Header().Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(last.started.Format(time.RFC3339Nano)+"__"+last.id)))
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) listRunning(w http.ResponseWriter, r *http.Request) {
	all, err := s.selected(r.URL.Query().Get("metadata"), []string{"running"})
	if err != nil {
		fail(w, http.StatusBadRequest, "validation error: "+err.Error(), "")
		return
	}
	out := []any{}
	for _, b := range all {
		out = append(out, s.info(b))
	}
	reply(w, http.StatusOK, out)
}

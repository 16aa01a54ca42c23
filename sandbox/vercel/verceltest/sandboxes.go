package verceltest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

func (s *Server) longest() int64 {
	if s.MaxLife == 0 {
		return (5 * time.Hour).Milliseconds()
	}
	return s.MaxLife.Milliseconds()
}

type newSandbox struct {
	ProjectID string `json:"projectId"`
	Name      string `json:"name"`
	Ports     []int  `json:"ports"`
	Timeout   int64  `json:"timeout"`
	Resources *struct {
		VCPUs int `json:"vcpus"`
	} `json:"resources"`
	Source *struct {
		Type       string `json:"type"`
		SnapshotID string `json:"snapshotId"`
	} `json:"source"`
	Image      string            `json:"image"`
	Runtime    string            `json:"runtime"`
	Persistent bool              `json:"persistent"`
	Policy     map[string]any    `json:"networkPolicy"`
	Env        map[string]string `json:"env"`
	Tags       map[string]string `json:"tags"`
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var n newSandbox
	if !decode(w, r, &n) {
		return
	}
	source := ""
	if n.Source != nil {
		source = n.Source.SnapshotID
	}
	refuse := func(format string, args ...any) {
		fail(w, http.StatusBadRequest, "bad_request", fmt.Sprintf(format, args...))
	}
	switch {
	case n.ProjectID == "":
		refuse("projectId is required")
		return
	case len(n.Ports) > 15:
		refuse("Invalid request: `ports` should NOT have more than 15 items.")
		return
	case n.Image != "" && n.Runtime != "":
		refuse("image and runtime are mutually exclusive")
		return
	case n.Source != nil && n.Source.Type == "snapshot" && (n.Image != "" || n.Runtime != ""):
		refuse("a snapshot has its own image")
		return
	case n.Source != nil && n.Source.Type != "snapshot":
		refuse("the double has no sources but snapshots")
		return
	}
	if n.Timeout == 0 {
		n.Timeout = 300_000
	}
	if n.Timeout > s.longest() {
		fail(w, http.StatusBadRequest, "sandbox_timeout_invalid", fmt.Sprintf("timeout must be at most %d ms for your plan", s.longest()))
		return
	}
	if n.Name == "" {
		n.Name = "sandbox-" + random(10)
	}
	b := &box{
		name: n.Name, persistent: n.Persistent, runtime: n.Runtime, tags: n.Tags, env: n.Env, policy: n.Policy, vcpus: 2,
		timeout: n.Timeout, ports: n.Ports, created: now(),
	}
	if n.Resources != nil && n.Resources.VCPUs > 0 {
		b.vcpus = n.Resources.VCPUs
	}
	s.mu.Lock()
	taken, full := s.boxes[n.Name] != nil, s.MaxSandboxes > 0 && len(s.boxes) >= s.MaxSandboxes
	s.mu.Unlock()
	if taken {
		refuse("A sandbox with the name '%s' already exists for this project.", n.Name)
		return
	}
	if full {
		fail(w, http.StatusTooManyRequests, "too_many_requests", "Concurrent sandbox limit reached")
		return
	}
	se, err := s.boot(b, source)
	if errors.Is(err, errNoSnapshot) {
		fail(w, http.StatusGone, "snapshot_not_found", "Snapshot not found")
		return
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, "internal_error", err.Error())
		return
	}
	s.mu.Lock()
	b.session = se
	s.boxes[b.name] = b
	s.mu.Unlock()
	reply(w, http.StatusOK, map[string]any{"sandbox": s.view(b), "session": s.sessionView(se), "routes": s.routesOf(b)})
}

func (s *Server) find(w http.ResponseWriter, r *http.Request) *box {
	s.mu.Lock()
	b := s.boxes[r.PathValue("name")]
	s.mu.Unlock()
	if b == nil {
		fail(w, http.StatusNotFound, "not_found", "Sandbox not found")
	}
	return b
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	b := s.find(w, r)
	if b == nil {
		return
	}
	s.mu.Lock()
	stopped := b.session.status == "stopped"
	source := b.current
	s.mu.Unlock()
	resumed := false
	if r.URL.Query().Get("resume") == "true" && stopped {
		se, err := s.boot(b, source)
		if err != nil {
			fail(w, http.StatusGone, "snapshot_not_found", err.Error())
			return
		}
		s.mu.Lock()
		b.session, resumed = se, true
		s.mu.Unlock()
	}
	reply(w, http.StatusOK, map[string]any{"sandbox": s.view(b), "session": s.sessionView(b.session), "routes": s.routesOf(b), "resumed": resumed})
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request) {
	b := s.find(w, r)
	if b == nil {
		return
	}
	var in struct {
		Persistent *bool             `json:"persistent"`
		Timeout    int64             `json:"timeout"`
		Policy     map[string]any    `json:"networkPolicy"`
		Tags       map[string]string `json:"tags"`
		Ports      []int             `json:"ports"`
		Snapshot   string            `json:"currentSnapshotId"`
	}
	if !decode(w, r, &in) {
		return
	}
	s.mu.Lock()
	if in.Persistent != nil {
		b.persistent = *in.Persistent
	}
	if in.Timeout > 0 {
		b.timeout = in.Timeout
	}
	if in.Policy != nil {
		b.policy = in.Policy
	}
	if in.Tags != nil {
		b.tags = in.Tags
	}
	if in.Ports != nil {
		b.ports = in.Ports
	}
	if in.Snapshot != "" {
		b.current = in.Snapshot
	}
	s.mu.Unlock()
	reply(w, http.StatusOK, map[string]any{"sandbox": s.view(b), "routes": s.routesOf(b)})
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	b := s.find(w, r)
	if b == nil {
		return
	}
	s.mu.Lock()
	delete(s.boxes, b.name)
	b.persistent = false
	s.mu.Unlock()
	s.halt(b.session, "stopped")
	reply(w, http.StatusOK, map[string]any{"sandbox": s.view(b)})
}

// page cuts a list and says where the next page starts.
func (s *Server) page(r *http.Request, n int) (from, to int, pagination map[string]any) {
	size := s.PageSize
	if size == 0 {
		size = 50
	}
	if l, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && l > 0 && l < size {
		size = l
	}
	from, _ = strconv.Atoi(r.URL.Query().Get("cursor"))
	from = min(max(from, 0), n)
	to = min(from+size, n)
	pagination = map[string]any{"count": to - from, "next": nil}
	if to < n {
		pagination["next"] = strconv.Itoa(to)
	}
	return from, to, pagination
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	var all []*box
	for _, b := range s.boxes {
		if !strings.HasPrefix(b.name, q.Get("namePrefix")) {
			continue
		}
		if k, v, ok := strings.Cut(q.Get("tags"), ":"); ok && b.tags[k] != v {
			continue
		}
		all = append(all, b)
	}
	s.mu.Unlock()
	sort.Slice(all, func(i, j int) bool {
		return all[i].created > all[j].created || all[i].created == all[j].created && all[i].name < all[j].name
	})
	if q.Get("sortBy") == "name" {
		sort.Slice(all, func(i, j int) bool { return all[i].name < all[j].name })
	}
	from, to, p := s.page(r, len(all))
	out := []any{}
	for _, b := range all[from:to] {
		out = append(out, s.view(b))
	}
	reply(w, http.StatusOK, map[string]any{"sandboxes": out, "pagination": p})
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	s.mu.Lock()
	var all []*session
	for _, se := range s.sessions {
		if name == "" || se.box.name == name {
			all = append(all, se)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *session) int { return strings.Compare(a.id, b.id) })
	from, to, p := s.page(r, len(all))
	out := []any{}
	for _, se := range all[from:to] {
		out = append(out, s.sessionView(se))
	}
	reply(w, http.StatusOK, map[string]any{"sessions": out, "pagination": p})
}

func (s *Server) getSession(w http.ResponseWriter, _ *http.Request, se *session) {
	reply(w, http.StatusOK, map[string]any{"session": s.sessionView(se), "routes": s.routesOf(se.box)})
}

func (s *Server) stop(w http.ResponseWriter, _ *http.Request, se *session) {
	s.halt(se, "stopped")
	reply(w, http.StatusOK, map[string]any{"session": s.sessionView(se), "sandbox": s.view(se.box)})
}

func (s *Server) extend(w http.ResponseWriter, r *http.Request, se *session) {
	var in struct {
		Duration int64 `json:"duration"`
	}
	if !decode(w, r, &in) {
		return
	}
	s.mu.Lock()
	if in.Duration <= 0 || se.timeout+in.Duration > s.longest() {
		s.mu.Unlock()
		fail(w, http.StatusBadRequest, "sandbox_timeout_invalid", fmt.Sprintf("timeout must be at most %d ms for your plan", s.longest()))
		return
	}
	se.timeout += in.Duration
	s.arm(se)
	s.mu.Unlock()
	reply(w, http.StatusOK, map[string]any{"session": s.sessionView(se)})
}

func (s *Server) setPolicy(w http.ResponseWriter, r *http.Request, se *session) {
	var in map[string]any
	if !decode(w, r, &in) {
		return
	}
	s.mu.Lock()
	se.box.policy = in
	s.mu.Unlock()
	reply(w, http.StatusOK, map[string]any{"session": s.sessionView(se)})
}

func (s *Server) takeSnapshot(w http.ResponseWriter, r *http.Request, se *session) {
	var in struct {
		Expiration int64 `json:"expiration"`
	}
	if !decode(w, r, &in) {
		return
	}
	s.mu.Lock()
	se.status = "snapshotting"
	s.mu.Unlock()
	sn, err := s.save(se, in.Expiration)
	s.halt(se, "stopped")
	if err != nil {
		fail(w, http.StatusInternalServerError, "internal_error", err.Error())
		return
	}
	s.mu.Lock()
	se.box.current = sn.id
	s.mu.Unlock()
	reply(w, http.StatusCreated, map[string]any{"snapshot": s.snapshotView(sn), "session": s.sessionView(se)})
}

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	var all []*snapshot
	for _, sn := range s.snapshots {
		if sn.status == "created" {
			all = append(all, sn)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *snapshot) int { return strings.Compare(a.id, b.id) })
	from, to, p := s.page(r, len(all))
	out := []any{}
	for _, sn := range all[from:to] {
		out = append(out, s.snapshotView(sn))
	}
	reply(w, http.StatusOK, map[string]any{"snapshots": out, "pagination": p})
}

func (s *Server) oneSnapshot(w http.ResponseWriter, r *http.Request) *snapshot {
	s.mu.Lock()
	sn := s.snapshots[r.PathValue("id")]
	s.mu.Unlock()
	if sn == nil {
		fail(w, http.StatusNotFound, "not_found", "Snapshot not found")
	}
	return sn
}

func (s *Server) getSnapshot(w http.ResponseWriter, r *http.Request) {
	if sn := s.oneSnapshot(w, r); sn != nil {
		reply(w, http.StatusOK, map[string]any{"snapshot": s.snapshotView(sn)})
	}
}

func (s *Server) deleteSnapshot(w http.ResponseWriter, r *http.Request) {
	sn := s.oneSnapshot(w, r)
	if sn == nil {
		return
	}
	s.mu.Lock()
	sn.status = "deleted"
	s.mu.Unlock()
	reply(w, http.StatusOK, map[string]any{"snapshot": s.snapshotView(sn)})
}

package vercelapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// NewSandbox is what to create.
type NewSandbox struct {
	ProjectID     string            `json:"projectId"`
	Name          string            `json:"name"`
	Ports         []int             `json:"ports"`
	Timeout       int64             `json:"timeout,omitempty"` // milliseconds
	Resources     *Resources        `json:"resources,omitempty"`
	Source        *Source           `json:"source,omitempty"`
	Image         string            `json:"image,omitempty"`
	Runtime       string            `json:"runtime,omitempty"`
	Persistent    bool              `json:"persistent"`
	NetworkPolicy any               `json:"networkPolicy,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Tags          map[string]string `json:"tags,omitempty"`
}

// Resources of a sandbox; each vCPU comes with 2048 MB of memory.
type Resources struct {
	VCPUs int `json:"vcpus"`
}

// Source is where the files come from.
type Source struct {
	Type       string `json:"type"` // "snapshot", "git" or "tarball"
	SnapshotID string `json:"snapshotId,omitempty"`
	URL        string `json:"url,omitempty"`
}

// Policy is a network policy: a mode, or what is allowed.
type Policy struct {
	Mode  string   `json:"mode,omitempty"` // "allow-all" or "deny-all"
	Allow []string `json:"allow,omitempty"`
}

// Session is one running machine of a sandbox.
type Session struct {
	ID        string `json:"id"`
	Status    string `json:"status"`
	Timeout   int64  `json:"timeout"` // milliseconds
	CreatedAt int64  `json:"createdAt"`
	StartedAt int64  `json:"startedAt"`
	Cwd       string `json:"cwd"`
	VCPUs     int    `json:"vcpus"`
	Memory    int    `json:"memory"` // MB
}

// Ends is when the session's life ends.
func (s Session) Ends() time.Time {
	from := s.StartedAt
	if from == 0 {
		from = s.CreatedAt
	}
	return time.UnixMilli(from + s.Timeout)
}

// Sandbox is a named sandbox.
type Sandbox struct {
	Name             string            `json:"name"`
	Status           string            `json:"status"`
	Persistent       bool              `json:"persistent"`
	CurrentSessionID string            `json:"currentSessionId"`
	CurrentSnapshot  string            `json:"currentSnapshotId"`
	CreatedAt        int64             `json:"createdAt"`
	Tags             map[string]string `json:"tags"`
	Cwd              string            `json:"cwd"`
}

// Created is a sandbox with its session.
type Created struct {
	Sandbox Sandbox `json:"sandbox"`
	Session Session `json:"session"`
	Resumed bool    `json:"resumed"`
}

// Create makes a sandbox. The project is filled in from the credentials where
// it is empty. It is not repeated after an error that may have made one.
func (c *Client) Create(ctx context.Context, n NewSandbox) (*Created, error) {
	if n.ProjectID == "" {
		who, err := c.Credentials()
		if err != nil {
			return nil, err
		}
		n.ProjectID = who.ProjectID
	}
	if n.Ports == nil {
		n.Ports = []int{}
	}
	path := "/v3/sandboxes"
	if n.Runtime != "" {
		path = "/v2/sandboxes"
	}
	var out Created
	if err := c.json(ctx, request{method: http.MethodPost, path: path}, n, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

func named(name string) string { return "/v2/sandboxes/" + url.PathEscape(name) }

// Get describes a sandbox; with resume a stopped one gets a new session.
func (c *Client) Get(ctx context.Context, name string, resume bool) (*Created, error) {
	q := url.Values{}
	if resume {
		q.Set("resume", "true")
	}
	var out Created
	if err := c.json(ctx, request{method: http.MethodGet, path: named(name), query: q, project: "projectId"}, nil, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Delete stops and removes a sandbox. It reports false when there was none.
func (c *Client) Delete(ctx context.Context, name string) (bool, error) {
	err := c.json(ctx, request{method: http.MethodDelete, path: named(name), project: "projectId"}, nil, nil)
	if StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// Filter selects sandboxes.
type Filter struct {
	NamePrefix string
	// Tag is one "key:value".
	Tag string
	// Limit is the size of a page; 0 leaves it to the service.
	Limit int
}

type pagination struct {
	Next *string `json:"next"`
}

// List returns every sandbox that a filter selects, page by page.
func (c *Client) List(ctx context.Context, f Filter) ([]Sandbox, error) {
	q := url.Values{}
	if f.NamePrefix != "" {
		q.Set("namePrefix", f.NamePrefix)
		q.Set("sortBy", "name")
	}
	if f.Tag != "" {
		q.Set("tags", f.Tag)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	var all []Sandbox
	for {
		var page struct {
			Sandboxes  []Sandbox  `json:"sandboxes"`
			Pagination pagination `json:"pagination"`
		}
		if err := c.json(ctx, request{method: http.MethodGet, path: "/v2/sandboxes", query: q, project: "project"}, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		next := page.Pagination.Next
		if next == nil || *next == "" || *next == q.Get("cursor") {
			return all, nil
		}
		q.Set("cursor", *next)
	}
}

func session(id, rest string) string {
	return "/v2/sandboxes/sessions/" + url.PathEscape(id) + rest
}

// Session describes a session.
func (c *Client) Session(ctx context.Context, id string) (*Session, error) {
	var out struct {
		Session Session `json:"session"`
	}
	if err := c.json(ctx, request{method: http.MethodGet, path: session(id, "")}, nil, &out); err != nil {
		return nil, err
	}
	return &out.Session, nil
}

// Stop ends a session and returns once it has. A persistent sandbox keeps its
// files.
func (c *Client) Stop(ctx context.Context, id string) error {
	return c.json(ctx, request{method: http.MethodPost, path: session(id, "/stop")}, nil, nil)
}

// Extend adds to a session's life.
func (c *Client) Extend(ctx context.Context, id string, d time.Duration) error {
	return c.json(ctx, request{method: http.MethodPost, path: session(id, "/extend-timeout")}, map[string]int64{"duration": d.Milliseconds()}, nil)
}

// SetNetworkPolicy changes what a session may reach.
func (c *Client) SetNetworkPolicy(ctx context.Context, id string, p Policy) error {
	return c.json(ctx, request{method: http.MethodPost, path: session(id, "/network-policy")}, p, nil)
}

// Snapshot is a kept file system.
type Snapshot struct {
	ID        string `json:"id"`
	Status    string `json:"status"` // "created", "deleted" or "failed"
	SessionID string `json:"sourceSessionId"`
	Size      int64  `json:"sizeBytes"`
	CreatedAt int64  `json:"createdAt"`
	ExpiresAt int64  `json:"expiresAt"`
}

// CreateSnapshot keeps a session's files and stops it. Expiration 0 keeps them
// for ever, a negative one leaves it to the service.
func (c *Client) CreateSnapshot(ctx context.Context, id string, expiration time.Duration) (*Snapshot, error) {
	r := request{method: http.MethodPost, path: session(id, "/snapshot")}
	var in any
	if expiration >= 0 {
		in = map[string]int64{"expiration": expiration.Milliseconds()}
	}
	var out struct {
		Snapshot Snapshot `json:"snapshot"`
	}
	if err := c.json(ctx, r, in, &out); err != nil {
		return nil, err
	}
	return &out.Snapshot, nil
}

// GetSnapshot describes a snapshot.
func (c *Client) GetSnapshot(ctx context.Context, id string) (*Snapshot, error) {
	var out struct {
		Snapshot Snapshot `json:"snapshot"`
	}
	if err := c.json(ctx, request{method: http.MethodGet, path: "/v2/sandboxes/snapshots/" + url.PathEscape(id)}, nil, &out); err != nil {
		return nil, err
	}
	return &out.Snapshot, nil
}

// ListSnapshots returns every snapshot of the project.
func (c *Client) ListSnapshots(ctx context.Context) ([]Snapshot, error) {
	q := url.Values{}
	var all []Snapshot
	for {
		var page struct {
			Snapshots  []Snapshot `json:"snapshots"`
			Pagination pagination `json:"pagination"`
		}
		if err := c.json(ctx, request{method: http.MethodGet, path: "/v2/sandboxes/snapshots", query: q, project: "project"}, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Snapshots...)
		next := page.Pagination.Next
		if next == nil || *next == "" || *next == q.Get("cursor") {
			return all, nil
		}
		q.Set("cursor", *next)
	}
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return c.json(ctx, request{method: http.MethodDelete, path: "/v2/sandboxes/snapshots/" + url.PathEscape(id)}, nil, nil)
}

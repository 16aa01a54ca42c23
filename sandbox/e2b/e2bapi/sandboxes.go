package e2bapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// NewSandbox is what to create.
type NewSandbox struct {
	// TemplateID is an id, an alias or a snapshot, with an optional ":tag".
	TemplateID string `json:"templateID"`
	// Timeout is the life in seconds.
	Timeout  int               `json:"timeout,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	EnvVars  map[string]string `json:"envVars,omitempty"`
	// AutoPause pauses at the end of the life instead of killing.
	AutoPause bool `json:"autoPause,omitempty"`
	// Internet false cuts the sandbox off; nil is the account's default.
	Internet *bool    `json:"allow_internet_access,omitempty"`
	Network  *Network `json:"network,omitempty"`
	// Secure is only known to servers of the first version, where it must be
	// set: without it anyone who knows the id can run commands.
	Secure bool `json:"secure,omitempty"`
}

// Network says what a sandbox may reach. A host name in AllowOut needs
// "0.0.0.0/0" in DenyOut.
type Network struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`
}

// Sandbox is a created or connected sandbox.
type Sandbox struct {
	TemplateID  string `json:"templateID"`
	SandboxID   string `json:"sandboxID"`
	Alias       string `json:"alias"`
	EnvdVersion string `json:"envdVersion"`
	// EnvdToken authorises every call of envd; it is a secret.
	EnvdToken string `json:"envdAccessToken"`
	Domain    string `json:"domain"`
}

// Info is a sandbox as the control plane sees it.
type Info struct {
	Sandbox
	StartedAt time.Time         `json:"startedAt"`
	EndAt     time.Time         `json:"endAt"`
	State     string            `json:"state"` // "running" or "paused"
	CPUCount  int               `json:"cpuCount"`
	MemoryMB  int               `json:"memoryMB"`
	DiskMB    int               `json:"diskSizeMB"`
	Metadata  map[string]string `json:"metadata"`
}

// Create makes a sandbox. Servers that do not know the second version of the
// call are asked with the first.
func (c *Client) Create(ctx context.Context, n NewSandbox) (*Sandbox, error) {
	var s Sandbox
	n.Secure = false
	_, _, err := c.Do(ctx, http.MethodPost, "/v2/sandboxes", n, &s)
	if noRoute(err) {
		n.Secure = true
		_, _, err = c.Do(ctx, http.MethodPost, "/sandboxes", n, &s)
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// noRoute reports whether a server does not know a path, which is not the same
// as a missing template or sandbox: those are named.
func noRoute(err error) bool {
	status := StatusOf(err)
	if status == http.StatusMethodNotAllowed {
		return true
	}
	if status != http.StatusNotFound {
		return false
	}
	m := strings.ToLower(err.Error())
	return !strings.Contains(m, "template") && !strings.Contains(m, "sandbox \"") && !strings.Contains(m, "tag '")
}

// Connect resumes a paused sandbox and extends a running one's life to at least
// timeout seconds; resumed tells which.
func (c *Client) Connect(ctx context.Context, id string, timeout int) (s *Sandbox, resumed bool, err error) {
	s = &Sandbox{}
	in := map[string]int{"timeout": timeout}
	_, status, err := c.Do(ctx, http.MethodPost, "/v2/sandboxes/"+url.PathEscape(id)+"/connect", in, s)
	if noRoute(err) {
		_, status, err = c.Do(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/connect", in, s)
	}
	if err != nil {
		return nil, false, err
	}
	return s, status == http.StatusCreated, nil
}

// Get describes a sandbox, running or paused.
func (c *Client) Get(ctx context.Context, id string) (*Info, error) {
	var i Info
	_, _, err := c.Do(ctx, http.MethodGet, "/sandboxes/"+url.PathEscape(id), nil, &i)
	if err != nil {
		return nil, err
	}
	return &i, nil
}

// Kill destroys a sandbox. It reports false when there was none.
func (c *Client) Kill(ctx context.Context, id string) (bool, error) {
	_, _, err := c.Do(ctx, http.MethodDelete, "/sandboxes/"+url.PathEscape(id), nil, nil)
	if StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// SetTimeout makes a running sandbox end in so many seconds.
func (c *Client) SetTimeout(ctx context.Context, id string, seconds int) error {
	_, _, err := c.Do(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/timeout", map[string]int{"timeout": seconds}, nil)
	return err
}

// Pause keeps a sandbox's files and memory and stops it.
func (c *Client) Pause(ctx context.Context, id string) error {
	_, _, err := c.Do(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/pause", struct{}{}, nil)
	return err
}

// Snapshot is a template made from a running sandbox.
type Snapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// CreateSnapshot keeps a running sandbox as a start point.
func (c *Client) CreateSnapshot(ctx context.Context, id, name string) (*Snapshot, error) {
	in := map[string]string{}
	if name != "" {
		in["name"] = name
	}
	var s Snapshot
	_, _, err := c.Do(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/snapshots", in, &s)
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// DeleteTemplate removes a template or a snapshot.
func (c *Client) DeleteTemplate(ctx context.Context, id string) error {
	_, _, err := c.Do(ctx, http.MethodDelete, "/templates/"+url.PathEscape(id), nil, nil)
	return err
}

// Filter selects sandboxes.
type Filter struct {
	// Metadata are pairs that all must be there.
	Metadata map[string]string
	// States are "running" and "paused"; none means both.
	States []string
	// Limit is the size of a page, 1 to 100; 0 leaves it to the server.
	Limit int
}

// List returns every sandbox that a filter selects, page by page.
func (c *Client) List(ctx context.Context, f Filter) ([]Info, error) {
	var all []Info
	token := ""
	for {
		v := url.Values{}
		if len(f.Metadata) > 0 {
			v.Set("metadata", encodeMetadata(f.Metadata))
		}
		if len(f.States) > 0 {
			v.Set("state", strings.Join(f.States, ","))
		}
		if f.Limit > 0 {
			v.Set("limit", strconv.Itoa(f.Limit))
		}
		if token != "" {
			v.Set("nextToken", token)
		}
		var page []Info
		h, _, err := c.Do(ctx, http.MethodGet, query("/v2/sandboxes", v), nil, &page)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		next := h.Get("X-Next-Token")
		if next == "" || next == token {
			return all, nil
		}
		token = next
	}
}

// encodeMetadata is the form of pairs whose keys and values are encoded before:
// the server decodes the query, then the form, then each of them.
func encodeMetadata(m map[string]string) string {
	v := url.Values{}
	for k, val := range m {
		v.Set(percent(k), percent(val))
	}
	return v.Encode()
}

func percent(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

package e2bapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// NewTemplate is what to register.
type NewTemplate struct {
	// Name is "alias" or "alias:tag".
	Name     string   `json:"name"`
	Tags     []string `json:"tags,omitempty"`
	CPUCount int      `json:"cpuCount,omitempty"`
	MemoryMB int      `json:"memoryMB,omitempty"`
}

// Registered is a template with a build that waits to be started.
type Registered struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Aliases    []string `json:"aliases"`
	Names      []string `json:"names"`
	Tags       []string `json:"tags"`
}

// RegisterTemplate registers a build of a new or an existing template.
func (c *Client) RegisterTemplate(ctx context.Context, n NewTemplate) (*Registered, error) {
	var out Registered
	if _, _, err := c.Do(ctx, http.MethodPost, "/v3/templates", n, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// FileLink says whether the service has files of a hash, and where to put them.
type FileLink struct {
	Present bool              `json:"present"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// FileLink asks where files go.
func (c *Client) FileLink(ctx context.Context, templateID, hash string) (*FileLink, error) {
	var out FileLink
	if _, _, err := c.Do(ctx, http.MethodGet, "/templates/"+url.PathEscape(templateID)+"/files/"+url.PathEscape(hash), nil, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// PutFile uploads a gzipped tar of exactly size bytes to a link. The link is
// signed: no key is sent.
func (c *Client) PutFile(ctx context.Context, l *FileLink, body io.Reader, size int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, l.URL, io.NopCloser(body))
	if err != nil {
		return err
	}
	for k, v := range l.Headers {
		req.Header.Set(k, v)
	}
	req.ContentLength = size // object stores refuse chunks
	c.sent(http.MethodPut, req.URL.Path)
	res, err := c.http().Do(req)
	if err != nil {
		// The error of the transport holds the signed address.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return &CallError{"PUT files", err}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode/100 != 2 {
		return errorOf("PUT files", res)
	}
	return nil
}

// Step is one step of a build.
type Step struct {
	Type      string   `json:"type"` // "RUN", "COPY", "ENV", "USER", "WORKDIR"
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash,omitempty"`
	Force     bool     `json:"force"`
}

// Recipe is what a build does. Exactly one of FromImage and FromTemplate is set.
type Recipe struct {
	FromImage    string `json:"fromImage,omitempty"`
	FromTemplate string `json:"fromTemplate,omitempty"`
	// Registry holds credentials; see Registry and its kin.
	Registry *Registry `json:"fromImageRegistry,omitempty"`
	Force    bool      `json:"force"`
	StartCmd string    `json:"startCmd,omitempty"`
	ReadyCmd string    `json:"readyCmd,omitempty"`
	Steps    []Step    `json:"steps"`
}

// Registry is how a private image is pulled: a user and password, or a cloud's
// own credentials. It is a secret.
type Registry struct {
	Type            string `json:"type"` // "registry", "aws" or "gcp"
	Username        string `json:"username,omitempty"`
	Password        string `json:"password,omitempty"`
	AccessKeyID     string `json:"awsAccessKeyId,omitempty"`
	SecretAccessKey string `json:"awsSecretAccessKey,omitempty"`
	Region          string `json:"awsRegion,omitempty"`
	ServiceAccount  string `json:"serviceAccountJson,omitempty"`
}

// String hides the credentials.
func (r *Registry) String() string { return "registry credentials (" + r.Type + ")" }

// GoString hides the credentials.
func (r *Registry) GoString() string { return r.String() }

// StartBuild starts a registered build.
func (c *Client) StartBuild(ctx context.Context, r *Registered, recipe Recipe) error {
	if recipe.Steps == nil {
		recipe.Steps = []Step{}
	}
	_, _, err := c.Do(ctx, http.MethodPost, "/v2/templates/"+url.PathEscape(r.TemplateID)+"/builds/"+url.PathEscape(r.BuildID), recipe, nil)
	return err
}

// LogEntry is one line of a build.
type LogEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step"`
}

// BuildStatus is how a build is doing.
type BuildStatus struct {
	Status string     `json:"status"` // "waiting", "building", "ready" or "error"
	Logs   []LogEntry `json:"logEntries"`
	Reason *struct {
		Message string `json:"message"`
		// Step is "base", "finalize" or the step's number from 1.
		Step json.RawMessage `json:"step"`
	} `json:"reason"`
}

// BuildStatus asks for a build and its log from an offset on.
func (c *Client) BuildStatus(ctx context.Context, r *Registered, offset int) (*BuildStatus, error) {
	v := url.Values{"logsOffset": {strconv.Itoa(offset)}}
	var out BuildStatus
	_, _, err := c.Do(ctx, http.MethodGet, query("/templates/"+url.PathEscape(r.TemplateID)+"/builds/"+url.PathEscape(r.BuildID)+"/status", v), nil, &out)
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// BuildError is a build that failed.
type BuildError struct {
	Message string
	Step    string
}

// Error is the service's own wording.
func (e *BuildError) Error() string {
	return fmt.Sprintf("E2B: the build failed at step %s: %s", e.Step, e.Message)
}

// pollEvery is how often a build is asked about.
const pollEvery = 200 * time.Millisecond

// WaitBuild waits for the end of a build and hands on every line of its log.
func (c *Client) WaitBuild(ctx context.Context, r *Registered, log func(LogEntry)) error {
	offset := 0
	for {
		st, err := c.BuildStatus(ctx, r, offset)
		if err != nil {
			return err
		}
		offset += len(st.Logs)
		if log != nil {
			for _, l := range st.Logs {
				log(l)
			}
		}
		// A page holds a hundred lines: at the end there may be more.
		if len(st.Logs) == 0 {
			switch st.Status {
			case "ready":
				return nil
			case "error":
				e := &BuildError{Message: "no reason was given", Step: "?"}
				if st.Reason != nil {
					e.Message, e.Step = st.Reason.Message, string(trimQuotes(st.Reason.Step))
				}
				return e
			}
		} else if st.Status == "ready" || st.Status == "error" {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollEvery):
		}
	}
}

func trimQuotes(b []byte) []byte {
	if len(b) > 1 && b[0] == '"' {
		return b[1 : len(b)-1]
	}
	return b
}

// AliasExists asks whether a template of a name exists, be it somebody else's.
func (c *Client) AliasExists(ctx context.Context, alias string) (bool, error) {
	_, _, err := c.Do(ctx, http.MethodGet, "/templates/aliases/"+url.PathEscape(alias), nil, nil)
	switch StatusOf(err) {
	case http.StatusNotFound:
		return false, nil
	case http.StatusForbidden:
		return true, nil
	}
	return err == nil, err
}

// AssignTags gives the build of "name:tag" more tags.
func (c *Client) AssignTags(ctx context.Context, target string, tags ...string) error {
	_, _, err := c.Do(ctx, http.MethodPost, "/templates/tags", map[string]any{"target": target, "tags": tags}, nil)
	return err
}

// RemoveTags takes tags from a template.
func (c *Client) RemoveTags(ctx context.Context, name string, tags ...string) error {
	_, _, err := c.Do(ctx, http.MethodDelete, "/templates/tags", map[string]any{"name": name, "tags": tags}, nil)
	return err
}

// Tag is a tag of a template.
type Tag struct {
	Tag     string `json:"tag"`
	BuildID string `json:"buildID"`
}

// Tags lists the tags of a template.
func (c *Client) Tags(ctx context.Context, templateID string) ([]Tag, error) {
	var out []Tag
	_, _, err := c.Do(ctx, http.MethodGet, "/templates/"+url.PathEscape(templateID)+"/tags", nil, &out)
	return out, err
}

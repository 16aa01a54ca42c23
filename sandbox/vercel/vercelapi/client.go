// Package vercelapi is a small client for Vercel Sandbox: named sandboxes, their
// sessions, commands, files and snapshots.
//
// Vercel publishes no description of these routes; the shapes are those that its
// own SDK (3.5) sends and requires. Times are epoch milliseconds, durations
// milliseconds. GET requests are repeated after network errors, 429 and 5xx;
// anything else only after a 429 that says when, or when it provably was not
// sent.
package vercelapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// DefaultURL is Vercel's own.
const DefaultURL = "https://vercel.com/api"

// Client talks to Vercel. It is safe for concurrent use once set up.
type Client struct {
	// BaseURL is the service; "" is DefaultURL.
	BaseURL string
	// Credentials returns who asks. It is called for every request, so that a
	// token that is refreshed is used.
	Credentials func() (Credentials, error)
	// HTTP sends the requests; nil is http.DefaultClient. It must have no
	// Timeout: streams live as long as commands.
	HTTP *http.Client
	// UserAgent names the program; "" is "vercelapi-go".
	UserAgent string
	// Sent, when set, is told of every request before it is sent.
	Sent func(method, path string)
	// Slow, when set, is told how long the service asked everybody to wait.
	Slow func(time.Duration)
}

// Credentials are a token and what it is used for.
type Credentials struct {
	Token     string
	TeamID    string
	ProjectID string
}

// ErrNoCredentials is matched where the environment names nobody, or only a part
// of what is needed.
var ErrNoCredentials = errors.New("no Vercel credentials")

// FromEnvironment reads VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID, all
// or none, else VERCEL_OIDC_TOKEN, whose payload names team and project.
func FromEnvironment() (Credentials, error) {
	c := Credentials{os.Getenv("VERCEL_TOKEN"), os.Getenv("VERCEL_TEAM_ID"), os.Getenv("VERCEL_PROJECT_ID")}
	var missing []string
	for name, v := range map[string]string{"VERCEL_TOKEN": c.Token, "VERCEL_TEAM_ID": c.TeamID, "VERCEL_PROJECT_ID": c.ProjectID} {
		if v == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return c, nil
	}
	if token := os.Getenv("VERCEL_OIDC_TOKEN"); token != "" {
		return OIDC(token)
	}
	if c.Token != "" {
		return Credentials{}, fmt.Errorf("%w: %s is missing", ErrNoCredentials, strings.Join(missing, ", "))
	}
	return Credentials{}, ErrNoCredentials
}

// OIDC reads team and project from the unverified payload of an OIDC token.
func OIDC(token string) (Credentials, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Credentials{}, fmt.Errorf("%w: the OIDC token is no JWT", ErrNoCredentials)
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var claims struct {
		Owner   string `json:"owner_id"`
		Project string `json:"project_id"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &claims)
	}
	if err != nil || claims.Owner == "" || claims.Project == "" {
		return Credentials{}, fmt.Errorf("%w: the OIDC token names no team and project", ErrNoCredentials)
	}
	return Credentials{token, claims.Owner, claims.Project}, nil
}

// Error is a refusal.
type Error struct {
	Op      string
	Status  int
	Code    string // such as "sandbox_stopped"
	Message string
	// RetryAfter is what a 429 asked for.
	RetryAfter time.Duration
}

// Error is the service's own wording.
func (e *Error) Error() string {
	s := fmt.Sprintf("Vercel: %s: %d", e.Op, e.Status)
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// CallError is a request that got no answer: what it asked for may or may not
// have happened.
type CallError struct {
	Op  string
	Err error
}

// Error names the request.
func (e *CallError) Error() string { return "Vercel: " + e.Op + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *CallError) Unwrap() error { return e.Err }

// StatusOf is the HTTP status of an *Error in the chain of err, or 0.
func StatusOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// CodeOf is the code of an *Error in the chain of err, or "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

const maxErrorBody = 64 << 10

func errorOf(op string, res *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // what came is used
	e := &Error{Op: op, Status: res.StatusCode}
	var doc struct {
		Error json.RawMessage `json:"error"`
	}
	var inner struct{ Code, Message string }
	if json.Unmarshal(body, &doc) == nil && doc.Error != nil {
		if json.Unmarshal(doc.Error, &inner) == nil {
			e.Code, e.Message = inner.Code, inner.Message
		} else {
			_ = json.Unmarshal(doc.Error, &e.Message) // some errors are a word
		}
	}
	if e.Message == "" {
		e.Message = strings.TrimSpace(string(body[:min(len(body), 500)]))
	}
	if res.StatusCode == http.StatusTooManyRequests {
		if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
			e.RetryAfter = time.Duration(n) * time.Second
		}
	}
	return e
}

// request is one request to send, again if it must be.
type request struct {
	method, path string
	query        url.Values
	body         []byte
	contentType  string
	header       http.Header
	// project adds the project under this name of a query value.
	project string
}

func (c *Client) http() *http.Client {
	if c.HTTP == nil {
		return http.DefaultClient
	}
	return c.HTTP
}

// maxTries and maxWait are the SDK's own.
const (
	maxTries = 3
	maxWait  = 20 * time.Second
)

// send sends a request and returns an answer of 2xx, which the caller closes.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	op := r.method + " " + r.path
	refreshed := ""
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.Multiplier = 400*time.Millisecond, 2
	return backoff.Retry(ctx, func() (*http.Response, error) {
		res, token, err := c.once(ctx, r, op)
		if err == nil {
			return res, nil
		}
		var e *Error
		switch {
		case !errors.As(err, &e):
			if ctx.Err() != nil || r.method != http.MethodGet && !unsent(err) {
				return nil, backoff.Permanent(err)
			}
			return nil, err
		case e.Status == http.StatusTooManyRequests:
			if e.RetryAfter > 0 && c.Slow != nil {
				c.Slow(e.RetryAfter)
			}
			if e.RetryAfter > maxWait || e.RetryAfter == 0 && r.method != http.MethodGet {
				return nil, backoff.Permanent(err)
			}
			if e.RetryAfter > 0 {
				return nil, &waitError{e}
			}
			return nil, err
		case e.Status >= 500 && r.method == http.MethodGet:
			return nil, err
		case (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) && refreshed == "":
			refreshed = token
			if now, cerr := c.Credentials(); cerr == nil && now.Token != token {
				return nil, err // once more, with the token as it is now
			}
		}
		return nil, backoff.Permanent(err)
	}, backoff.WithMaxTries(maxTries), backoff.WithBackOff(pauses))
}

// waitError makes the backoff wait for as long as was asked.
type waitError struct{ e *Error }

func (w *waitError) Error() string { return w.e.Error() }
func (w *waitError) Unwrap() []error {
	return []error{w.e, &backoff.RetryAfterError{Duration: w.e.RetryAfter}}
}

// unsent reports whether a request provably reached nobody.
func unsent(err error) bool {
	var dns *net.DNSError
	var op *net.OpError
	return errors.As(err, &dns) || errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &op) && op.Op == "dial"
}

func (c *Client) once(ctx context.Context, r request, op string) (*http.Response, string, error) {
	who, err := c.Credentials()
	if err != nil {
		return nil, "", err
	}
	base := c.BaseURL
	if base == "" {
		base = DefaultURL
	}
	q := url.Values{}
	for k, v := range r.query {
		q[k] = v
	}
	q.Set("teamId", who.TeamID)
	if r.project != "" {
		q.Set(r.project, who.ProjectID)
	}
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, strings.TrimSuffix(base, "/")+r.path+"?"+q.Encode(), body)
	if err != nil {
		return nil, "", err
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	ct, ua := r.contentType, c.UserAgent
	if ct == "" {
		ct = "application/json"
	}
	if ua == "" {
		ua = "vercelapi-go"
	}
	req.Header.Set("Content-Type", ct)
	req.Header.Set("User-Agent", ua)
	req.Header.Set("Authorization", "Bearer "+who.Token)
	if c.Sent != nil {
		c.Sent(r.method, req.URL.Path)
	}
	res, err := c.http().Do(req)
	if err != nil {
		return nil, who.Token, &CallError{op, err}
	}
	if res.StatusCode/100 != 2 {
		defer func() { _ = res.Body.Close() }()
		return nil, who.Token, errorOf(op, res)
	}
	return res, who.Token, nil
}

// json sends a JSON request and decodes the answer into out, which may be nil.
func (c *Client) json(ctx context.Context, r request, in, out any) error {
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body = body
	}
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody)) // so that the connection can be used again
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return &CallError{r.method + " " + r.path, fmt.Errorf("read the answer: %w", err)}
	}
	return nil
}

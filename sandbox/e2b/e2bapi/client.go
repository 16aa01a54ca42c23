// Package e2bapi is a small client for E2B and compatible servers: the REST API
// of the control plane and the in-sandbox server envd.
//
// It follows E2B's OpenAPI description and envd's protocol files; the shapes
// here are a part of them. It has no opinion on retries but one: a request that
// was refused with 429 and Retry-After is repeated, as E2B's own SDKs do.
package e2bapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// DefaultDomain is E2B's own.
const DefaultDomain = "e2b.app"

// Client talks to a control plane. The zero value with a Key talks to E2B. It is
// safe for concurrent use once set up.
type Client struct {
	// Key is the account's API key.
	Key string
	// Domain is where the service lives; "" is DefaultDomain.
	Domain string
	// APIURL is the control plane; "" is https://api.<Domain>.
	APIURL string
	// SandboxURL is where every sandbox's envd is reached, with the sandbox
	// named in a header; "" asks SandboxDomain.
	SandboxURL string
	// HTTP sends the requests; nil is http.DefaultClient. It must have no
	// Timeout: streams live as long as commands.
	HTTP *http.Client
	// UserAgent names the program; "" is "e2bapi-go".
	UserAgent string
	// Sent, when set, is told of every request before it is sent.
	Sent func(method, path string)
	// Slow, when set, is told how long the service asked everybody to wait.
	Slow func(time.Duration)
	// RetryLimit bounds the waits for 429 answers of one call; 0 is a minute.
	RetryLimit time.Duration
}

// FromEnvironment returns a client as E2B_API_KEY, E2B_DOMAIN, E2B_API_URL and
// E2B_SANDBOX_URL say.
func FromEnvironment() *Client {
	return &Client{Key: os.Getenv("E2B_API_KEY"), Domain: os.Getenv("E2B_DOMAIN"), APIURL: os.Getenv("E2B_API_URL"), SandboxURL: os.Getenv("E2B_SANDBOX_URL")}
}

func (c *Client) domain() string {
	if c.Domain == "" {
		return DefaultDomain
	}
	return c.Domain
}

// URL is the control plane's address.
func (c *Client) URL() string {
	if c.APIURL != "" {
		return strings.TrimSuffix(c.APIURL, "/")
	}
	return "https://api." + c.domain()
}

func (c *Client) http() *http.Client {
	if c.HTTP == nil {
		return http.DefaultClient
	}
	return c.HTTP
}

// Error is a refusal of the control plane, of envd or of the edge before it.
type Error struct {
	// Op is what was asked, such as "POST /v2/sandboxes".
	Op string
	// Status is the HTTP status; 200 for an error inside a stream.
	Status int
	// Code is the control plane's error_code or the RPC's code, or "".
	Code    string
	Message string
	// RetryAfter is what a 429 asked for; Limited says that it asked at all. A
	// 429 that did not is a quota.
	RetryAfter time.Duration
	Limited    bool
}

// Error is the service's own wording.
func (e *Error) Error() string {
	s := fmt.Sprintf("E2B: %s: %d", e.Op, e.Status)
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
func (e *CallError) Error() string { return "E2B: " + e.Op + ": " + e.Err.Error() }

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

// maxErrorBody bounds what is read of a refusal, in bytes.
const maxErrorBody = 64 << 10

// errorOf reads a refusal.
func errorOf(op string, res *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // what came is used
	e := &Error{Op: op, Status: res.StatusCode}
	var doc struct {
		Code      any    `json:"code"`
		Message   string `json:"message"`
		ErrorCode string `json:"error_code"`
	}
	if json.Unmarshal(body, &doc) == nil && (doc.Message != "" || doc.Code != nil) {
		e.Message, e.Code = doc.Message, doc.ErrorCode
		if s, ok := doc.Code.(string); ok {
			e.Code = s // an RPC's
		}
	} else {
		e.Message = strings.TrimSpace(string(body[:min(len(body), 500)]))
	}
	if res.StatusCode == http.StatusTooManyRequests {
		e.RetryAfter, e.Limited = retryAfter(res.Header.Get("Retry-After"))
	}
	return e
}

var wholeSeconds = regexp.MustCompile(`^\d{1,7}$`)

// retryAfter reads whole seconds; E2B's SDKs take nothing else.
func retryAfter(v string) (time.Duration, bool) {
	if !wholeSeconds.MatchString(v) {
		return 0, false
	}
	n, err := strconv.Atoi(v)
	return time.Duration(n) * time.Second, err == nil
}

// maxTries is how often a request is sent that is refused with Retry-After.
const maxTries = 4

// Do sends a JSON request to the control plane and decodes the answer into out,
// which may be nil. The answer's headers are returned.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) (http.Header, int, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, 0, err
		}
	}
	op := method + " " + strings.SplitN(path, "?", 2)[0]
	limit := c.RetryLimit
	if limit == 0 {
		limit = time.Minute
	}
	type answer struct {
		header http.Header
		status int
	}
	a, err := backoff.Retry(ctx, func() (answer, error) {
		h, status, err := c.once(ctx, method, path, op, body, out)
		var e *Error
		if errors.As(err, &e) && e.Limited {
			if c.Slow != nil {
				c.Slow(e.RetryAfter)
			}
			if e.RetryAfter <= limit {
				return answer{h, status}, &retryAfterError{e}
			}
		}
		if err != nil {
			return answer{h, status}, backoff.Permanent(err)
		}
		return answer{h, status}, nil
	}, backoff.WithMaxTries(maxTries), backoff.WithMaxElapsedTime(limit), backoff.WithBackOff(&waits{}))
	return a.header, a.status, unwrapped(err)
}

// retryAfterError makes the backoff wait for as long as was asked.
type retryAfterError struct{ e *Error }

func (r *retryAfterError) Error() string { return r.e.Error() }
func (r *retryAfterError) Unwrap() []error {
	return []error{r.e, &backoff.RetryAfterError{Duration: r.e.RetryAfter}}
}

func unwrapped(err error) error {
	var r *retryAfterError
	if errors.As(err, &r) {
		return r.e
	}
	var p *backoff.PermanentError
	if errors.As(err, &p) {
		return p.Unwrap()
	}
	return err
}

// waits is asked only where the error does not say how long to wait.
type waits struct{}

func (*waits) NextBackOff() time.Duration { return time.Second }
func (*waits) Reset()                     {}

func (c *Client) once(ctx context.Context, method, path, op string, body []byte, out any) (http.Header, int, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL()+path, r)
	if err != nil {
		return nil, 0, err
	}
	c.identify(req.Header)
	req.Header.Set("X-API-Key", c.Key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.sent(method, req.URL.Path)
	res, err := c.http().Do(req)
	if err != nil {
		return nil, 0, &CallError{op, err}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode/100 != 2 {
		return res.Header, res.StatusCode, errorOf(op, res)
	}
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody)) // so that the connection can be used again
		return res.Header, res.StatusCode, nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return res.Header, res.StatusCode, &CallError{op, fmt.Errorf("read the answer: %w", err)}
	}
	return res.Header, res.StatusCode, nil
}

func (c *Client) identify(h http.Header) {
	ua := c.UserAgent
	if ua == "" {
		ua = "e2bapi-go"
	}
	h.Set("User-Agent", ua)
}

func (c *Client) sent(method, path string) {
	if c.Sent != nil {
		c.Sent(method, path)
	}
}

// sharedHosts are the domains whose sandboxes share one host name.
var sharedHosts = []string{"e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"}

// EnvdPort is where envd listens in every sandbox.
const EnvdPort = 49983

// EnvdURL is the address of a sandbox's envd.
func (c *Client) EnvdURL(s *Sandbox) string {
	if c.SandboxURL != "" {
		return strings.TrimSuffix(c.SandboxURL, "/")
	}
	domain := s.Domain
	if domain == "" {
		domain = c.domain()
	}
	if slices.Contains(sharedHosts, domain) {
		return "https://sandbox." + domain
	}
	return fmt.Sprintf("https://%d-%s.%s", EnvdPort, s.SandboxID, domain)
}

// PortURL is where a port of a sandbox is reached from outside.
func (c *Client) PortURL(s *Sandbox, port int) string {
	domain := s.Domain
	if domain == "" {
		domain = c.domain()
	}
	return fmt.Sprintf("https://%d-%s.%s", port, s.SandboxID, domain)
}

// query appends values to a path.
func query(path string, v url.Values) string {
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/redact"
)

// The codes of a grade that could not be had.
const (
	CodeModelMissing = "judge-model-missing"    // nobody chose a model
	CodeKeyMissing   = "judge-key-missing"      // the named variable is not set
	CodeUnavailable  = "judge-unavailable"      // no answer: transport, time, refusal of the service
	CodeInvalid      = "judge-response-invalid" // an answer that is no grade
	CodePrecheck     = "judge-precheck-failed"
)

// The policy of repeated requests and the bounds of an answer.
const (
	maxTries      = 4
	retryBase     = time.Second
	maxRetryAfter = 30 * time.Second
	maxBody       = 4 << 20
	maxAtOnce     = 8
	maxRationale  = 4 << 10

	precheckTries = 2
	precheckLimit = 20 * time.Second
)

// Client asks one model. It is safe for concurrent use.
type Client struct {
	c    Config
	key  string
	mask *redact.Redactor
	http *http.Client
	gate chan struct{} // requests at once
	wait func(context.Context, time.Duration) error
}

// New returns a client. key is the value of the variable that the config names,
// "" when it is not set.
func New(c Config, key string) *Client {
	return &Client{
		c: c.Resolved(), key: key, mask: redact.New(key), gate: make(chan struct{}, maxAtOnce), wait: pause,
		// A redirect would carry the key to another host.
		http: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// Config is the resolved configuration.
func (c *Client) Config() Config { return c.c }

// Ready returns nil when the configuration is complete, else why no request can
// be made.
func (c *Client) Ready() error {
	switch {
	case c.c.Model == "":
		return fault.Configf(CodeModelMissing, "Set `judge: {model: …}` in assay.yaml, the experiment or the eval.", "no model is chosen to judge")
	case c.key == "":
		return fault.Configf(CodeKeyMissing, "Set "+c.c.APIKeyEnv+", or name another variable with `judge: {apiKeyEnv: …}`.", "the judge's key is not set: %s", c.c.APIKeyEnv)
	}
	return nil
}

// Precheck asks for one small grade, at most twice, so that a wrong key, model
// or address is known before anything is paid for.
func (c *Client) Precheck(ctx context.Context) error {
	if err := c.Ready(); err != nil {
		return err
	}
	var err error
	for range precheckTries {
		limited, cancel := fault.WithTimeout(ctx, "judge-precheck", precheckLimit, "built-in")
		_, err = c.once(limited, Question{Kind: ClosedQA, Criterion: "Is the output the word ready?", Output: "ready"})
		cancel()
		if err == nil || ctx.Err() != nil || fault.ClassOf(err) == fault.Config {
			break
		}
	}
	if err == nil {
		return nil
	}
	return &fault.Error{
		Class: fault.ClassOf(err), Code: CodePrecheck, Stage: "judge.precheck", Err: err,
		What: fmt.Sprintf("the judge %s at %s does not answer with a grade", c.c.Model, Address(c.c.BaseURL)),
		Fix:  "Correct the judge's model, baseUrl and key, or run the evals that need no judge.",
	}
}

// Grade asks the question. Requests that the service refused for a passing
// reason (429, 5xx, a broken connection) are repeated within the call's limit.
func (c *Client) Grade(ctx context.Context, q Question) (Grade, error) {
	if err := c.Ready(); err != nil {
		return Grade{}, err
	}
	ctx, cancel := fault.WithTimeout(ctx, "judge-timeout", c.c.Timeout, "judge")
	defer cancel()
	select {
	case c.gate <- struct{}{}:
		defer func() { <-c.gate }()
	case <-ctx.Done():
		return Grade{}, c.unavailable(ctx, fault.Cause(ctx))
	}
	for try := 1; ; try++ {
		g, err := c.once(ctx, q)
		g.Tries = try
		if err == nil {
			return g, nil
		}
		var again *passing
		if !errors.As(err, &again) || try == maxTries || ctx.Err() != nil {
			return Grade{Tries: try}, err
		}
		if werr := c.wait(ctx, again.after(try)); werr != nil {
			return Grade{Tries: try}, err // why it had to wait tells more than that time was over
		}
	}
}

// passing marks a refusal that may be over soon.
type passing struct {
	error
	retryAfter time.Duration
}

func (p *passing) Unwrap() error { return p.error }

func (p *passing) after(try int) time.Duration {
	if p.retryAfter > 0 {
		return min(p.retryAfter, maxRetryAfter)
	}
	return time.Duration(float64(retryBase<<(try-1)) * (0.5 + rand.Float64()))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fault.Cause(ctx)
	}
}

// unavailable says that there was no answer. The key is in no text.
func (c *Client) unavailable(ctx context.Context, err error) error {
	if cause := fault.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = cause
	}
	return &fault.Error{
		Class: fault.Transient, Code: CodeUnavailable, What: "the judge " + c.c.Model + " did not answer",
		Err: errors.New(c.mask.String(err.Error())),
	}
}

// once makes one request.
func (c *Client) once(ctx context.Context, q Question) (Grade, error) {
	req, err := c.request(ctx, q)
	if err != nil {
		return Grade{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Grade{}, &passing{error: c.unavailable(ctx, err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return Grade{}, &passing{error: c.unavailable(ctx, err)}
	}
	if resp.StatusCode != http.StatusOK {
		return Grade{}, c.refused(resp, body)
	}
	if len(body) > maxBody {
		return Grade{}, c.invalid("the answer has more than %d bytes", maxBody)
	}
	text, g, err := c.read(body)
	if err != nil {
		return Grade{}, err
	}
	g.Score, g.Rationale, err = parse(text)
	if err != nil {
		return Grade{}, c.invalid("%v: %s", err, Clip(text, 300))
	}
	g.Rationale = Clip(c.mask.String(g.Rationale), maxRationale)
	return g, nil
}

func (c *Client) invalid(format string, args ...any) error {
	return &fault.Error{Code: CodeInvalid, What: "the judge " + c.c.Model + " gave no grade", Err: errors.New(c.mask.String(fmt.Sprintf(format, args...)))}
}

// refused judges an answer whose status is not 200.
func (c *Client) refused(resp *http.Response, body []byte) error {
	err := &fault.Error{
		Class: fault.Config, Code: CodeUnavailable, What: fmt.Sprintf("the judge's service answered %s", resp.Status),
		Err: errors.New(Clip(c.mask.String(reason(body)), 300)),
	}
	switch s := resp.StatusCode; {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		err.Fix = "Correct the key in " + c.c.APIKeyEnv + "."
	case s == http.StatusNotFound:
		err.Fix = "Correct the judge's model or baseUrl."
	case s == http.StatusTooManyRequests || s == http.StatusRequestTimeout || s >= 500:
		err.Class = fault.Transient
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date or nothing is no number of seconds
		return &passing{error: err, retryAfter: time.Duration(max(after, 0)) * time.Second}
	}
	return err
}

// reason is the service's own sentence, or the body.
func reason(body []byte) string {
	var doc struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &doc) == nil && doc.Error.Message != "" {
		return doc.Error.Message
	}
	return strings.ToValidUTF8(string(body[:min(len(body), 1024)]), "")
}

// request makes the request of the API. Sampling is left to the service: several
// models refuse every other setting.
func (c *Client) request(ctx context.Context, q Question) (*http.Request, error) {
	system, user := prompt(q)
	var doc map[string]any
	target := c.c.BaseURL + "/chat/completions"
	if c.c.API == Anthropic {
		target = strings.TrimSuffix(c.c.BaseURL, "/v1") + "/v1/messages"
		doc = map[string]any{
			"model": c.c.Model, "max_tokens": 2048, "system": system,
			"messages": []any{map[string]any{"role": "user", "content": user}},
		}
	} else {
		doc = map[string]any{"model": c.c.Model, "messages": []any{
			map[string]any{"role": "system", "content": system},
			map[string]any{"role": "user", "content": user},
		}}
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, fault.Configf(CodeUnavailable, "Correct the judge's baseUrl.", "the judge's address is no URL")
	}
	req.Header.Set("Content-Type", "application/json")
	if c.c.API == Anthropic {
		req.Header.Set("X-Api-Key", c.key)
		req.Header.Set("Anthropic-Version", "2023-06-01")
	} else {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return req, nil
}

// read takes the text and the usage out of an answer.
func (c *Client) read(body []byte) (string, Grade, error) {
	if c.c.API == Anthropic {
		var doc struct {
			Model   string `json:"model"`
			Content []struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"content"`
			Usage *struct {
				Input  int64 `json:"input_tokens"`
				Write  int64 `json:"cache_creation_input_tokens"`
				Read   int64 `json:"cache_read_input_tokens"`
				Output int64 `json:"output_tokens"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			return "", Grade{}, c.invalid("the answer is no message: %v", err)
		}
		var text strings.Builder
		for _, b := range doc.Content {
			if b.Type == "text" {
				text.WriteString(b.Text)
			}
		}
		g := Grade{Model: doc.Model}
		if u := doc.Usage; u != nil {
			g.Usage = &Usage{InputTokens: u.Input + u.Write + u.Read, OutputTokens: u.Output}
		}
		return text.String(), g, nil
	}
	var doc struct {
		Model   string `json:"model"`
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Usage *struct {
			Input  int64 `json:"prompt_tokens"`
			Output int64 `json:"completion_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return "", Grade{}, c.invalid("the answer is no completion: %v", err)
	}
	if len(doc.Choices) == 0 {
		return "", Grade{}, c.invalid("the answer has no choice")
	}
	g := Grade{Model: doc.Model}
	if u := doc.Usage; u != nil {
		g.Usage = &Usage{InputTokens: u.Input, OutputTokens: u.Output}
	}
	return doc.Choices[0].Message.Content, g, nil
}

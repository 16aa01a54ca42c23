// Package judge asks a language model to grade what an agent did. It speaks the
// OpenAI Chat Completions API, which most services offer, and the Anthropic
// Messages API.
//
// A grade is a number from 0 to 1 with a reason. What cannot be had is an error,
// never a number: CodeOf tells whether the judge was not there (unavailable) or
// answered with something that is no grade (CodeInvalid).
package judge

import (
	"cmp"
	"net/url"
	"strings"
	"time"
)

// The defaults of a Config.
const (
	DefaultBaseURL   = "https://api.openai.com/v1"
	DefaultAPIKeyEnv = "ASSAY_JUDGE_KEY"
	DefaultTimeout   = 180 * time.Second
)

// The APIs that a service may speak.
const (
	OpenAI    = "openai"    // POST <base>/chat/completions
	Anthropic = "anthropic" // POST <base>/v1/messages
)

// Config says which model grades, and how it is reached. A field that is not set
// is taken from the level below; see Over. It holds no secret.
type Config struct {
	Model string `json:"model,omitempty"`
	// BaseURL is the service's address: with /v1 for an OpenAI-like service.
	BaseURL string `json:"baseUrl,omitempty"`
	// API is OpenAI or Anthropic; "" is told by the host of BaseURL.
	API string `json:"api,omitempty"`
	// APIKeyEnv names the host variable that holds the key.
	APIKeyEnv string `json:"apiKeyEnv,omitempty"`
	// Timeout is the limit of one call, with its retries.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Over returns c with what it does not set taken from the level below. A level
// that chooses an address chooses the key and the API that belong to it: those
// of a lower level would go to another service.
func (c Config) Over(below Config) Config {
	out := Config{
		Model: cmp.Or(c.Model, below.Model), BaseURL: c.BaseURL, API: c.API, APIKeyEnv: c.APIKeyEnv,
		Timeout: cmp.Or(c.Timeout, below.Timeout),
	}
	if c.BaseURL == "" {
		out.BaseURL, out.API, out.APIKeyEnv = below.BaseURL, cmp.Or(c.API, below.API), cmp.Or(c.APIKeyEnv, below.APIKeyEnv)
	}
	return out
}

// Resolved returns c with the defaults in place of what is not set.
func (c Config) Resolved() Config {
	c.BaseURL = strings.TrimRight(cmp.Or(c.BaseURL, DefaultBaseURL), "/")
	c.APIKeyEnv = cmp.Or(c.APIKeyEnv, DefaultAPIKeyEnv)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	if c.API == "" {
		c.API = OpenAI
		if u, err := url.Parse(c.BaseURL); err == nil && (u.Hostname() == "anthropic.com" || strings.HasSuffix(u.Hostname(), ".anthropic.com")) {
			c.API = Anthropic
		}
	}
	return c
}

// Identity is what decides a grade besides the eval's own words, as plain data:
// a recorded result is only good for the same.
type Identity struct {
	Model     string `json:"model"`
	BaseURL   string `json:"baseUrl"`
	TimeoutMS int64  `json:"timeoutMs"`
}

// Identity returns the resolved identity of c.
func (c Config) Identity() Identity {
	r := c.Resolved()
	return Identity{Model: r.Model, BaseURL: Address(r.BaseURL), TimeoutMS: r.Timeout.Milliseconds()}
}

// Address is a base URL without user, query and fragment, which may hold keys.
func Address(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// Kind is a kind of question.
type Kind string

// The kinds.
const (
	// Criteria grades how well an output meets a criterion.
	Criteria Kind = "criteria"
	// ClosedQA asks a question about the output whose answer is yes (1) or no (0).
	ClosedQA Kind = "closedQA"
	// Factuality compares the output's facts with those of a reference.
	Factuality Kind = "factuality"
	// Summary grades how well the output sums up a reference.
	Summary Kind = "summary"
)

// Question is one thing to grade.
type Question struct {
	Kind Kind
	// Criterion is the criterion or the question; factuality and summary need
	// none.
	Criterion string
	// Input is what was asked, Output what is graded.
	Input, Output string
	// Changes is what the agent changed, as text; "" where there is nothing to
	// tell.
	Changes string
	// Reference is the expected answer of factuality, or the source of a summary.
	Reference string
}

// Bounds of what is sent and of what is recorded, in bytes of each text.
const (
	MaxMaterial = 64 << 10
	MaxRecorded = 4 << 10
)

// Trim cuts every text of q to n bytes, head and tail. Mask secrets before: half
// of one is not recognised any more.
func (q Question) Trim(n int) Question {
	for _, p := range []*string{&q.Criterion, &q.Input, &q.Output, &q.Changes, &q.Reference} {
		*p = Clip(*p, n)
	}
	return q
}

// Map returns q with f applied to every text.
func (q Question) Map(f func(string) string) Question {
	for _, p := range []*string{&q.Criterion, &q.Input, &q.Output, &q.Changes, &q.Reference} {
		*p = f(*p)
	}
	return q
}

// Clip keeps the head and the tail of s, about n bytes of whole characters.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	head := strings.ToValidUTF8(s[:n*2/3], "")
	tail := strings.ToValidUTF8(s[len(s)-n/3:], "")
	return head + "\n[… left out …]\n" + tail
}

// Grade is a judge's answer.
type Grade struct {
	// Score is from 0 to 1.
	Score     float64
	Rationale string
	// Model is the model that the service says it used, "" where it does not.
	Model string
	// Usage is what the service reported; nil when it reported nothing.
	Usage *Usage
	// Tries is how many requests were made.
	Tries int
}

// Usage counts the tokens of all requests of one grade.
type Usage struct {
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
}

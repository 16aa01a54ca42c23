package coding

import (
	"regexp"
	"strconv"
	"strings"

	"assay/fault"
)

// Failure is what an agent said about a call of its model that failed for good.
type Failure struct {
	// Status is the HTTP status, 0 where none is known.
	Status int
	// Kind is the agent's own word, such as "rate_limit".
	Kind string
	// Message is the agent's own text.
	Message string
}

// Kinds of failures that are the service's or the configuration's, never the
// agent's work: there is no turn to trust after them.
type kind struct {
	code, fix string
	class     fault.Class
	status    []int
	words     []string
}

var kinds = []kind{
	{"agent-quota", "Top up the account or use another key.", fault.Config, []int{402}, []string{"billing_error", "insufficient_quota", "quota exceeded", "credit balance", "usage limit"}},
	{"agent-auth", "Set the agent's API key to a valid one.", fault.Config, []int{401, 403}, []string{"authentication_failed", "authentication_error", "permission_error", "not logged in", "invalid api key", "missing environment variable", "unauthorized"}},
	{"agent-model-unknown", "Name a model that the service has.", fault.Config, []int{404}, []string{"model_not_found", "unknown model", "no such model", "model not found"}},
	{"agent-rate-limited", "Lower maxConcurrency, or wait.", fault.Transient, []int{429}, []string{"rate_limit", "rate limit", "too many requests"}},
	{"agent-overloaded", "Try again later.", fault.Transient, []int{503, 529}, []string{"overloaded", "at capacity", "server_is_overloaded", "high demand"}},
	{"agent-unreachable", "See whether the sandbox can reach the model's address (network, baseUrl).", fault.Transient, nil, []string{"connection_failed", "connection refused", "econnrefused", "enotfound", "unable to connect", "error sending request", "cannot connect", "connection error", "fetch failed", "timed out", "timeout"}},
	{"agent-stream-cut", "Try again; the model's service broke off its answer.", fault.Transient, nil, []string{"stream disconnected", "stream closed", "premature close", "reconnecting", "unexpected end", "socket connection was closed", "terminated", "stream error", "error in the stream"}},
	{"agent-service-failed", "Try again later.", fault.Transient, []int{500, 502, 504}, []string{"server_error", "internal server error", "api_error", "unexpected server error"}},
	{"agent-request-invalid", "See the agent's text; its model may not take these settings.", fault.Config, []int{400, 422}, []string{"invalid_request", "bad request"}},
}

var statusText = regexp.MustCompile(`(?i)\b(?:status|status code|http|api error:?)[: ]+(\d{3})\b`)

// Judge returns the failure as an error with class, code and fix. What is not
// recognised has the code "agent-failed" and no class: it is never repeated.
func (f Failure) Judge() *fault.Error {
	status := f.Status
	if status == 0 {
		if m := statusText.FindStringSubmatch(f.Message); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil {
				status = n
			}
		}
	}
	text := strings.ToLower(f.Kind + " " + f.Message)
	what := f.Message
	if what == "" {
		what = f.Kind
	}
	make := func(k kind) *fault.Error {
		return &fault.Error{Class: k.class, Code: k.code, What: "the agent's model failed: " + what, Fix: k.fix}
	}
	if quota := kinds[0]; contains(text, quota.words) {
		return make(quota) // comes with 429 and 400 alike
	}
	for _, k := range kinds {
		for _, s := range k.status {
			if s == status {
				return make(k)
			}
		}
	}
	for _, k := range kinds {
		if contains(text, k.words) {
			return make(k)
		}
	}
	if status >= 500 {
		return make(kind{code: "agent-service-failed", fix: "Try again later.", class: fault.Transient})
	}
	return &fault.Error{Code: "agent-failed", What: "the agent failed: " + what, Fix: "See the agent's own text."}
}

func contains(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// Overflow reports whether text says that the conversation outgrew the model's
// context. That is an end of the agent's work, not a failure of the service.
func Overflow(text string) bool {
	return contains(strings.ToLower(text), []string{"prompt is too long", "prompt_too_long", "context_length_exceeded", "ran out of room", "contextoverflow", "context window", "maximum context length"})
}

package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"assay/fault"
	"assay/sandbox/e2b/e2bapi"
)

// Classify judges errors of E2B's answers and of requests that got none.
func (p *Provider) Classify(err error) fault.Class {
	class, _, _, _ := judge(err)
	return class
}

// explain gives an error of the API its class, code and remedy.
func explain(what string, err error) *fault.Error {
	class, code, fix, scope := judge(err)
	return &fault.Error{Class: class, Code: code, Fix: fix, Scope: scope, What: what, Err: err}
}

// permission words in the text of an internal error say that the server wrapped
// a refusal: repeating it is no use.
var permission = []string{"permission denied", "unauthorized", "forbidden", "not allowed", "invalid api key", "access denied"}

// judge is the table of E2B's answers.
func judge(err error) (class fault.Class, code, fix string, scope fault.Scope) {
	var ce *e2bapi.CallError
	var e *e2bapi.Error
	switch {
	case errors.As(err, &e):
	case errors.As(err, &ce):
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return fault.Unknown, "", "", 0 // why is read from the context
		}
		return fault.Transient, "sandbox.provider-unreachable", "Check the network and E2B_DOMAIN or E2B_API_URL.", 0
	default:
		return fault.Unknown, "", "", 0
	}
	text := strings.ToLower(e.Message)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch e.Status {
	case http.StatusOK: // inside a stream
		return streamClass(e.Code), "sandbox.e2b-rpc", "", 0
	case http.StatusUnauthorized:
		return fault.Config, "sandbox.e2b-credentials", remedy, fault.ScopeExperiment
	case http.StatusPaymentRequired:
		return fault.Config, "sandbox.e2b-billing", "Check the team's plan and payment in E2B's dashboard.", fault.ScopeExperiment
	case http.StatusForbidden:
		return fault.Config, "sandbox.e2b-forbidden", "Use a key of a team that may use this template and feature.", fault.ScopeExperiment
	case http.StatusNotFound:
		if has("template", "tag '") {
			return fault.Config, "sandbox.template-missing", "Check the template's name and tag, or build it first (docs/e2b.md).", fault.ScopeEval
		}
		return fault.Unknown, "sandbox.e2b-not-found", "", 0
	case http.StatusConflict:
		return fault.Unknown, "sandbox.e2b-conflict", "", 0
	case http.StatusBadRequest:
		if has("timeout cannot be greater", "max instance length") {
			return fault.Config, "sandbox.lifetime-too-long", "Lower `lifetime` and `timeout`, or use a plan whose sandboxes may live longer.", fault.ScopeExperiment
		}
		return fault.Config, "sandbox.e2b-refused", "", 0
	case http.StatusTooManyRequests:
		if !e.Limited && has("maximum number of concurrent") {
			return fault.Transient, "sandbox.e2b-quota", "Lower `--max-concurrency` below the number of sandboxes of the plan, or destroy sandboxes that are left over.", 0
		}
		return fault.Transient, "sandbox.e2b-rate-limit", "Lower `--max-concurrency`.", 0
	case http.StatusInsufficientStorage:
		return fault.Resource, "enospc", "Use a template with a larger disk.", 0
	}
	switch {
	case e.Status >= 500 && has(permission...):
		return fault.Config, "sandbox.e2b-forbidden", "Use a key of a team that may use this template and feature.", fault.ScopeExperiment
	case e.Status >= 500:
		return fault.Transient, "sandbox.e2b-unavailable", "", 0
	}
	return fault.Config, "sandbox.e2b-refused", "", 0
}

// streamClass judges codes of the RPC protocol.
func streamClass(code string) fault.Class {
	switch code {
	case "unavailable", "resource_exhausted", "aborted", "deadline_exceeded":
		return fault.Transient
	case "invalid_argument", "not_found", "permission_denied", "unauthenticated", "unimplemented", "failed_precondition":
		return fault.Config
	}
	return fault.Unknown
}

// lifeError says in E2B's words, or with the numbers, that a sandbox cannot live
// as long as is needed.
func lifeError(format string, args ...any) error {
	return &fault.Error{
		Class: fault.Config, Code: "sandbox.lifetime-too-long", What: fmt.Sprintf(format, args...),
		Fix: "Lower `lifetime` and `timeout`, or use a plan whose sandboxes may live longer.",
	}
}

package vercel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"assay/fault"
	"assay/sandbox/vercel/vercelapi"
)

// Classify judges errors of Vercel's answers and of requests that got none.
func (p *Provider) Classify(err error) fault.Class {
	class, _, _, _ := judge(err)
	return class
}

// explain gives an error of the API its class, code and remedy.
func explain(what string, err error) *fault.Error {
	class, code, fix, scope := judge(err)
	return &fault.Error{Class: class, Code: code, Fix: fix, Scope: scope, What: what, Err: err}
}

// judge is the table of Vercel's answers. 410 has two meanings; the code tells.
func judge(err error) (class fault.Class, code, fix string, scope fault.Scope) {
	var ce *vercelapi.CallError
	var e *vercelapi.Error
	switch {
	case errors.As(err, &e):
	case errors.As(err, &ce):
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return fault.Unknown, "", "", 0 // why is read from the context
		}
		return fault.Transient, "sandbox.provider-unreachable", "Check the network.", 0
	case errors.Is(err, vercelapi.ErrNoCredentials):
		return fault.Config, "sandbox.vercel-credentials", remedy, fault.ScopeExperiment
	default:
		return fault.Unknown, "", "", 0
	}
	switch e.Code {
	case "snapshot_not_found":
		return fault.Config, "sandbox.template-missing", "Take the snapshot again (docs/vercel.md) and reference its new id.", fault.ScopeEval
	case "sandbox_timeout_invalid":
		return fault.Config, "sandbox.lifetime-too-long", "Lower `lifetime` and `timeout`, or use a plan whose sandboxes may live longer.", fault.ScopeExperiment
	case "sandbox_stopping", "sandbox_snapshotting", "sandbox_stream_closed":
		return fault.Transient, "sandbox.vercel-busy", "", 0
	case "sandbox_stopped":
		return fault.Unknown, "sandbox-removed", "", 0
	}
	text := strings.ToLower(e.Message)
	switch e.Status {
	case http.StatusUnauthorized:
		return fault.Config, "sandbox.vercel-credentials", remedy, fault.ScopeExperiment
	case http.StatusPaymentRequired:
		return fault.Config, "sandbox.vercel-billing", "Check the team's plan and payment in Vercel's dashboard.", fault.ScopeExperiment
	case http.StatusForbidden:
		return fault.Config, "sandbox.vercel-forbidden", "Check the token, and that it may use the team and project. " + remedy, fault.ScopeExperiment
	case http.StatusNotFound:
		return fault.Unknown, "sandbox.vercel-not-found", "", 0
	case http.StatusTooManyRequests:
		if strings.Contains(text, "concurren") {
			return fault.Transient, "sandbox.vercel-quota", "Lower `--max-concurrency` below the number of sandboxes of the plan.", 0
		}
		return fault.Transient, "sandbox.vercel-rate-limit", "Lower `--max-concurrency`.", 0
	case http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity:
		return fault.Unknown, "sandbox.vercel-refused", "", 0
	}
	switch {
	case e.Status >= 500 && (strings.Contains(text, "forbidden") || strings.Contains(text, "not authorized") || strings.Contains(text, "permission")):
		return fault.Config, "sandbox.vercel-forbidden", "Check the token, and that it may use the team and project.", fault.ScopeExperiment
	case e.Status >= 500:
		return fault.Transient, "sandbox.vercel-unavailable", "", 0
	}
	return fault.Config, "sandbox.vercel-refused", "", 0
}

// lifeError says with the numbers that a sandbox cannot live as long as is
// needed.
func lifeError(format string, args ...any) error {
	return &fault.Error{
		Class: fault.Config, Code: "sandbox.lifetime-too-long", What: fmt.Sprintf(format, args...),
		Fix: "Lower `lifetime` and `timeout`, or use a plan whose sandboxes may live longer.",
	}
}

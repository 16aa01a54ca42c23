// Package record is the durable tree of results: its types, its one exclusive
// writer and its readers.
//
// An attempt is sealed on its own: written beside its place, synced, and
// renamed into it before it is counted. A run killed at any instant keeps every
// sealed attempt. Readers take no lock, never block, and see sealed attempts
// only. Absent facts are absent, never zero.
package record

import (
	"encoding/json"
	"maps"
	"time"

	"assay/ref"
)

// Format is the name and version of the tree's format, in record.json.
const Format = "assay.record/v1"

// Verdict is the outcome of an attempt or, for NotRun, of a slot without one.
type Verdict string

// The verdicts.
const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Errored Verdict = "errored"
	Skipped Verdict = "skipped"
	NotRun  Verdict = "not-run"
)

// Origin says how a slot got its result.
type Origin string

// The origins.
const (
	Executed Origin = "executed"
	Carried  Origin = "carried"
	Accepted Origin = "accepted"
)

// Completion says how a run ended; "" means that it is still going on or that
// its process died.
type Completion string

// The completions.
const (
	Completed   Completion = "completed"
	Interrupted Completion = "interrupted"
	RunFailed   Completion = "failed"
)

// SlotRef is one expected slot of a run.
type SlotRef struct {
	Eval    ref.EvalID `json:"eval"`
	Ordinal int        `json:"ordinal"`
}

// Run is one experiment's execution inside one invocation. It is written before
// the first attempt and declares every slot, so that the denominator is known.
type Run struct {
	ID         ref.RunID        `json:"id"`
	Experiment ref.ExperimentID `json:"experiment"`
	Invocation ref.InvocationID `json:"invocation"`
	StartedAt  time.Time        `json:"startedAt"`
	Slots      []SlotRef        `json:"slots"`
	// Labels and Context describe the configuration for reports; Context holds
	// agent, model, sandbox, flags and limits as declared.
	Labels  map[string]any `json:"labels,omitempty"`
	Context map[string]any `json:"context,omitempty"`
	Tool    string         `json:"tool,omitempty"` // version of assay
	Owner   *Owner         `json:"owner,omitempty"`
}

// Owner identifies the process that executes a run.
type Owner struct {
	Host         string `json:"host"`
	Boot         string `json:"boot,omitempty"`
	PIDNamespace string `json:"pidns,omitempty"`
	PID          int    `json:"pid"`
	Start        string `json:"start,omitempty"`
}

// End is written when a run is over; a run without one is unfinished.
type End struct {
	CompletedAt time.Time    `json:"completedAt"`
	Completion  Completion   `json:"completion"`
	Diagnostics []Diagnostic `json:"diagnostics,omitempty"`
	Facts       Facts        `json:"facts,omitempty"`
	Error       *ErrorInfo   `json:"error,omitempty"`
	// NotRun tells for each slot without a result why there is none.
	NotRun []NotRunSlot `json:"notRun,omitempty"`
	// Hooks are the experiment's own hooks that ran, in order: one that is
	// missing was not entered.
	Hooks []Hook `json:"hooks,omitempty"`
}

// Hook is one run of an experiment's own hook on the host.
type Hook struct {
	Name    string `json:"name"`    // "setup" or "teardown"
	Outcome string `json:"outcome"` // "done" or "failed"
	MS      int64  `json:"ms"`
}

// NotRunSlot is a slot that got no attempt, or whose attempt was interrupted.
type NotRunSlot struct {
	SlotRef
	// Reason is "interrupted", "budget", "early-exit", "halted", "setup-failed",
	// "prepare-failed", or "judge-precheck-failed".
	Reason  string        `json:"reason"`
	Attempt ref.AttemptID `json:"attempt,omitempty"` // an interrupted attempt
	// Error makes the slot errored although nothing was attempted.
	Error *ErrorInfo `json:"error,omitempty"`
}

// Member says that a slot of this run was filled by an attempt of another run.
type Member struct {
	SlotRef
	Origin  Origin        `json:"origin"` // Carried or Accepted
	Run     ref.RunID     `json:"run"`    // where the attempt was executed
	Attempt ref.AttemptID `json:"attempt"`
	Reason  string        `json:"reason,omitempty"`
	// Identity is what the result was accepted for, where that is not the
	// attempt's own.
	Identity *Identity `json:"identity,omitempty"`
}

// Attempt is everything known of one execution but its large parts, which lie
// beside it: Events, Commands and Diff.
type Attempt struct {
	ID         ref.AttemptID    `json:"id"`
	Locator    ref.Locator      `json:"locator"`
	Run        ref.RunID        `json:"run"`
	Experiment ref.ExperimentID `json:"experiment"`
	Eval       ref.EvalID       `json:"eval"`
	Ordinal    int              `json:"ordinal"`
	Verdict    Verdict          `json:"verdict"`
	// StartedAt is when sandbox creation began: queueing is excluded.
	StartedAt time.Time `json:"startedAt"`
	// DurationMS is the measured time from StartedAt to the end of grading;
	// absent when the attempt was cut off, and then CensoredMS is the limit it
	// hit.
	DurationMS *int64  `json:"durationMs,omitempty"`
	CensoredMS *int64  `json:"censoredMs,omitempty"`
	QueuedMS   *int64  `json:"queuedMs,omitempty"`
	Phases     []Phase `json:"phases,omitempty"`
	Checks     []Check `json:"checks,omitempty"`
	// Spans tell where the agent's time went, as it told itself: the longest, in
	// order of their start. SpansLeft counts those that are not there.
	Spans     []Span `json:"spans,omitempty"`
	SpansLeft int    `json:"spansLeft,omitempty"`
	// Skip is the reason of a skipped attempt.
	Skip  string `json:"skip,omitempty"`
	Turns []Turn `json:"turns,omitempty"`
	// Usage and CostUSD are what the agent reported or a price table gives;
	// absent when nobody knows.
	Usage       *Usage       `json:"usage,omitempty"`
	CostUSD     *float64     `json:"costUSD,omitempty"`
	Sandbox     *Sandbox     `json:"sandbox,omitempty"`
	Diff        *DiffSummary `json:"diff,omitempty"`
	Diagnostics []Diagnostic `json:"diagnostics,omitempty"`
	Facts       Facts        `json:"facts,omitempty"`
	Error       *ErrorInfo   `json:"error,omitempty"`
	// Agent is what was under test, as it identified itself.
	Agent *AgentInfo `json:"agent,omitempty"`
	// Identity is what must be equal for a later run to carry this result.
	Identity *Identity `json:"identity,omitempty"`
	// Trimmed names the parts of the explanation that were shortened so that the
	// attempt could be recorded, such as "turns[3].reply". Verdict, outcomes and
	// facts are never among them.
	Trimmed []string `json:"trimmed,omitempty"`
}

// Phase is one timed part of an attempt.
type Phase struct {
	Name    string `json:"name"`
	StartMS int64  `json:"startMs"` // since Attempt.StartedAt
	MS      int64  `json:"ms"`
	// Outcome is "" for done, else "failed", "canceled" or "skipped".
	Outcome string `json:"outcome,omitempty"`
}

// Span is one timed part of what an agent did.
type Span struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"`
	Name   string `json:"name"`
	// StartMS is since Attempt.StartedAt, by the sandbox's clock.
	StartMS int64 `json:"startMs"`
	MS      int64 `json:"ms"`
	// Turn is the send that it belongs to, 0 where nobody can tell.
	Turn       int               `json:"turn,omitempty"`
	Failed     bool              `json:"failed,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Severity of a check.
type Severity string

// The severities: a gate decides the verdict, a soft check is only reported.
const (
	Gate Severity = "gate"
	Soft Severity = "soft"
)

// Outcome of a check.
type Outcome string

// The three outcomes. Unavailable never counts as either of the others.
const (
	Matched     Outcome = "matched"
	Mismatched  Outcome = "mismatched"
	Unavailable Outcome = "unavailable"
)

// Check is one evaluated assertion.
type Check struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Severity Severity `json:"severity"`
	Outcome  Outcome  `json:"outcome"`
	// Optional checks may be unavailable without making the attempt errored.
	Optional bool `json:"optional,omitempty"`
	// Detail is the reason in one or a few lines: expected and received.
	Detail string `json:"detail,omitempty"`
	// Reason is a stable token for an unavailable check.
	Reason string `json:"reason,omitempty"`
	// Value is a measurement, Threshold what it is held to.
	Value     *float64 `json:"value,omitempty"`
	Threshold *float64 `json:"threshold,omitempty"`
	// Turn is the 1-based turn it was made after, 0 for the end.
	Turn int `json:"turn,omitempty"`
	// Group is the title of the group it was made in.
	Group string `json:"group,omitempty"`
	// Environment is set when the check's own command could not run (exit 126
	// or 127): the environment lacks something, whatever the agent did.
	Environment string `json:"environment,omitempty"`
	// Judge is what a model was asked and answered, for a check of that kind.
	Judge *Judgment `json:"judge,omitempty"`
}

// Judgment is one grade that a model was asked for. The texts are shortened and
// hold no secret.
type Judgment struct {
	// Kind is "criteria", "closedQA", "factuality" or "summary".
	Kind    string `json:"kind"`
	Model   string `json:"model,omitempty"`
	BaseURL string `json:"baseUrl,omitempty"`
	// AnsweredBy is the model that the service named, where it is another.
	AnsweredBy string `json:"answeredBy,omitempty"`
	Criterion  string `json:"criterion,omitempty"`
	Input      string `json:"input,omitempty"`
	Output     string `json:"output,omitempty"`
	Changes    string `json:"changes,omitempty"`
	Reference  string `json:"reference,omitempty"`
	Rationale  string `json:"rationale,omitempty"`
	// Usage is the grading's own, never part of the agent's.
	Usage *JudgeUsage `json:"usage,omitempty"`
	// Tries is how many requests were made; 0 is none.
	Tries int   `json:"tries"`
	MS    int64 `json:"ms"`
}

// JudgeUsage counts the tokens of a grade.
type JudgeUsage struct {
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
}

// Turn is one message to the agent and its answer.
type Turn struct {
	Session int    `json:"session"` // from 1
	Turn    int    `json:"turn"`    // from 1, over all sessions
	Prompt  string `json:"prompt"`
	Reply   string `json:"reply,omitempty"`
	// Status is "completed", "failed" or "waiting"; "" when the send failed.
	Status     string `json:"status,omitempty"`
	StopReason string `json:"stopReason,omitempty"`
	Exit       *int   `json:"exit,omitempty"`
	MS         int64  `json:"ms"`
	Usage      *Usage `json:"usage,omitempty"`
}

// Usage counts tokens in buckets that exclude each other; InputTokens are the
// uncached ones and ReasoningTokens are part of OutputTokens. A bucket that
// nobody reported is absent.
type Usage struct {
	InputTokens         *int64   `json:"inputTokens,omitempty"`
	CacheReadTokens     *int64   `json:"cacheReadTokens,omitempty"`
	CacheCreationTokens *int64   `json:"cacheCreationTokens,omitempty"`
	OutputTokens        *int64   `json:"outputTokens,omitempty"`
	ReasoningTokens     *int64   `json:"reasoningTokens,omitempty"`
	Requests            *int64   `json:"requests,omitempty"`
	CostUSD             *float64 `json:"costUSD,omitempty"` // as observed by the agent
}

// Sandbox tells where an attempt ran.
type Sandbox struct {
	Provider string `json:"provider"`
	Engine   string `json:"engine,omitempty"`
	ID       string `json:"id"`
	// Ordinal numbers the shared sandboxes of the run, from 1; 0 where the
	// attempt had one of its own.
	Ordinal int `json:"ordinal,omitempty"`
	// Use is the ordinal of this attempt on that sandbox, from 1.
	Use     int    `json:"use"`
	Reused  bool   `json:"reused,omitempty"`
	Kept    bool   `json:"kept,omitempty"`
	Key     string `json:"key,omitempty"`
	From    string `json:"from,omitempty"` // the prepared start point
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir,omitempty"`
	// Limits and Network are as asked for, Details as the provider reports.
	Limits  map[string]any    `json:"limits,omitempty"`
	Network string            `json:"network,omitempty"`
	Details map[string]string `json:"details,omitempty"`
}

// AgentInfo identifies the agent that ran.
type AgentInfo struct {
	Name    string         `json:"name"`
	Version string         `json:"version,omitempty"`
	Model   string         `json:"model,omitempty"`
	Details map[string]any `json:"details,omitempty"`
}

// Diagnostic is a recorded problem; Count tells how often its dedupe key came.
type Diagnostic struct {
	Phase   string          `json:"phase,omitempty"`
	Code    string          `json:"code"`
	Level   string          `json:"level"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
	Key     string          `json:"dedupeKey,omitempty"`
	Count   int             `json:"count"`
}

// Facts are documents by reverse-domain name.
type Facts map[string]Fact

// Fact is a neutral run-time fact.
type Fact struct {
	ObservedAt time.Time       `json:"observedAt"`
	Value      json.RawMessage `json:"value"`
}

// ErrorInfo is the one execution error of an attempt or a run.
type ErrorInfo struct {
	Code    string `json:"code"`
	Phase   string `json:"phase,omitempty"`
	Message string `json:"message"`
	Class   string `json:"class,omitempty"`
	Scope   string `json:"scope,omitempty"`
	Fix     string `json:"fix,omitempty"`
	// Cause is the innermost cause, bounded.
	Cause   string        `json:"cause,omitempty"`
	Timeout *TimeoutInfo  `json:"timeout,omitempty"`
	Prepare *PrepareError `json:"prepare,omitempty"`
}

// TimeoutInfo says which limit fired and who had set it.
type TimeoutInfo struct {
	Limit   string `json:"limit"`
	ValueMS int64  `json:"valueMs"`
	Layer   string `json:"layer"`
}

// PrepareError tells why a sandbox could not be prepared.
type PrepareError struct {
	Headline string   `json:"headline"`
	Stage    string   `json:"stage"`
	Class    string   `json:"class"`
	Cause    string   `json:"cause"`
	Log      string   `json:"log,omitempty"`
	Levels   []string `json:"levels"`
}

// Identity is what an attempt's result depends on, as far as it was declared.
type Identity struct {
	// Domain names the recipe of Digest; values of other domains never match.
	Domain string `json:"domain"`
	Digest string `json:"digest"`
	// Inputs maps each input to its digest or value, for people.
	Inputs map[string]string `json:"inputs,omitempty"`

	// unread are the inputs of a sketch: few are ever looked at.
	unread json.RawMessage
}

// Values returns Inputs, also of an identity that was read by Sketch.
func (i *Identity) Values() map[string]string {
	if i.Inputs == nil && len(i.unread) > 0 {
		var m map[string]string
		if json.Unmarshal(i.unread, &m) == nil {
			return m
		}
	}
	return i.Inputs
}

// Clone returns a copy that shares nothing; nil of nil.
func (i *Identity) Clone() *Identity {
	if i == nil {
		return nil
	}
	c := *i
	c.Inputs = maps.Clone(i.Values())
	c.unread = nil
	return &c
}

// DiffSummary is the list of changes attributed to the agent.
type DiffSummary struct {
	Changes []Change `json:"changes"`
	// Partial is the reason why the list is not complete, or "".
	Partial string `json:"partial,omitempty"`
}

// Change is one path that the agent changed. A path that is no UTF-8 has its
// invalid bytes as \xNN.
type Change struct {
	Path   string `json:"path"`
	Status string `json:"status"` // added, modified, deleted
}

// Diff is the large part of the changes: one entry per send window.
type Diff struct {
	Windows []Window `json:"windows"`
	Partial string   `json:"partial,omitempty"`
}

// Window is what changed during one send.
type Window struct {
	Label string `json:"label"` // "turn1", "session2/turn3"
	Rows  []Row  `json:"rows"`
}

// Row is one changed path with its two sides.
type Row struct {
	Path   string `json:"path"`
	Status string `json:"status"`
	Before *Side  `json:"before,omitempty"`
	After  *Side  `json:"after,omitempty"`
}

// Side is one side of a change.
type Side struct {
	Mode   string `json:"mode"` // 100644, 100755 or 120000
	Size   int64  `json:"size"`
	Digest string `json:"digest,omitempty"` // content address
	Binary bool   `json:"binary,omitempty"`
	// Elided content is not in the record: too large or binary.
	Elided bool    `json:"elided,omitempty"`
	Text   *string `json:"text,omitempty"`
}

// Sealed is one whole attempt as it is written.
type Sealed struct {
	Attempt  Attempt
	Diff     *Diff
	Commands []json.RawMessage // one sandbox.CommandRecord each
	Events   []json.RawMessage // one agent event each
}

// Receipt is the machine hand-off at the end of `exp --json`.
type Receipt struct {
	InvocationID ref.InvocationID `json:"invocationId"`
	RunIDs       []ref.RunID      `json:"runIds"`
	StartedAt    time.Time        `json:"startedAt"`
	CompletedAt  *time.Time       `json:"completedAt,omitempty"`
	Completion   Completion       `json:"completion"`
}

// Fold derives the verdict of an attempt from what was recorded: an execution
// error or a mandatory check without an answer is errored, then a missed gate
// is failed, then a skip, else passed.
func (a *Attempt) Fold() Verdict {
	if a.Error != nil {
		return Errored
	}
	for _, c := range a.Checks {
		if c.Outcome == Unavailable && !c.Optional && c.Severity == Gate {
			return Errored
		}
	}
	for _, c := range a.Checks {
		if c.Severity == Gate && c.Outcome == Mismatched {
			return Failed
		}
	}
	if a.Skip != "" {
		return Skipped
	}
	return Passed
}

// Package ref names things: evals, experiments, slots, runs, attempts and the
// short locators that people type.
package ref

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// EvalID names an eval: its path below evals/, without the file's suffix.
type EvalID string

// ExperimentID names an experiment: its path below experiments/, without ".yaml".
type ExperimentID string

// InvocationID names one call of `assay exp`.
type InvocationID string

// RunID names one experiment's execution inside one invocation.
type RunID string

// AttemptID names one execution of one eval under one experiment.
type AttemptID string

// Locator is the short, permanent handle of one attempt, such as
// "@1h2k9d0q3v5zx".
type Locator string

// Slot is a planned attempt position: the n-th attempt (from 0) of an eval
// under an experiment.
type Slot struct {
	Experiment ExperimentID
	Eval       EvalID
	Ordinal    int
}

// String returns "experiment eval#ordinal".
func (s Slot) String() string { return fmt.Sprintf("%s %s#%d", s.Experiment, s.Eval, s.Ordinal) }

// crockford is the alphabet of ids: no i, l, o, u; lower case; order is kept.
var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// New returns a fresh 26-character id: 48 bits of Unix milliseconds followed by
// 80 random bits in Crockford base 32, so that ids sort by time of creation.
func New() string {
	var b [16]byte
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	rand.Read(b[6:])
	return crockford.EncodeToString(b[:])
}

// NewRun returns a fresh run id.
func NewRun() RunID { return RunID(New()) }

// NewAttempt returns a fresh attempt id.
func NewAttempt() AttemptID { return AttemptID(New()) }

// NewInvocation returns a fresh invocation id.
func NewInvocation() InvocationID { return InvocationID(New()) }

// LocatorOf returns the locator of an attempt: "@", a scheme digit, and 12
// characters of a 60-bit hash of the id. It never changes for an attempt.
func LocatorOf(id AttemptID) Locator {
	sum := sha256.Sum256([]byte("assay locator\x00" + string(id)))
	return Locator("@1" + crockford.EncodeToString(sum[:8])[:12])
}

var locatorShape = regexp.MustCompile(`^@1[0-9a-hjkmnp-tv-z]{12}$`)

// ParseLocator checks the shape of a locator that a person typed.
func ParseLocator(s string) (Locator, error) {
	if !locatorShape.MatchString(s) {
		return "", fmt.Errorf("malformed locator %q: a locator is @1 followed by 12 characters", s)
	}
	return Locator(s), nil
}

var idShape = regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{26}$`)

// ValidID reports whether s has the shape of a run, attempt or invocation id.
// Ids become file names, so nothing else may pass.
func ValidID(s string) bool { return idShape.MatchString(s) }

// CheckPathID reports why s cannot be the id of an eval or experiment, or nil.
// Ids are relative slash paths: no empty, "." or ".." segment, no control
// character or bidirectional override, no backslash, at most 512 bytes.
func CheckPathID(s string) error {
	if s == "" || len(s) > 512 {
		return fmt.Errorf("an id has 1 to 512 bytes, %q has %d", s, len(s))
	}
	for seg := range strings.SplitSeq(s, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return fmt.Errorf("id %q has an empty, \".\" or \"..\" segment", s)
		}
	}
	for _, r := range s {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\\' || r == '\uFFFD' {
			return fmt.Errorf("id %q has a control character, a backslash or invalid UTF-8", s)
		}
	}
	return nil
}

// Package otlp receives the spans that an agent sends over OTLP/HTTP, as
// protobuf or JSON, and reads them with bounds on everything: what comes is
// written by the thing under test.
//
// Spans tell where time went and nothing else. That they are lost, cut or
// malformed is never an error of an attempt.
package otlp

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Span is one timed part of what an agent did.
type Span struct {
	// Trace, ID and Parent are hex; Parent is "" for a root.
	Trace, ID, Parent string
	Name              string
	Start, End        time.Time
	// Failed is true when the agent said so.
	Failed bool
	// Attributes are the texts, numbers and truths that came with it.
	Attributes map[string]string
}

// The bounds of what is kept.
const (
	MaxBody       = 4 << 20 // of a request, uncompressed
	MaxSpans      = 20_000  // of a receiver
	maxName       = 200
	maxAttributes = 24
	maxValue      = 200
)

// Longest returns at most n spans, in order of their start: those that took
// longest, since a picture of where time went needs no others.
func Longest(spans []Span, n int) []Span {
	out := slices.Clone(spans)
	if len(out) > n {
		slices.SortStableFunc(out, func(a, b Span) int { return cmp.Compare(b.End.Sub(b.Start), a.End.Sub(a.Start)) })
		out = out[:n]
	}
	slices.SortStableFunc(out, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return out
}

// clip cuts a text to n bytes of whole characters, without control characters.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// usable reports whether a span says enough to be drawn, and cleans it.
func (s *Span) usable() bool {
	if s.Trace == "" || s.ID == "" || s.Start.IsZero() || s.End.Before(s.Start) {
		return false
	}
	s.Name = clip(s.Name, maxName)
	return true
}

func (s *Span) attribute(key, value string) {
	if key == "" || value == "" || len(s.Attributes) >= maxAttributes {
		return
	}
	if s.Attributes == nil {
		s.Attributes = map[string]string{}
	}
	s.Attributes[clip(key, maxName)] = clip(value, maxValue)
}

// instant is a time in nanoseconds since 1970; one that no clock shows is none.
func instant(ns uint64) time.Time {
	const century = 100 * 365 * 24 * uint64(time.Hour)
	if ns == 0 || ns > century {
		return time.Time{}
	}
	return time.Unix(0, int64(ns)).UTC()
}

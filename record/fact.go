package record

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"assay/fault"
)

// MaxFactBytes is the largest compact document {"observedAt":…,"value":…} of a
// fact, in bytes of UTF-8.
const MaxFactBytes = 65_536

// reservedNamespace is the part of the fact names that is assay's own.
const reservedNamespace = "assay"

var factName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$`)

// CheckFactName reports why name cannot be the name of a user's fact, or nil.
// Names are reverse-domain: 3 to 253 bytes, at least two labels of 1 to 63
// lower-case letters, digits and inner hyphens. Names below "assay." are
// reserved. The error has code record-custom-fact-name-invalid.
func CheckFactName(name string) error {
	const fix = `use a reverse-domain name such as "com.example.cache-size"`
	switch {
	case len(name) < 3 || len(name) > 253:
		return fault.Configf(CodeFactName, fix, "a fact name has 3 to 253 characters, %.80q has %d", name, len(name))
	case !factName.MatchString(name):
		return fault.Configf(CodeFactName, fix, "fact name %q is not two or more labels of lower-case letters, digits and hyphens", name)
	case strings.HasPrefix(name, reservedNamespace+"."):
		return fault.Configf(CodeFactName, fix, "fact name %q is in the reserved namespace %q", name, reservedNamespace+".*")
	}
	return nil
}

// NewFact makes the fact of a value observed at a moment. The value must be
// representable in JSON (no NaN, no infinity, no cycle: code
// record-custom-fact-invalid) and the whole document at most MaxFactBytes long
// (code record-custom-fact-too-large).
func NewFact(value any, at time.Time) (Fact, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return Fact{}, &fault.Error{
			Class: fault.Config, Code: CodeFactInvalid, What: "fact value is not JSON", Err: err,
			Fix: "give a value that JSON can hold: no NaN, infinity, channel, func or cycle",
		}
	}
	f := Fact{ObservedAt: at.UTC(), Value: raw}
	doc, err := json.Marshal(f)
	if err != nil {
		return Fact{}, &fault.Error{
			Class: fault.Config, Code: CodeFactInvalid, What: "fact is not JSON", Err: err,
			Fix: "give a time between the years 0 and 9999",
		}
	}
	if len(doc) > MaxFactBytes {
		return Fact{}, fault.Configf(CodeFactTooLarge, "record a summary, or write the data to a file",
			"fact document has %d bytes, at most %d are allowed", len(doc), MaxFactBytes)
	}
	return f, nil
}

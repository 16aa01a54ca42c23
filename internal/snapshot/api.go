package snapshot

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// ID is a git object id (SHA-1).
type ID [20]byte

// String returns the id as 40 lower-case hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether the id names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText returns the hex form; the zero id is the empty text.
func (id ID) MarshalText() ([]byte, error) {
	if id.IsZero() {
		return nil, nil
	}
	return []byte(id.String()), nil
}

// UnmarshalText accepts 40 hex digits or nothing.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*id = ID{}
		return nil
	}
	if len(text) != 40 {
		return fmt.Errorf("object id of %d digits, want 40", len(text))
	}
	_, err := hex.Decode(id[:], text)
	return err
}

// ParseID reads 40 hex digits.
func ParseID(s string) (ID, error) {
	var id ID
	if s == "" {
		return id, fmt.Errorf("empty object id")
	}
	return id, id.UnmarshalText([]byte(s))
}

// Author says whose work the changes of a commit are.
type Author string

// The authors. Only an agent's commits form an agent's diff.
const (
	Baseline Author = "baseline"
	Eval     Author = "eval"
	Agent    Author = "agent"
)

// Commit is one recorded state.
type Commit struct {
	ID     ID     `json:"id"`
	Tree   ID     `json:"tree"`
	Parent ID     `json:"parent,omitzero"`
	Author Author `json:"author"`
	Label  string `json:"label,omitempty"`
	// Changed tells whether the tree differs from the parent's.
	Changed bool `json:"changed"`
}

// Stats says what one scan of the working tree saw and did.
type Stats struct {
	// Files counts captured regular files and links.
	Files int `json:"files"`
	// Bytes is their total size.
	Bytes int64 `json:"bytes"`
	// Hashed counts files that had to be read; the others were known by their
	// facts (size, times, inode).
	Hashed int `json:"hashed"`
	// Stored counts objects new to the store.
	Stored int `json:"stored"`
	// Special counts sockets, pipes and devices: they cannot be captured.
	Special int `json:"special,omitempty"`
	// SpecialPaths names the first of them, at most 20.
	SpecialPaths []Raw `json:"specialPaths,omitempty"`
	// Unstable counts files that kept changing while they were read; what was
	// read is captured.
	Unstable int `json:"unstable,omitempty"`
	// Written and Removed count the paths a reset restored and deleted.
	Written int `json:"written,omitempty"`
	Removed int `json:"removed,omitempty"`
	// Adjusted counts paths of which a reset restored only mode or owner.
	Adjusted int `json:"adjusted,omitempty"`
}

// Status is the kind of a change.
type Status string

// The kinds of change. A change of type or executable bit alone is Modified.
const (
	Added    Status = "added"
	Modified Status = "modified"
	Deleted  Status = "deleted"
)

// Change is one path that differs between the two ends of a window.
type Change struct {
	// Path is relative to the working tree, with forward slashes, raw bytes.
	Path   Raw    `json:"path"`
	Status Status `json:"status"`
	// Before is nil for Added, After is nil for Deleted.
	Before *Side `json:"before,omitempty"`
	After  *Side `json:"after,omitempty"`
}

// Side is one end of a change.
type Side struct {
	// Mode is git's: 0o100644, 0o100755 or 0o120000 (link; its text is the target).
	Mode uint32 `json:"mode"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// Blob is the git id of the content.
	Blob ID `json:"blob"`
	// SHA256 is the hex digest of the content; set when content was asked for.
	SHA256 string `json:"sha256,omitempty"`
	// Binary tells that the first 8000 bytes hold a NUL; set when content was asked for.
	Binary bool `json:"binary,omitempty"`
	// Elided says why Text is missing although content was asked for.
	Elided Elision `json:"elided,omitempty"`
	// Text is the content, nil when elided or not asked for.
	Text *Raw `json:"text,omitempty"`
}

// Elision is a reason to leave content out.
type Elision string

// The reasons: content over the blob limit, binary content, and the budget of
// the window used up (which makes the window partial).
const (
	ElidedSize   Elision = "size"
	ElidedBinary Elision = "binary"
	ElidedBudget Elision = "budget"
)

// Window is a pair of recorded states to compare.
type Window struct {
	// Label is the caller's name for it, such as "turn1".
	Label string `json:"label,omitempty"`
	// From may be zero: the empty tree.
	From ID `json:"from,omitzero"`
	To   ID `json:"to"`
}

// WindowDiff is what changed in one window.
type WindowDiff struct {
	Window
	// Changes is ordered by the bytes of the path.
	Changes []Change `json:"-"`
	// The counts are exact even when Changes is not complete.
	Added    int `json:"added"`
	Modified int `json:"modified"`
	Deleted  int `json:"deleted"`
	// Partial is empty when everything is there, else CapReached.
	Partial string `json:"partial,omitempty"`
}

// CapReached is the reason of a partial result.
const CapReached = "collection-cap-reached"

// Limits bound what a diff hands out. Zero fields mean the default, and the
// default is also the most a caller can ask for.
type Limits struct {
	// Windows per request; 256.
	Windows int `json:"windows,omitempty"`
	// Changes listed per window; 100,000. The counts stay exact beyond it.
	Changes int `json:"changes,omitempty"`
	// TextBytes per window; 256 MiB. Both sides count.
	TextBytes int64 `json:"textBytes,omitempty"`
	// BlobBytes is the largest text handed out; 1 MiB.
	BlobBytes int64 `json:"blobBytes,omitempty"`
}

func (l Limits) withDefaults() Limits {
	if l.Windows <= 0 || l.Windows > 256 {
		l.Windows = 256
	}
	if l.Changes <= 0 || l.Changes > 100_000 {
		l.Changes = 100_000
	}
	if l.TextBytes <= 0 || l.TextBytes > 256<<20 {
		l.TextBytes = 256 << 20
	}
	if l.BlobBytes <= 0 || l.BlobBytes > 1<<20 {
		l.BlobBytes = 1 << 20
	}
	return l
}

// Rules say what a snapshot leaves out. They are frozen by the first commit of
// a store: later commits use the stored ones.
type Rules struct {
	// Ignore adds to the default exclusions.
	Ignore []string `json:"ignore,omitempty"`
	// Include captures paths although they are excluded.
	Include []string `json:"include,omitempty"`
}

// DefaultExclusions returns the patterns that are always excluded, unless
// Rules.Include brings a path back. The root's own .git cannot be brought back.
func DefaultExclusions() []string {
	return strings.Fields(".git node_modules .next dist build .turbo .niceeval .assay coverage .cache " +
		".pnpm-store .npm .yarn *venv*/ .venv __pycache__")
}

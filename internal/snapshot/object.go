package snapshot

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // git's object format
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay/fault"
)

// Kind is the type of a git object, with the numbers of gitformat-pack.
type Kind uint8

// The kinds of object.
const (
	KindCommit Kind = 1
	KindTree   Kind = 2
	KindBlob   Kind = 3
)

func (k Kind) String() string {
	switch k {
	case KindCommit:
		return "commit"
	case KindTree:
		return "tree"
	case KindBlob:
		return "blob"
	}
	return "kind " + strconv.Itoa(int(k))
}

// Modes of a tree entry.
const (
	modeFile uint32 = 0o100644
	modeExec uint32 = 0o100755
	modeLink uint32 = 0o120000
	modeTree uint32 = 0o040000
)

// hashObject returns the id of an object.
func hashObject(k Kind, data []byte) ID {
	h := sha1.New()
	h.Write(objectHeader(k, int64(len(data))))
	h.Write(data)
	return ID(h.Sum(nil))
}

func objectHeader(k Kind, size int64) []byte {
	b := append(make([]byte, 0, 32), k.String()...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, size, 10)
	return append(b, 0)
}

// emptyTree is the id of the tree without entries.
var emptyTree = hashObject(KindTree, nil)

// treeEntry is one line of a tree object.
type treeEntry struct {
	mode uint32
	name string
	id   ID
}

// compareEntries orders entries as git does: a directory as if its name ended in
// "/". The paths of a walk in this order are ordered by their bytes.
func compareEntries(a, b treeEntry) int {
	return compareNames(a.name, a.mode == modeTree, b.name, b.mode == modeTree)
}

func compareNames(a string, aDir bool, b string, bDir bool) int {
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	return int(byteAfter(a, n, aDir)) - int(byteAfter(b, n, bDir))
}

func byteAfter(s string, n int, dir bool) byte {
	switch {
	case len(s) > n:
		return s[n]
	case dir:
		return '/'
	}
	return 0
}

// encodeTree makes a tree object of sorted entries.
func encodeTree(entries []treeEntry) []byte {
	var b []byte
	for _, e := range entries {
		b = strconv.AppendUint(b, uint64(e.mode), 8)
		b = append(b, ' ')
		b = append(b, e.name...)
		b = append(b, 0)
		b = append(b, e.id[:]...)
	}
	return b
}

func decodeTree(data []byte) ([]treeEntry, error) {
	var entries []treeEntry
	for len(data) > 0 {
		space := bytes.IndexByte(data, ' ')
		nul := bytes.IndexByte(data, 0)
		if space <= 0 || nul <= space+1 || len(data) < nul+21 {
			return nil, corrupt("a tree object is malformed", nil)
		}
		mode, err := strconv.ParseUint(string(data[:space]), 8, 32)
		if err != nil {
			return nil, corrupt("a tree object is malformed", err)
		}
		e := treeEntry{mode: uint32(mode), name: string(data[space+1 : nul]), id: ID(data[nul+1 : nul+21])}
		if !validName(e.name) {
			return nil, corrupt("a tree object holds a forbidden name", nil)
		}
		switch e.mode {
		case modeFile, modeExec, modeLink, modeTree:
		default:
			return nil, corrupt(fmt.Sprintf("a tree object holds the mode %o", e.mode), nil)
		}
		entries = append(entries, e)
		data = data[nul+21:]
	}
	if !slices.IsSortedFunc(entries, compareEntries) {
		return nil, corrupt("a tree object is not sorted", nil)
	}
	return entries, nil
}

// validName tells whether a name can be one element of a path.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// commitData is what a commit object of this package says.
type commitData struct {
	tree, parent ID
	author       Author
	label        string
	// facts names the blob with the modes and owners of a mark, or is zero.
	facts ID
	time  time.Time
}

const factsTrailer = "Facts: "

func (c commitData) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", c.tree)
	if !c.parent.IsZero() {
		fmt.Fprintf(&b, "parent %s\n", c.parent)
	}
	who := fmt.Sprintf("%s <%s@localhost> %d +0000\n", c.author, c.author, c.time.Unix())
	fmt.Fprintf(&b, "author %scommitter %s\n%s\n", who, who, c.label)
	if !c.facts.IsZero() {
		fmt.Fprintf(&b, "\n%s%s\n", factsTrailer, c.facts)
	}
	return b.Bytes()
}

func decodeCommit(data []byte) (commitData, error) {
	var c commitData
	head, body, ok := strings.Cut(string(data), "\n\n")
	if !ok {
		return c, corrupt("a commit object is malformed", nil)
	}
	for l := range strings.SplitSeq(head, "\n") {
		key, value, _ := strings.Cut(l, " ")
		var err error
		switch key {
		case "tree":
			c.tree, err = ParseID(value)
		case "parent":
			c.parent, err = ParseID(value)
		case "author":
			name, _, _ := strings.Cut(value, " ")
			c.author = Author(name)
		}
		if err != nil {
			return c, corrupt("a commit object is malformed", err)
		}
	}
	label, rest, _ := strings.Cut(body, "\n")
	c.label = label
	if t, ok := strings.CutPrefix(rest, "\n"+factsTrailer); ok {
		id, err := ParseID(strings.TrimSuffix(t, "\n"))
		if err != nil {
			return c, corrupt("a commit object is malformed", err)
		}
		c.facts = id
	}
	if c.tree.IsZero() {
		return c, corrupt("a commit object names no tree", nil)
	}
	return c, nil
}

// corrupt says that the store does not hold what it should: it was damaged or
// tampered with, and nothing read from it can be trusted.
func corrupt(what string, err error) error {
	return &fault.Error{
		Code: "ledger-corrupt", What: "change ledger: " + what, Err: err,
		Fix: "discard this sandbox; its record of changes was damaged",
	}
}

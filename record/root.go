package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"assay/fault"
)

// The codes of this package's errors.
const (
	CodeRootBusy        = "record-root-busy"
	CodeRootMissing     = "record-root-missing"
	CodeRootUnwritable  = "record-root-unwritable"
	CodeFormatInvalid   = "record-format-invalid"
	CodeCoreInvalid     = "record-core-invalid"
	CodeLockUnsupported = "record-operation-lock-unsupported"
	CodeFull            = "enospc"
	CodeIO              = "record-io"
	CodeFactName        = "record-custom-fact-name-invalid"
	CodeFactTooLarge    = "record-custom-fact-too-large"
	CodeFactInvalid     = "record-custom-fact-invalid"
	// CodeFactDuplicate is for the caller that finds a second fact of one name
	// and owner: there is no replacing and no appending.
	CodeFactDuplicate     = "record-custom-fact-duplicate"
	CodeLocatorNotFound   = "locator-not-found"
	CodeLocatorAmbiguous  = "locator-ambiguous"
	CodeRunNotFound       = "record-run-not-found"
	CodeAttemptNotFound   = "record-attempt-not-found"
	CodeDuplicateSlot     = "record-duplicate-slot"
	CodeRunEnded          = "record-run-ended"
	CodeAttemptUnreadable = "record-attempt-unreadable"
)

// The names inside a root.
const (
	rootFile     = "record.json"
	runsDir      = "runs"
	tmpDir       = ".tmp"
	runFile      = "run.json"
	endFile      = "end.json"
	membersFile  = "members.ndjson"
	attemptsDir  = "attempts"
	attemptFile  = "attempt.json"
	eventsFile   = "events.ndjson"
	commandsFile = "commands.ndjson"
	diffFile     = "diff.json"
)

// rootDoc is record.json.
type rootDoc struct {
	Format string `json:"format"`
	// Writer is the version that made the root; it may be newer than this one.
	Writer string `json:"writer,omitempty"`
	ID     string `json:"recordId,omitempty"`
}

// canonical returns the absolute path of root with the symlinks of its nearest
// existing ancestor resolved, so that every alias of a root has one name.
func canonical(root string) (string, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	rest := ""
	for hops := 0; ; {
		real, err := filepath.EvalSymlinks(abs)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		// A dangling link names a place that is about to exist.
		if link, lerr := os.Readlink(abs); lerr == nil {
			if hops++; hops > 40 {
				return "", fmt.Errorf("%s: too many links", root)
			}
			if !filepath.IsAbs(link) {
				link = filepath.Join(filepath.Dir(abs), link)
			}
			abs = filepath.Clean(link)
			continue
		}
		parent := filepath.Dir(abs)
		if parent == abs {
			return "", err
		}
		rest = filepath.Join(filepath.Base(abs), rest)
		abs = parent
	}
}

// inspect says what is at the canonical path root: fresh is true when a record
// may be made there. A file, a folder of other things and a record of another
// format are errors.
func inspect(root string) (fresh bool, err error) {
	info, err := os.Stat(root)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, ioError(err, root, "look at record root "+root)
	}
	if !info.IsDir() {
		return false, fault.Configf(CodeFormatInvalid, "give --record a folder", "record root %s is not a folder", root)
	}
	data, err := os.ReadFile(filepath.Join(root, rootFile))
	if errors.Is(err, fs.ErrNotExist) {
		entries, lerr := os.ReadDir(root)
		if lerr != nil {
			return false, ioError(lerr, root, "list record root "+root)
		}
		i := slices.IndexFunc(entries, func(e fs.DirEntry) bool { return !strings.HasPrefix(e.Name(), ".") })
		if i < 0 {
			return true, nil
		}
		// Another process may be making the record: record.json comes first, so
		// who sees anything else sees it now.
		if data, err = os.ReadFile(filepath.Join(root, rootFile)); errors.Is(err, fs.ErrNotExist) {
			return false, fault.Configf(CodeFormatInvalid, "give --record an empty or a new folder",
				"%s is no record: it holds %s but no %s", root, entries[i].Name(), rootFile)
		}
	}
	if err != nil {
		return false, ioError(err, root, "read "+rootFile)
	}
	return false, checkFormat(root, data)
}

func checkFormat(root string, data []byte) error {
	var doc rootDoc
	if err := json.Unmarshal(data, &doc); err != nil || doc.Format == "" {
		return fault.Configf(CodeFormatInvalid, "restore "+rootFile+" or use --record <other>", "%s in %s is damaged", rootFile, root)
	}
	if doc.Format != Format {
		writer := doc.Writer
		if writer == "" {
			writer = "an unknown version"
		}
		return fault.Configf(CodeFormatInvalid, "use the version that wrote it, or --record <other>",
			"record %s was written by %s in format %q; this version reads %q", root, writer, doc.Format, Format)
	}
	return nil
}

// writerVersion is the version of this program, as far as its build knows.
func writerVersion() string {
	v := "assay"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v += " " + info.Main.Version
	}
	return v
}

// ioError gives a file system error its class, code and fix.
func ioError(err error, root, what string) *fault.Error {
	e := &fault.Error{Class: fault.Config, Code: CodeIO, What: what, Err: err}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		e.Class, e.Code = fault.Resource, CodeFull
		e.Fix = "free space on the file system of " + root + ", or use --record <other>"
	case errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission):
		e.Code, e.Fix = CodeRootUnwritable, "make "+root+" writable, or use --record <other>"
	case errors.Is(err, syscall.ENOTDIR):
		e.Code, e.Fix = CodeRootUnwritable, "a parent of "+root+" is a file: use --record <other>"
	default:
		e.Fix = "check the file system of " + root + ", or use --record <other>"
	}
	return e
}

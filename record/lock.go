package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"assay/fault"
	"assay/internal/atomicfile"

	"github.com/gofrs/flock"
)

// lockSuffix makes the name of a root's lock file, which lies beside the root
// so that the root itself can be made, moved or removed under the lock.
const lockSuffix = ".operation-lock"

// holder is what the lock file tells people about who holds it. Nothing is
// decided by it: the kernel's lock is the truth and ends with its process.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
}

// lockRoot takes the exclusive lock of a canonical root, at once or not at all.
func lockRoot(root, command string) (*flock.Flock, error) {
	path := root + lockSuffix
	if err := os.MkdirAll(filepath.Dir(root), atomicfile.DirMode); err != nil {
		return nil, ioError(err, root, "make the parent of record root "+root)
	}
	lock := flock.New(path, flock.SetPermissions(atomicfile.FileMode), flock.SetFlag(os.O_CREATE|os.O_RDWR))
	got, err := lock.TryLock()
	if err != nil {
		if errors.Is(err, syscall.ENOLCK) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, errors.ErrUnsupported) {
			return nil, &fault.Error{
				Class: fault.Config, Code: CodeLockUnsupported, What: "lock record root " + root, Err: err,
				Fix: "use --record <folder on a local file system>",
			}
		}
		return nil, ioError(err, root, "lock record root "+root)
	}
	if !got {
		return nil, fault.Configf(CodeRootBusy, "wait until it is done, or use --record <other>",
			"record root %s is in use%s", root, describeHolder(path))
	}
	writeHolder(path, command)
	return lock, nil
}

// writeHolder is best effort: it changes a message, not the lock.
func writeHolder(path, command string) {
	host, _ := os.Hostname()
	data, err := json.Marshal(holder{PID: os.Getpid(), Host: host, Command: command, Since: time.Now().UTC()})
	if err != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	_, _ = f.Write(append(data, '\n'))
	_ = f.Close()
}

func describeHolder(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return ""
	}
	var h holder
	if json.Unmarshal(data, &h) != nil || h.PID == 0 {
		return ""
	}
	command := strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, h.Command)
	return fmt.Sprintf(" by process %d on %s since %s: %s", h.PID, h.Host, h.Since.Format(time.TimeOnly), command)
}

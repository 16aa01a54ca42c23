package hostbox

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// Account is a user as the machine's own files have it.
type Account struct {
	Name     string
	UID, GID int
	Home     string
}

// Lookup finds an account by its name in a machine's root.
func Lookup(root *os.Root, name string) (Account, error) {
	body, err := root.ReadFile("etc/passwd")
	if err != nil {
		return Account{}, err
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 7 || f[0] != name {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 == nil && err2 == nil {
			return Account{f[0], uid, gid, f[5]}, nil
		}
	}
	return Account{}, fmt.Errorf("unknown user %q", name)
}

// MkdirAll makes a directory and what is missing above it, for a user.
func MkdirAll(root *os.Root, dir string, uid, gid int) error {
	dir = rel(dir)
	var missing []string
	for d := dir; d != "." && d != "/"; d = path.Dir(d) {
		if _, err := root.Stat(d); err == nil {
			break
		}
		missing = append(missing, d)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := root.Mkdir(missing[i], 0o755); err != nil && !os.IsExist(err) {
			return err
		}
		if err := root.Lchown(missing[i], uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// Rel is a machine's absolute path as a name below its root.
func Rel(p string) string { return rel(p) }

func rel(p string) string {
	if p = strings.TrimPrefix(path.Clean("/"+p), "/"); p == "" {
		return "."
	}
	return p
}

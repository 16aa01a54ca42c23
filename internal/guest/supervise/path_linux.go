package supervise

import (
	"path"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

// defaultPath is searched when the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// candidates returns the files that argv[0] may mean, in order. A name with a
// slash is a file; the kernel takes a relative one from the working directory.
func candidates(req *wire.ExecRequest) []string {
	name := req.Argv[0]
	if strings.Contains(name, "/") {
		return []string{name}
	}
	search := defaultPath
	for _, v := range req.Env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			search = p // the last one counts, as in the command's own view of most shells
		}
	}
	var files []string
	for _, dir := range strings.Split(search, ":") {
		file := path.Join(dir, name)
		if !path.IsAbs(dir) {
			file = path.Join(req.Dir, dir, name)
		}
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			files = append(files, file)
		}
	}
	return files
}

// dirProblem explains a start that failed because the user cannot enter the
// working directory, which the kernel's error does not tell apart from a missing
// program. It returns nil when the directory is not to blame.
func dirProblem(req *wire.ExecRequest) *Event {
	done := make(chan error, 1)
	go func() {
		// The goroutine ends with its thread locked, so the thread with the
		// changed identity ends too. File system identity only: the process
		// could be signalled by the user if its real one changed.
		runtime.LockOSThread()
		if cred := credential(req); cred != nil {
			groups := make([]uint32, max(len(cred.Groups), 1))
			copy(groups, cred.Groups)
			_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(cred.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(cred.Gid), 0, 0)
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(cred.Uid), 0, 0)
		}
		fd, err := unix.Open(req.Dir+"/.", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return refuse(wire.CodeNoDir, "working directory "+req.Dir+": "+err.Error())
	}
	return nil
}

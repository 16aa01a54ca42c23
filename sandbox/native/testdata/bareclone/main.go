//go:build linux

// Command bareclone is the least that a fresh sandbox costs: it runs as the
// first process of new namespaces, mounts a file system in memory and an overlay
// over /usr, makes that its root with a fresh /proc, and becomes the command.
package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", "/tmp", "tmpfs", 0, ""),
		os.Chdir("/tmp"),
		os.MkdirAll("root/usr", 0o755), os.MkdirAll("root/proc", 0o755), os.Mkdir("up", 0o755), os.Mkdir("work", 0o755),
		unix.Mount("root", "root", "", unix.MS_BIND, ""),
		unix.Mount("none", "root/usr", "overlay", 0, "lowerdir=/usr,upperdir=up,workdir=work,userxattr"),
		os.Symlink("usr/lib", "root/lib"), os.Symlink("usr/lib64", "root/lib64"), os.Symlink("usr/bin", "root/bin"),
		unix.Mount("none", "root/proc", "proc", 0, ""),
		os.Chdir("root"),
		unix.PivotRoot(".", "."),
		unix.Unmount(".", unix.MNT_DETACH),
		os.Chdir("/"),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
	} {
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
	}
	err := syscall.Exec(os.Args[1], os.Args[1:], nil)
	os.Stderr.WriteString(err.Error() + "\n")
	os.Exit(1)
}

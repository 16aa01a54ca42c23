//go:build unix

package attempt_test

import "syscall"

func mkfifo(name string) error { return syscall.Mkfifo(name, 0o600) }

package local

import "assay/sandbox"

// GuestPID is the process id of a driver's supervisor.
func GuestPID(d sandbox.Driver) int { return d.(*supervised).guest.cmd.Process.Pid }

package record

import "os"

// CurrentOwner identifies this process well enough that another process on the
// same machine can tell whether it is still alive.
func CurrentOwner() *Owner {
	o := &Owner{Host: hostName(), PID: os.Getpid()}
	o.Boot, o.PIDNamespace, o.Start = processFacts(o.PID)
	return o
}

// life is what is known about a process.
type life uint8

const (
	lifeUnknown life = iota
	alive
	dead
)

// lifeOf judges the owner as seen from this process. Another machine or process
// namespace is unknown; another boot of this machine is dead.
func lifeOf(o *Owner) life {
	if o == nil || o.PID <= 0 {
		return lifeUnknown
	}
	if hostName() != o.Host {
		return lifeUnknown
	}
	boot, ns, start := processFacts(o.PID)
	switch {
	case boot != "" && o.Boot != "" && boot != o.Boot:
		return dead
	case ns != o.PIDNamespace:
		return lifeUnknown
	case o.Start != "" && start == "" && exists(o.PID):
		return lifeUnknown // it is hidden from this user
	case o.Start != "" && start != o.Start:
		return dead // gone, or its number belongs to another process now
	case !exists(o.PID):
		return dead
	}
	return alive
}

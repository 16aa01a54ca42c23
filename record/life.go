package record

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"sync"
)

// Liveness is what is known of the process that owns something.
type Liveness string

// The kinds of liveness. A stopped process is live; one of another machine or
// process namespace cannot be verified.
const (
	Live       Liveness = "live"
	Dead       Liveness = "dead"
	Unverified Liveness = "unverified"
)

// LivenessOf judges an owner as seen from this process: by machine, boot, process
// namespace, number and start time, so that a number that was given to another
// process in the meantime does not count.
func LivenessOf(o *Owner) Liveness {
	switch lifeOf(o) {
	case alive:
		return Live
	case dead:
		// Where a system tells neither its boot nor a process's start, machines of
		// one name cannot be told apart, and nothing is removed on a guess.
		if o.Boot != "" && o.Start != "" {
			return Dead
		}
	}
	return Unverified
}

// hostName names this machine: its host name and, where the system has an id of
// its own, a part of that, because people give many machines one name.
var hostName = sync.OnceValue(func() string {
	name, _ := os.Hostname()
	for _, file := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if b, err := os.ReadFile(file); err == nil && len(strings.TrimSpace(string(b))) > 0 {
			sum := sha256.Sum256([]byte(strings.TrimSpace(string(b))))
			return name + "/" + hex.EncodeToString(sum[:4])
		}
	}
	return name
})

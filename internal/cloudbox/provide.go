package cloudbox

import (
	"fmt"
	"os"
	"sync"
	"time"

	"assay/fault"
	"assay/internal/guest/guestbin"
	"assay/sandbox"
)

// Program is the exec server of a service's machines, which are Linux on amd64.
// It is read once. The zero value is ready.
type Program struct {
	mu   sync.Mutex
	body []byte
}

// Read returns the program that is in a file; "" finds the one that ships.
func (p *Program) Read(file string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.body != nil {
		return p.body, nil
	}
	if file == "" {
		g, err := guestbin.Find("linux", "amd64")
		if err != nil {
			return nil, err
		}
		file = g.Path
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, &fault.Error{Class: fault.Config, Code: "guest-missing", What: "read the exec server for the sandbox", Fix: "Put the exec server back, or let ASSAY_GUEST name it.", Err: err}
	}
	p.body = b
	return b, nil
}

// reserve is what a sandbox lives on after an attempt's deadline, for the
// grader's cleanup and for the export of what it holds.
const reserve = 30 * time.Second

// Life is the life to ask a service for, or 0 for the service's default. One
// that is too short for the attempt is refused.
func Life(r sandbox.CreateRequest) (time.Duration, error) {
	switch {
	case r.Lifetime > 0 && r.Timeout > 0 && r.Lifetime < r.Timeout+reserve:
		return 0, fault.Configf("sandbox.lifetime-too-short", fmt.Sprintf("Raise `lifetime` to at least %s or lower `timeout`.", r.Timeout+reserve),
			"a lifetime of %s is shorter than the attempt's limit of %s and %s for the end", r.Lifetime, r.Timeout, reserve)
	case r.Lifetime > 0:
		return r.Lifetime, nil
	case r.Timeout > 0:
		return r.Timeout + reserve, nil
	}
	return 0, nil
}

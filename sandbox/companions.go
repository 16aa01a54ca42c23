package sandbox

import "context"

// Companion is something that runs beside a sandbox and is reachable from it by
// the network only, such as a database.
type Companion struct {
	Name string `json:"name"`
	// State is "running", "exited" or what the provider calls it, with the
	// health where there is a healthcheck.
	State string `json:"state"`
	// ExitCode is how it ended, if it did.
	ExitCode *int `json:"exitCode,omitempty"`
	// OOM is true only where the provider knows that memory ran out.
	OOM bool `json:"oom,omitempty"`
	// Log is the end of what it wrote, bounded.
	Log string `json:"log,omitempty"`
}

// Companioner is a power of drivers: it tells how what runs beside the sandbox
// is doing, as evidence for an attempt that failed.
type Companioner interface {
	Companions(ctx context.Context) ([]Companion, error)
}

// SecretEnv names the variables of the host whose values a start point uses, so
// that they are masked wherever output is kept or shown. A Spec says so with a
// method of this name.
func (t Template) SecretEnv() []string {
	if s, ok := t.Spec.(interface{ SecretEnv() []string }); ok {
		return s.SecretEnv()
	}
	return nil
}

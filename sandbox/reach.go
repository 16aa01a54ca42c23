package sandbox

// Reacher is a driver whose programs reach services of this machine, such as a
// receiver of telemetry. A driver that is none isolates, or cannot tell.
type Reacher interface {
	// ReachHost is the name under which they reach it, such as "127.0.0.1".
	ReachHost() string
}

package local

// ReachHost is this machine itself.
func (d *driver) ReachHost() string { return "127.0.0.1" }

//go:build !linux

package enter

// Run does nothing: there are no namespaces here.
func Run(_ []string, _ []string) {}

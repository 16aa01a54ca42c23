// Package fork starts a program in namespaces of its own without a copy of the
// page tables of this one. The syscall package makes such a copy whenever a user
// namespace is asked for, because it writes the namespace's identities before the
// program starts; here the program starts at once, with capabilities but without
// an identity, and the caller writes the identities afterwards.
package fork

// Spec is a program to start.
type Spec struct {
	Path string
	Argv []string
	Env  []string
	// Files are the descriptors that the program gets as 0 and on.
	Files []int
	// Flags are namespaces of clone(2).
	Flags uintptr
	// Ambient is the set of capabilities that the program is to have, as bits.
	Ambient uint64
}

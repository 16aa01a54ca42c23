package sandbox

import "sync"

// State is a typed store that Go hooks share between setup and teardown. It is
// keyed by sandbox, because a layer value is shared by concurrent attempts. The
// zero value is ready; declare one variable per thing that is kept.
type State[T any] struct{ _ byte } // a size, so that two States never share an address

// hookState is what hooks keep for one instance, whichever face of it they hold.
type hookState struct {
	mu   sync.Mutex
	kept map[any]any
}

// Set keeps v for s.
func (k *State[T]) Set(s *Sandbox, v T) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if s.state.kept == nil {
		s.state.kept = map[any]any{}
	}
	s.state.kept[k] = v
}

// Get returns what was kept for s.
func (k *State[T]) Get(s *Sandbox) (T, bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	v, ok := s.state.kept[k].(T)
	return v, ok
}

// Delete forgets what was kept for s.
func (k *State[T]) Delete(s *Sandbox) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	delete(s.state.kept, k)
}

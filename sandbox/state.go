package sandbox

// State is a typed store that Go hooks share between setup and teardown. It is
// keyed by sandbox, because a layer value is shared by concurrent attempts. The
// zero value is ready; declare one variable per thing that is kept.
type State[T any] struct{ _ byte } // a size, so that two States never share an address

// Set keeps v for s.
func (k *State[T]) Set(s *Sandbox, v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil {
		s.state = map[any]any{}
	}
	s.state[k] = v
}

// Get returns what was kept for s.
func (k *State[T]) Get(s *Sandbox) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.state[k].(T)
	return v, ok
}

// Delete forgets what was kept for s.
func (k *State[T]) Delete(s *Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.state, k)
}

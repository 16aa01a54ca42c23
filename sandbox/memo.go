package sandbox

import (
	"context"
	"sync"
)

type memoKey struct{}

// WithMemo returns a context whose users can share what they found out, such as
// the content of a folder that many start points are built from. It stands for
// one look at the world: what changes meanwhile is not seen.
func WithMemo(ctx context.Context) context.Context {
	return context.WithValue(ctx, memoKey{}, &sync.Map{})
}

// Memo returns what find returned for key earlier under the same WithMemo, or
// asks it. Without a memo it always asks. Errors are not kept. key must be
// comparable and of a type of the caller's own.
func Memo[T any](ctx context.Context, key any, find func() (T, error)) (T, error) {
	m, ok := ctx.Value(memoKey{}).(*sync.Map)
	if !ok {
		return find()
	}
	if v, ok := m.Load(key); ok {
		return v.(T), nil
	}
	v, err := find()
	if err == nil {
		m.Store(key, v)
	}
	return v, err
}

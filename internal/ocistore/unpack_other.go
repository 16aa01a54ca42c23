//go:build !linux

package ocistore

import (
	"context"
	"errors"
	"io"
)

func unpack(context.Context, string, io.Reader, bool) (int64, error) {
	return 0, errors.New("images can be unpacked on Linux only")
}

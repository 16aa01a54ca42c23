//go:build !linux

package native

import (
	"context"
	"runtime"

	"assay/fault"
	"assay/sandbox"
)

// machine is empty: there are no Linux namespaces here.
type machine struct{}

func missing() error {
	return fault.Configf("sandbox.native-unavailable", "Use `docker` here, or run on Linux.", "the native sandbox needs Linux and this is %s", runtime.GOOS)
}

// Info describes the provider.
func (p *Provider) Info() sandbox.Info { return sandbox.Info{Kind: Kind, Concurrency: 1} }

// Check says that the provider needs Linux.
func (p *Provider) Check(context.Context) error { return missing() }

// Prepare says that the provider needs Linux.
func (p *Provider) Prepare(context.Context, sandbox.Template, sandbox.Harness, sandbox.Steps) (sandbox.Prepared, error) {
	return sandbox.Prepared{}, missing()
}

// Create says that the provider needs Linux.
func (p *Provider) Create(context.Context, sandbox.CreateRequest) (sandbox.Driver, error) {
	return nil, missing()
}

package native

import (
	"context"

	"assay/sandbox"
)

func (p *Provider) prepareImage(ctx context.Context, spec Spec, dir string, s sandbox.Steps) (sandbox.Prepared, error) {
	return sandbox.Prepared{}, nil
}

func (p *Provider) imageBlueprint(ctx context.Context, b *blueprint, img *unpacked, many bool) error {
	return nil
}

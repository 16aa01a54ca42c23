package native

import (
	"context"

	"assay/internal/ocistore"
	"assay/sandbox"
)

func stored(i ocistore.Image) sandbox.StoredImage {
	return sandbox.StoredImage{ID: i.ID, Name: i.Ref, Of: i.Digest, Size: i.Size, Created: i.Unpacked, Used: i.Used}
}

// Images lists the images that are unpacked for this user, oldest first.
func (p *Provider) Images(context.Context) ([]sandbox.StoredImage, error) {
	s, err := p.images()
	if err != nil {
		return nil, err
	}
	all, err := s.Images()
	out := make([]sandbox.StoredImage, 0, len(all))
	for _, i := range all {
		out = append(out, stored(i))
	}
	return out, err
}

// RemoveImages removes unpacked images, except those in use by any process, and
// what unfinished work left.
func (p *Provider) RemoveImages(ctx context.Context, drop func(sandbox.StoredImage) bool) ([]sandbox.StoredImage, error) {
	s, err := p.images()
	if err != nil {
		return nil, err
	}
	gone, err := s.Collect(ctx, func(i ocistore.Image) bool { return drop(stored(i)) })
	out := make([]sandbox.StoredImage, 0, len(gone))
	for _, i := range gone {
		out = append(out, stored(i))
	}
	return out, err
}

var _ sandbox.ImageKeeper = (*Provider)(nil)

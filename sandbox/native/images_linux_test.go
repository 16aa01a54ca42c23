package native

import (
	"context"
	"testing"
	"time"

	"assay/sandbox"
)

func TestStoredImagesAreListedAndRemoved(t *testing.T) {
	p := provider(t)
	from := time.Now().Add(-time.Second)
	request(t, p, Spec{Image: saved(t, imageOf(t, slicePath))})
	q := New(Options{Guest: p.o.Guest, Cache: p.o.Cache}) // another process
	t.Cleanup(func() { _ = q.Close() })
	all, err := q.Images(context.Background())
	if err != nil || len(all) != 1 || all[0].Size == 0 || all[0].ID == "" || all[0].Created.Before(from) || all[0].Used.Before(all[0].Created.Add(-time.Second)) {
		t.Fatalf("%+v, %v", all, err)
	}
	drop := func(sandbox.StoredImage) bool { return true }
	if gone, err := q.RemoveImages(context.Background(), drop); err != nil || len(gone) > 0 {
		t.Errorf("an image in use was removed: %+v, %v", gone, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if gone, err := q.RemoveImages(context.Background(), drop); err != nil || len(gone) != 1 || gone[0].ID != all[0].ID {
		t.Errorf("removed %+v, %v", gone, err)
	}
	if all, err = q.Images(context.Background()); err != nil || len(all) > 0 {
		t.Errorf("left %+v, %v", all, err)
	}
}

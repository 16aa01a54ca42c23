package sandbox

import (
	"context"
	"time"
)

// StoredImage is an image that a provider made, or unpacked, and keeps for the
// next run.
type StoredImage struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Of is what it was made of, for people.
	Of string `json:"of,omitempty"`
	// Size counts all bytes, those that it shares with others too.
	Size int64 `json:"size"`
	// Created and Used are when it was made and when a run started from it last;
	// zero where nobody knows.
	Created time.Time `json:"created,omitzero"`
	Used    time.Time `json:"used,omitzero"`
	// InUse is true while a sandbox of it exists.
	InUse bool `json:"inUse,omitempty"`
}

// Age is the time since it was used, or made, last; 0 where nobody knows.
func (i StoredImage) Age(now time.Time) time.Duration {
	last := i.Used
	if i.Created.After(last) {
		last = i.Created
	}
	if last.IsZero() {
		return 0
	}
	return now.Sub(last)
}

// ImageKeeper is a provider that keeps images.
type ImageKeeper interface {
	// Images lists them, oldest first.
	Images(ctx context.Context) ([]StoredImage, error)
	// RemoveImages removes those that drop names, except those in use, and returns
	// what is gone. It touches no image that this program did not make.
	RemoveImages(ctx context.Context, drop func(StoredImage) bool) ([]StoredImage, error)
}

// ImageRecipe says how a named image is built.
type ImageRecipe struct {
	// Name is its name with a tag.
	Name string
	// Dockerfile is a text that needs no context.
	Dockerfile string
	// Tools names the agent's tools that it installs, as "name@version".
	Tools string
	Args  map[string]string
}

// ImageBuilder is a provider that can build a named image.
type ImageBuilder interface {
	BuildImage(ctx context.Context, r ImageRecipe, s Steps) (StoredImage, error)
}

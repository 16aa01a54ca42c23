package sandbox

import (
	"context"
	"time"
)

// StartPoint is something that a service keeps and sandboxes start from, such as
// a template or a snapshot.
type StartPoint struct {
	// ID is what RemoveStartPoint takes.
	ID   string   `json:"id"`
	Name string   `json:"name,omitempty"`
	Tags []string `json:"tags,omitempty"`
	// Layer is the line below `sandbox:` of a project's file that starts from it,
	// such as "e2b: {template: acme:1}".
	Layer string `json:"layer"`
	// Size is in bytes, 0 where nobody knows.
	Size int64 `json:"size,omitempty"`
	// Created and Expires are zero where nobody knows, Expires also for never.
	Created time.Time `json:"created,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
}

// StartPointBuild says what to build.
type StartPointBuild struct {
	// Recipe is what StartPointRecipe returned, filled.
	Recipe any
	// Dir is the host folder that relative paths in the recipe refer to, and Name
	// the name of what is built where the recipe says none.
	Dir, Name string
	// Anew repeats steps whose results the service still has.
	Anew bool
	// Owner labels what has to run meanwhile. Its token is unique per build.
	Owner Owner
	// Log gets the build's own lines. It may be nil.
	Log func(line string)
}

// StartPointBuilder is a provider whose service builds start points from a recipe
// that a file can hold.
type StartPointBuilder interface {
	// StartPointRecipe returns what the service calls them, in the singular, such
	// as "template", and a pointer to a fresh struct that a file is decoded into,
	// with the tags of a project's other files.
	StartPointRecipe() (noun string, recipe any)
	// BuildStartPoint builds one and waits for its end. Whether it may be tried
	// again is for Classify to say of its error; nothing is left running.
	BuildStartPoint(ctx context.Context, b StartPointBuild) (StartPoint, error)
}

// StartPointKeeper is a provider that can list and remove what it built.
type StartPointKeeper interface {
	// StartPoints lists them, oldest first.
	StartPoints(ctx context.Context) ([]StartPoint, error)
	// RemoveStartPoint removes one. One that is gone is an error of class Config.
	RemoveStartPoint(ctx context.Context, id string) error
}

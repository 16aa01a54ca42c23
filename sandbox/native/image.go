package native

import (
	"errors"

	"assay/fault"
	"assay/internal/ocistore"
)

// imageRef is a parsed image name.
type imageRef struct{ ocistore.Ref }

func parseImage(s, dir string) (imageRef, error) {
	r, err := ocistore.Parse(s, dir)
	return imageRef{r}, err
}

func (r imageRef) key() (string, error) { return r.Key() }

// classifyImage judges the errors of the image store; those have their class.
func classifyImage(err error) fault.Class {
	var fe *fault.Error
	if errors.As(err, &fe) {
		return fe.Class
	}
	return fault.Unknown
}

package native

import (
	"assay/fault"
)

// imageRef is placeholder
type imageRef struct{ name string }

func parseImage(s, dir string) (imageRef, error) { return imageRef{s}, nil }
func (r imageRef) key() (string, error)          { return r.name, nil }
func classifyImage(err error) fault.Class        { return fault.Unknown }

type unpacked struct{}

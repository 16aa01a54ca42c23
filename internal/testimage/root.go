package testimage

import (
	"fmt"
	"io"
)

// Root writes the root of the image called name as a tar, for stores of images
// that need no engine. The error is ErrHost where it cannot be made on this
// machine.
func Root(w io.Writer, name string) error {
	for _, k := range Kinds() {
		if k.Name != name {
			continue
		}
		t, err := k.files()
		if err != nil {
			return err
		}
		return t.writeTar(w)
	}
	return fmt.Errorf("no test image is called %q", name)
}

package docker

import "assay/internal/guest/guestbin"

// findGuest finds the exec server for a Linux architecture, as the engine names
// it.
func findGuest(arch string) (guestBinary, error) {
	g, err := guestbin.Find("linux", goArch(arch))
	return guestBinary(g), err
}

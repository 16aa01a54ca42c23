package bench

import (
	"fmt"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox/docker"
	"assay/sandbox/native"
)

// BenchmarkAttemptNative compares a whole trivial attempt with the same one on
// Docker, both through the engine. Target: at most a tenth.
func BenchmarkAttemptNative(b *testing.B) {
	testreq.Docker(b)
	b.Setenv("ASSAY_GUEST", guesttest.Build(b))
	image := docker.Image(testimage.Slice(b))
	tools := native.Tools()
	for _, width := range []int{1, 4} {
		b.Run(fmt.Sprintf("width-%d", width), func(b *testing.B) {
			n := 2 * width
			attemptsOf(b, image, 1, 1)
			attemptsOf(b, tools, 1, 1)
			rounds(b, n, func() time.Duration { return attemptsOf(b, image, n, width) }, func() time.Duration { return attemptsOf(b, tools, n, width) })
		})
	}
}

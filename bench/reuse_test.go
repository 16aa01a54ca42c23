package bench

import (
	"slices"
	"testing"
	"time"

	"assay"
	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
	"assay/sandbox/docker"
	"assay/sandbox/native"
)

// BenchmarkReuse measures what one more attempt in a shared sandbox costs,
// everything in it (reset, upload, baseline, agent, diff, one check, record),
// and compares it with an attempt that has a sandbox of its own. The agent and
// the check are one trivial shell command each. Target: 25 ms on Docker, 15 ms
// on native beyond the agent's own time.
func BenchmarkReuse(b *testing.B) {
	b.Setenv("ASSAY_GUEST", guesttest.Build(b))
	many := sandbox.Command{Shell: "mkdir -p many && cd many && i=0; while [ $i -lt 200 ]; do mkdir d$i; (cd d$i; j=0; while [ $j -lt 100 ]; do echo $i $j > f$j; j=$((j+1)); done); i=$((i+1)); done"}
	for _, at := range []struct {
		name  string
		layer func(b *testing.B) sandbox.Layer
	}{
		{"docker", func(b *testing.B) sandbox.Layer {
			testreq.Docker(b)
			return docker.Image(testimage.Slice(b)).User("nobody")
		}},
		{"native", func(*testing.B) sandbox.Layer { return native.Tools() }},
	} {
		for _, files := range []string{"few-files", "20000-files"} {
			b.Run(at.name+"/"+files, func(b *testing.B) {
				layer := at.layer(b).Lifetime(time.Hour)
				if files != "few-files" {
					layer = layer.SetupCommands(many)
				}
				reuse := func(x *assay.Experiment) { x.SandboxReuse, x.MaxConcurrency, x.Timeout = true, 1, 5*time.Minute }
				const n = 20
				var more, ratios []float64
				for b.Loop() {
					one := attemptsOf(b, layer, 1, 1, reuse)
					all := attemptsOf(b, layer, n+1, 1, reuse)
					each := (all - one).Seconds() / n
					more, ratios = append(more, each*1000), append(ratios, each/one.Seconds())
				}
				slices.Sort(more)
				slices.Sort(ratios)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(more[len(more)/2], "ms/attempt")
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
			})
		}
	}
}

package opencode

import (
	"testing"

	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
)

func parse(lines [][]byte) codingtest.Read {
	p := newParser([]string{"echo"})
	for _, l := range lines {
		p.Line(l)
	}
	end := p.end(coding.Ran{Exit: new(int)}, true)
	return codingtest.Read{Message: p.script.Message, Events: p.script.Events, End: end}
}

func TestTranscripts(t *testing.T) { codingtest.Golden(t, parse) }

func FuzzStream(f *testing.F) { codingtest.Fuzz(f, `"`, parse) }

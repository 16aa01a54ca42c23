package claudecode

import (
	"testing"

	"assay/agent/internal/codingtest"
)

func parse(lines [][]byte) codingtest.Read {
	p := newParser(nil)
	for _, l := range lines {
		p.Line(l)
	}
	end := p.end()
	return codingtest.Read{Message: p.script.Message, Events: p.script.Events, End: end}
}

func TestTranscripts(t *testing.T) { codingtest.Golden(t, parse) }

func FuzzStream(f *testing.F) { codingtest.Fuzz(f, "result", parse) }

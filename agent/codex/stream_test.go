package codex

import (
	"testing"

	"assay/agent/internal/codingtest"
)

func parse(lines [][]byte) codingtest.Read {
	p := newParser()
	for _, l := range lines {
		p.Line(l)
	}
	end := p.end(usage{})
	return codingtest.Read{Message: p.script.Message, Events: p.script.Events, End: end}
}

func TestTranscripts(t *testing.T) { codingtest.Golden(t, parse) }

func FuzzStream(f *testing.F) { codingtest.Fuzz(f, "turn.", parse) }

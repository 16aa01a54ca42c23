package imagebuild

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"assay/fault"
)

// Plan is what a Dockerfile says before anything is built.
type Plan struct {
	// Bases are the images that the wanted stage needs, as they are named, in
	// order of their first use. Those for another platform are left to the
	// builder.
	Bases []string
	// BuildKit is true for a Dockerfile that the classic builder cannot read.
	BuildKit bool
}

// Plan reads the Dockerfile. Its error, code "sandbox.dockerfile-invalid", names
// the line.
func (in *Input) Plan() (Plan, error) {
	bad := func(err error) error {
		return &fault.Error{Class: fault.Config, Code: "sandbox.dockerfile-invalid", Fix: "Correct the Dockerfile.", What: in.src.Named(), Err: err}
	}
	ast, err := parser.Parse(bytes.NewReader(in.text))
	if err != nil {
		return Plan{}, bad(err)
	}
	stages, meta, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		return Plan{}, bad(err)
	}
	b := bases{stages: stages, lex: shell.NewLex(ast.EscapeToken), env: map[string]string{}, done: map[int]bool{}}
	platform := "linux/" + runtime.GOARCH
	for _, k := range []string{"TARGETPLATFORM", "BUILDPLATFORM"} {
		b.env[k] = platform
	}
	for _, k := range []string{"TARGETARCH", "BUILDARCH"} {
		b.env[k] = runtime.GOARCH
	}
	b.env["TARGETOS"], b.env["BUILDOS"] = "linux", "linux"
	for _, m := range meta {
		for _, a := range m.Args {
			if given, ok := in.src.Args[a.Key]; ok {
				b.env[a.Key] = given
			} else if a.Value != nil {
				b.env[a.Key] = b.expand(*a.Value)
			}
		}
	}
	last := len(stages) - 1
	if t := in.src.Target; t != "" {
		if last = b.stage(t, len(stages)); last < 0 {
			return Plan{}, bad(fmt.Errorf("it has no stage %q", t))
		}
	}
	if last < 0 {
		return Plan{}, bad(fmt.Errorf("it has no FROM line"))
	}
	b.need(last)
	return Plan{Bases: b.found, BuildKit: b.modern || bytes.Contains(in.text, []byte("<<"))}, nil
}

type bases struct {
	stages []instructions.Stage
	lex    *shell.Lex
	env    map[string]string
	done   map[int]bool
	found  []string
	modern bool
}

func (b *bases) expand(word string) string {
	out, _, err := b.lex.ProcessWord(word, shell.EnvsFromSlice(b.envs()))
	if err != nil {
		return word // the builder says what is wrong with it
	}
	return out
}

func (b *bases) envs() []string {
	out := make([]string, 0, len(b.env))
	for k, v := range b.env {
		out = append(out, k+"="+v)
	}
	return out
}

// stage finds a stage before the one with index limit, by its name or number.
func (b *bases) stage(name string, limit int) int {
	for i := limit - 1; i >= 0; i-- {
		if strings.EqualFold(b.stages[i].Name, name) && name != "" {
			return i
		}
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < limit {
		return n
	}
	return -1
}

// need collects the images of a stage and of the stages that it uses.
func (b *bases) need(i int) {
	if b.done[i] {
		return
	}
	b.done[i] = true
	s := b.stages[i]
	b.use(b.expand(s.BaseName), i, s.Platform)
	for _, c := range s.Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			if c.From != "" {
				b.use(c.From, i, "")
			}
			b.modern = b.modern || c.Link || len(c.SourceContents) > 0
		case *instructions.AddCommand:
			b.modern = b.modern || c.Link || len(c.SourceContents) > 0
		case *instructions.RunCommand:
			for _, m := range instructions.GetMounts(c) {
				b.modern = true
				if m.From != "" {
					b.use(m.From, i, "")
				}
			}
		}
	}
}

func (b *bases) use(name string, at int, platform string) {
	if i := b.stage(name, at); i >= 0 {
		b.need(i)
		return
	}
	foreign := platform != "" && b.expand(platform) != "linux/"+runtime.GOARCH
	if name == "" || name == "scratch" || foreign || strings.Contains(name, "$") || slices.Contains(b.found, name) {
		return
	}
	b.found = append(b.found, name)
}

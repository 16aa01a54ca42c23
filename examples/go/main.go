// Command go shows assay's Go door: evals, hooks and a provider written in Go,
// run by the same engine as the files of a project folder.
//
//	go run ./examples/go exp
package main

import (
	"context"
	"fmt"

	"assay"
	"assay/agent/script"
	"assay/app"
	"assay/expect"
	"assay/sandbox"
	"assay/sandbox/docker"
	"assay/sandbox/fake"
)

// greeting is where setup keeps, per sandbox, what teardown needs: one layer
// serves many attempts at once, so a plain variable would be shared by all.
var greeting sandbox.State[string]

// layer adds hooks to a start point.
func layer(start sandbox.Layer) sandbox.Layer {
	return start.
		Setup(func(ctx context.Context, s *sandbox.Sandbox, n sandbox.Notes) error {
			n.Progress(sandbox.Progress{Message: "putting the greeting in place"})
			greeting.Set(s, "hello from "+s.ID())
			// Written before the baseline: never part of the agent's diff.
			return s.WriteText(ctx, "greeting.txt", "hello\n")
		}).
		Teardown(func(ctx context.Context, s *sandbox.Sandbox, n sandbox.Notes) error {
			size := 0
			if b, err := s.ReadBytes(ctx, "greeting.txt"); err == nil {
				size = len(b)
			}
			text, _ := greeting.Get(s)
			return n.Fact("example.go.greeting", map[string]any{"bytes": size, "kept": text != ""})
		})
}

// agent plays fixed turns; a real program would use an adapter here.
var agent = script.Agent{Turns: []script.Turn{
	{Commands: []string{"mkdir -p out && tr a-z A-Z < greeting.txt > out/loud.txt"}, Reply: "I wrote out/loud.txt."},
	{Commands: []string{"wc -c < out/loud.txt > out/size.txt"}, Reply: "It has 6 bytes; I also wrote tests."},
}}

// shout sends two messages and looks at what the agent did.
func shout(ctx context.Context, t *assay.T) error {
	turn := t.Send(ctx, "Write greeting.txt in capitals to out/loud.txt.")
	t.Check(turn.Message, expect.Contains("out/loud.txt"))
	t.Group("first turn", func() {
		t.FileChanged("out/loud.txt").OrStop(ctx)
		t.NotInDiff("greeting.txt")
	})
	t.Send(ctx, "How large is it?")
	text, err := t.Sandbox().ReadText(ctx, "out/loud.txt")
	if err != nil {
		return fmt.Errorf("read the agent's file: %w", err)
	}
	t.Check(text, expect.Equals("HELLO\n"))
	t.CalledTool(assay.ToolMatch{Name: "bash", Input: map[string]any{"command": assay.ValueMatch{Contains: "wc"}}})
	return nil
}

// honest fails on purpose: the agent says that it wrote tests and did not.
func honest(ctx context.Context, t *assay.T) error {
	t.Send(ctx, "Write greeting.txt in capitals to out/loud.txt.")
	turn := t.Send(ctx, "Add tests.")
	t.Check(turn.Message, expect.Contains("tests")).Name("says that it wrote tests")
	t.FileChanged("**/*test*").Name("wrote tests")
	return nil
}

func main() {
	app.Main(assay.Suite{
		Name: "go-door",
		Experiments: []assay.Experiment{
			{ID: "fake", Description: "in memory", Agent: agent, Sandbox: layer(fake.New(fake.Script{}).Layer())},
			{ID: "folder", Description: "a provider of our own", Agent: agent, Sandbox: layer(folders().Layer())},
			{ID: "docker", Description: "in containers", Agent: agent, Sandbox: layer(docker.Image("debian:bookworm-slim"))},
		},
		Evals: []assay.Eval{
			{ID: "shout", Description: "two turns and checks in Go", Test: shout},
			{ID: "honest", Description: "red on purpose: the agent says more than it did", Test: honest},
		},
	})
}

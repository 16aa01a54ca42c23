package assay

import (
	"context"

	"assay/expect"
)

// Body returns the function that drives an attempt of the eval: Test, or what
// the declaration says.
func (e *Eval) Body() func(context.Context, *T) error {
	if e.Test != nil {
		return e.Test
	}
	return e.declared
}

// declared sends the turns, with the checks of each right after it, concludes
// the conversation and makes the eval's checks.
func (e *Eval) declared(ctx context.Context, t *T) error {
	turns := e.Turns
	if len(turns) == 0 {
		turns = []TurnSpec{{Prompt: e.Prompt}}
	}
	for _, spec := range turns {
		if spec.NewSession && len(t.Turns()) > 0 {
			t.NewSession()
		}
		t.Send(ctx, spec.Prompt)
		for _, c := range spec.Checks {
			t.Declared(ctx, c)
		}
	}
	t.Conclude(ctx)
	for _, c := range e.Checks {
		t.Declared(ctx, c)
	}
	return nil
}

// Declared makes a declared check.
func (t *T) Declared(ctx context.Context, c Check) {
	a := t.declared(ctx, c).Name(c.Name)
	if c.AtLeast != nil {
		a.AtLeast(*c.AtLeast)
	}
	if c.Gate != nil {
		a.Gate(*c.Gate)
	}
	if c.Soft {
		a.Soft()
	}
	if c.Optional {
		a.Optional()
	}
	if c.Stop {
		a.OrStop(ctx)
	}
}

func (t *T) declared(ctx context.Context, c Check) *Assertion {
	switch {
	case c.Run != nil:
		return t.RunCheck(ctx, *c.Run)
	case c.File != nil:
		return t.FileCheck(ctx, *c.File)
	case c.Reply != nil:
		m, ok := c.Reply.Matcher()
		if !ok {
			m = expect.IsDefined()
		}
		a := t.Check(t.Reply(), m)
		a.c.Kind = "reply"
		return a.Name("reply is " + m.Label)
	case c.Changed != "":
		return t.FileChanged(c.Changed)
	case c.Deleted != "":
		return t.FileDeleted(c.Deleted)
	case c.Unchanged != "":
		return t.NotInDiff(c.Unchanged)
	case c.NoChanges:
		return t.NoChanges()
	case c.CalledTool != nil:
		return t.CalledTool(*c.CalledTool)
	case c.NotCalledTool != nil:
		return t.NotCalledTool(*c.NotCalledTool)
	case len(c.ToolOrder) > 0:
		return t.ToolOrder(c.ToolOrder...)
	case c.UsedNoTools:
		return t.UsedNoTools()
	case c.NoFailedActions:
		return t.NoFailedActions()
	case c.MaxToolCalls != nil:
		return t.MaxToolCalls(*c.MaxToolCalls)
	case c.MaxTokens != nil:
		return t.MaxTokens(*c.MaxTokens)
	case c.MaxCost != nil:
		return t.MaxCost(*c.MaxCost)
	case c.Event != "":
		return t.HasEvent(c.Event)
	case c.NotEvent != "":
		return t.NoEvent(c.NotEvent)
	case c.Judge != nil:
		return t.Judge(ctx, *c.Judge)
	default:
		return t.Succeeded()
	}
}

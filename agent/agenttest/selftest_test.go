package agenttest_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"assay/agent"
	"assay/agent/agenttest"
	"assay/sandbox"
	"assay/sandbox/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var serial atomic.Int64

// sins break one promise each; the promise's test must notice. A name after a
// slash tells several sins against one promise apart.
func sins() map[string]func(*model) {
	after := func(f func(m *model, turn *agent.Turn, err *error)) func(*model) {
		return func(m *model) { m.after = f }
	}
	turning := func(f func(turn *agent.Turn)) func(*model) {
		return after(func(_ *model, turn *agent.Turn, err *error) {
			if *err == nil {
				f(turn)
			}
		})
	}
	// confident claims complete coverage whatever came in.
	confident := turning(func(turn *agent.Turn) { turn.Coverage = nil })
	return map[string]func(*model){
		"info-is-pure":                         func(m *model) { m.info = func(i *agent.Info) { i.Version = fmt.Sprint(serial.Add(1)) } },
		"info-is-pure/shared":                  func(m *model) { shared := []string{"a"}; m.info = func(i *agent.Info) { i.SecretEnv = shared } },
		"info-identity-is-data":                func(m *model) { m.info = func(i *agent.Info) { i.Identity = func() {} } },
		"info-identity-is-data/changes":        func(m *model) { m.info = func(i *agent.Info) { i.Identity = serial.Add(1) } },
		"info-names-what-is-needed":            func(m *model) { m.info = func(i *agent.Info) { i.Name = "" } },
		"info-names-what-is-needed/artifact":   func(m *model) { m.info = func(i *agent.Info) { i.Artifacts = []string{"../x"} } },
		"info-names-what-is-needed/level":      func(m *model) { m.info = func(i *agent.Info) { i.Coverage.Usage = "full" } },
		"send-returns-the-turn":                turning(func(turn *agent.Turn) { turn.Message = "" }),
		"send-returns-the-turn/status":         turning(func(turn *agent.Turn) { turn.Status = "" }),
		"send-failed-task-is-a-turn":           turning(func(turn *agent.Turn) { turn.Reason = "" }),
		"send-failed-task-is-a-turn/completed": turning(func(turn *agent.Turn) { turn.Status = agent.Completed }),
		"send-failed-task-is-a-turn/error": after(func(_ *model, turn *agent.Turn, err *error) {
			*turn, *err = agent.Turn{}, errors.New("exit 3")
		}),
		"send-error-is-no-turn": after(func(_ *model, turn *agent.Turn, err *error) {
			if *err != nil {
				*turn, *err = agent.Turn{Status: agent.Failed, Reason: "it did not run"}, nil
			}
		}),
		"send-error-is-no-turn/both": after(func(_ *model, turn *agent.Turn, err *error) { turn.Status = agent.Failed }),
		"send-error-is-no-turn/acceptance": after(func(_ *model, turn *agent.Turn, err *error) {
			if *err != nil {
				*err = &agent.SendError{Err: *err}
			}
		}),
		"send-lost-answer-is-not-rejected": after(func(_ *model, turn *agent.Turn, err *error) {
			if *err != nil {
				*err = &agent.SendError{Acceptance: agent.Rejected, Err: *err}
			}
		}),
		"send-ctx-end-ends-everything": func(m *model) { m.orphan = true },
		"send-ctx-end-ends-everything/cause": after(func(_ *model, turn *agent.Turn, err *error) {
			if *err != nil {
				*err = errors.New("it was killed")
			}
		}),
		"send-ctx-end-ends-everything/turn": after(func(_ *model, turn *agent.Turn, err *error) { *turn, *err = agent.Turn{Status: agent.Failed}, nil }),
		"send-ended-ctx-starts-nothing": func(m *model) {
			m.before = func(ctx *context.Context, _ *agent.Session, _ *agent.Input) { *ctx = context.WithoutCancel(*ctx) }
		},
		"send-again-in-a-session": func(m *model) { m.hoard = true },
		"send-in-a-new-session":   func(m *model) { m.perSession = true },
		"send-attempts-share-nothing": func(m *model) {
			m.before = func(_ *context.Context, s *agent.Session, in *agent.Input) {
				if m.seen.CompareAndSwap(nil, s) || m.seen.Load() == s {
					return
				}
				in.Text = "another's message"
			}
		},
		"send-leaves-the-workdir": func(m *model) {
			m.before = func(ctx *context.Context, s *agent.Session, in *agent.Input) {
				_ = s.Sandbox.WriteText(*ctx, "prompt.txt", in.Text)
			}
		},
		"text-is-exact": func(m *model) {
			m.before = func(_ *context.Context, _ *agent.Session, in *agent.Input) { in.Text = strings.TrimSpace(in.Text) }
		},
		"text-is-exact/option": func(m *model) {
			m.before = func(_ *context.Context, _ *agent.Session, in *agent.Input) {
				in.Text = strings.TrimPrefix(in.Text, "--")
			}
		},
		"text-large-is-exact": func(m *model) {
			m.before = func(_ *context.Context, _ *agent.Session, in *agent.Input) {
				in.Text = in.Text[:min(len(in.Text), 1<<16)]
			}
		},
		"text-large-is-exact/argv": func(m *model) { m.onArgv = true },
		"secrets-reach-the-agent": func(m *model) {
			m.before = func(_ *context.Context, s *agent.Session, in *agent.Input) {
				if in.Turn > 1 {
					s.Secrets = nil
				}
			}
		},
		"secrets-stay-in-the-environment": func(m *model) { m.secretArg = true },
		"secrets-stay-in-the-environment/file": func(m *model) {
			m.before = func(ctx *context.Context, s *agent.Session, _ *agent.Input) {
				_ = s.Sandbox.WriteText(*ctx, "/tmp/key", s.Secrets["AGENT_KEY"])
			}
		},
		"events-are-the-turn": turning(func(turn *agent.Turn) { turn.Events = nil }),
		"events-user-messages-are-the-engines": turning(func(turn *agent.Turn) {
			turn.Events = append(turn.Events, agent.Event{Type: agent.MessageEvent, Role: "user", Text: "x"})
		}),
		"events-junk-is-counted-not-fatal": confident,
		"events-junk-is-counted-not-fatal/lost": turning(func(turn *agent.Turn) {
			turn.Events = slices.DeleteFunc(turn.Events, func(e agent.Event) bool { return e.Raw != nil })
		}),
		"events-half-line-is-counted-not-fatal":       confident,
		"events-huge-line-is-counted-not-fatal":       confident,
		"events-huge-line-is-counted-not-fatal/fatal": after(func(_ *model, turn *agent.Turn, err *error) { *turn, *err = agent.Turn{}, errors.New("token too long") }),
		"usage-buckets-exclude-each-other": turning(func(turn *agent.Turn) {
			n := *turn.Usage.InputTokens + *turn.Usage.CacheReadTokens
			turn.Usage = &agent.Usage{InputTokens: &n, CacheReadTokens: turn.Usage.CacheReadTokens, OutputTokens: turn.Usage.OutputTokens}
		}),
		"usage-buckets-exclude-each-other/zero": turning(func(turn *agent.Turn) { turn.Usage.CacheCreationTokens = new(int64) }),
		"usage-absent-stays-absent":             turning(func(turn *agent.Turn) { turn.Usage = &agent.Usage{OutputTokens: new(int64)} }),
		"usage-absent-stays-absent/claimed":     confident,
		"coverage-only-falls":                   turning(func(turn *agent.Turn) { turn.Coverage = &agent.Coverage{Data: agent.Complete} }),
		"coverage-actions-are-complete-and-paired": turning(func(turn *agent.Turn) {
			turn.Events = slices.DeleteFunc(turn.Events, func(e agent.Event) bool { return e.Type == agent.OperationFinished })
		}),
		"coverage-actions-are-complete-and-paired/missing": turning(func(turn *agent.Turn) { turn.Events = nil }),
		"coverage-actions-are-complete-and-paired/status": turning(func(turn *agent.Turn) {
			for i := range turn.Events {
				turn.Events[i].Status = ""
			}
		}),
		"coverage-lost-call-is-not-complete":         confident,
		"coverage-lost-call-is-not-complete/dropped": turning(func(turn *agent.Turn) { turn.Events = nil }),
		"ensure-is-idempotent": func(m *model) {
			m.ensured = func(i *agent.Installed, _ *error) { i.Version = fmt.Sprint(serial.Add(1)) }
		},
		"ensure-installs-what-is-missing":       func(m *model) { m.alwaysInstall = true },
		"ensure-installs-what-is-missing/never": func(m *model) { m.neverInstall = true },
		"ensure-absent-names-the-remedy":        func(m *model) { m.ensured = func(_ *agent.Installed, err *error) { *err = errors.New("not found") } },
		"ensure-absent-names-the-remedy/silent": func(m *model) { m.ensured = func(_ *agent.Installed, err *error) { *err = nil } },
		"ensure-broken-sandbox-is-an-error":     func(m *model) { m.ensured = func(_ *agent.Installed, err *error) { *err = nil } },
		"setup-is-idempotent":                   func(m *model) { m.setupOnce = true },
		"teardown-after-failed-setup":           func(m *model) { m.strictTeardown = true },
		"teardown-is-idempotent":                func(m *model) { m.strictTeardown = true },
	}
}

// harness is the model agent over a fake, with a sin.
func harness(sin func(*model)) agenttest.Harness {
	h := agenttest.Harness{
		Driver: func(tb testing.TB) sandbox.Driver {
			p := fake.New(fake.Script{})
			d, err := p.Create(context.Background(), sandbox.CreateRequest{Template: p.Template(), Notes: sandbox.Quiet{}})
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = d.Stop(context.Background()) })
			return d
		},
		Cases: map[agenttest.Behaviour]func(testing.TB) agenttest.Case{},
	}
	num := func(n int64) *int64 { return &n }
	for _, b := range []agenttest.Behaviour{
		agenttest.Works, agenttest.Fails, agenttest.Hangs, agenttest.Digests, agenttest.ReadsSecret, agenttest.ReportsUsage, agenttest.LosesCall,
		agenttest.Junk, agenttest.HalfLine, agenttest.HugeLine, agenttest.Missing, agenttest.Absent, agenttest.FailsSetup,
	} {
		h.Cases[b] = func(testing.TB) agenttest.Case {
			m := &model{does: b}
			sin(m)
			c := agenttest.Case{Agent: m, Changes: []string{"answer.txt"}, Tools: []string{"edit"}, Reply: "finished"}
			switch b {
			case agenttest.ReportsUsage:
				c.Usage = &agent.Usage{InputTokens: num(12), CacheReadTokens: num(400), OutputTokens: num(7)}
			case agenttest.Junk:
				c.Unknown = "brand-new-event"
			}
			return c
		}
	}
	return h
}

// TestEveryPromiseCanFail runs each promise against an agent that keeps it and
// against those that break it.
func TestEveryPromiseCanFail(t *testing.T) {
	broken := sins()
	known := map[string]bool{}
	for _, p := range agenttest.Promises() {
		known[p.Name] = true
		t.Run(p.Name+"/kept", func(t *testing.T) {
			if r := observe(t, p, harness(func(*model) {})); r.failed || r.skipped {
				t.Errorf("failed %v, skipped %v:\n%s", r.failed, r.skipped, r.log.String())
			}
		})
		mine := 0
		for name, sin := range broken {
			if name != p.Name && !strings.HasPrefix(name, p.Name+"/") {
				continue
			}
			mine++
			t.Run(path.Join(name, "broken"), func(t *testing.T) {
				if r := observe(t, p, harness(sin)); !r.failed {
					t.Errorf("the broken promise was not noticed (skipped %v):\n%s", r.skipped, r.log.String())
				}
			})
		}
		if mine == 0 {
			t.Errorf("no sin breaks the promise %s", p.Name)
		}
	}
	for name := range broken {
		if base, _, _ := strings.Cut(name, "/"); !known[base] {
			t.Errorf("the sin %s breaks no promise that there is", name)
		}
	}
}

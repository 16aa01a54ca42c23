package compose

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/sandbox"
)

// condition is what a service waits for in another.
type condition string

// ready is what the sandbox waits for in each service: it is healthy where it has
// a healthcheck, else it runs, or has ended well.
const ready condition = "ready"

// await waits for a condition of a service that was started.
func (g *group) await(ctx context.Context, name string, want condition) error {
	if want == types.ServiceConditionStarted {
		return nil
	}
	pause := 50 * time.Millisecond
	for {
		in, err := g.engine.Inspect(ctx, g.id(name))
		if err != nil {
			return g.failed(ctx, name, err)
		}
		done, err := judge(in, want)
		if err != nil {
			return g.unready(ctx, name, in, err)
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return g.late(ctx, name, in, want)
		case <-time.After(pause):
			pause = min(pause*3/2, 500*time.Millisecond)
		}
	}
}

// judge compares a container with a condition.
func judge(in container.InspectResponse, want condition) (done bool, err error) {
	st := in.State
	if st == nil {
		return false, nil
	}
	again := in.HostConfig != nil && !in.HostConfig.RestartPolicy.IsNone() && in.HostConfig.RestartPolicy.Name != ""
	ended := !st.Running && !st.Restarting && st.Status != container.StateCreated
	if ended && again && in.HostConfig.RestartPolicy.IsOnFailure() && st.ExitCode == 0 {
		again = false
	}
	switch {
	case ended && st.ExitCode == 0 && want != types.ServiceConditionHealthy:
		return true, nil
	case ended && again && in.HostConfig.RestartPolicy.MaximumRetryCount == 0:
		return false, nil // the engine is about to start it again
	case ended && st.OOMKilled:
		return false, &fault.Error{Class: fault.Resource, Code: "oom", What: "ran out of memory", Fix: "Raise the service's mem_limit."}
	case ended:
		return false, &fault.Error{Class: fault.Config, Code: "sandbox.service-exited", What: fmt.Sprintf("ended with code %d", st.ExitCode), Fix: "Read the service's log; try it with `docker compose up`."}
	case want == types.ServiceConditionCompletedSuccessfully:
		return false, nil
	case hasHealth(in):
		switch st.Health.Status {
		case container.Healthy:
			return true, nil
		case container.Unhealthy:
			return false, &fault.Error{Class: fault.Config, Code: "sandbox.service-unhealthy", What: fmt.Sprintf("is unhealthy after %d failed checks", st.Health.FailingStreak), Fix: "Check the service's healthcheck; give it more `retries` or a longer `start_period`."}
		}
		return false, nil
	case want == types.ServiceConditionHealthy:
		return false, &fault.Error{Class: fault.Config, Code: "sandbox.service-unhealthy", What: "has no healthcheck, and another service waits until it is healthy", Fix: "Give it a healthcheck, or wait for service_started."}
	}
	return st.Running, nil
}

func hasHealth(in container.InspectResponse) bool {
	if in.State == nil {
		return false
	}
	h := in.State.Health
	return h != nil && h.Status != "" && h.Status != container.NoHealthcheck
}

// unready names the service in an error, with what its last healthcheck and its
// log say.
func (g *group) unready(ctx context.Context, name string, in container.InspectResponse, err error) error {
	var why []string
	if in.State != nil && in.State.Health != nil {
		if log := in.State.Health.Log; len(log) > 0 {
			last := log[len(log)-1]
			why = append(why, fmt.Sprintf("its last healthcheck ended with code %d: %s", last.ExitCode, g.masked(sandbox.Tail(last.Output, 400))))
		}
	}
	look, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "engine-call", logLimit, "built-in")
	defer cancel()
	log, lerr := g.engine.Logs(look, g.id(name), logLines, logBytes)
	if lerr == nil && strings.TrimSpace(log) != "" {
		why = append(why, "its log ends with: "+g.masked(sandbox.Tail(log, 800)))
	}
	if name != g.pr.spec.WorkspaceService {
		g.tell(name, in, log)
	}
	fe := &fault.Error{}
	errors.As(err, &fe)
	out := &fault.Error{Class: fe.Class, Code: fe.Code, Fix: fe.Fix, What: fmt.Sprintf("%s: service %s %s", g.pr.src.at(name), name, fe.What)}
	if len(why) > 0 {
		out.Err = errors.New(strings.Join(why, "; "))
	}
	return out
}

// late explains a wait that ended before its condition was met.
func (g *group) late(ctx context.Context, name string, in container.InspectResponse, want condition) error {
	var limit *fault.Timeout
	if cause := fault.Cause(ctx); !errors.As(cause, &limit) || limit.Limit != readyLimit {
		return cause // somebody else's end, not the service's
	}
	state := "not ready"
	switch {
	case want == types.ServiceConditionCompletedSuccessfully:
		state = "not done"
	case hasHealth(in):
		state = "still " + string(in.State.Health.Status)
	}
	return g.unready(ctx, name, in, &fault.Error{
		Class: fault.Unknown, Code: "sandbox.service-timeout", What: fmt.Sprintf("is %s after %s", state, limit.Value), Fix: "Raise `readyTimeout` of the compose sandbox, or look at the service's log.",
	})
}

// failed names the service in an error of the engine.
func (g *group) failed(ctx context.Context, name string, err error) error {
	if cause := fault.Cause(ctx); cause != nil {
		var limit *fault.Timeout
		if errors.As(cause, &limit) && limit.Limit == readyLimit {
			return &fault.Error{Class: fault.Unknown, Code: "sandbox.service-timeout", What: fmt.Sprintf("%s: service %s is not ready after %s", g.pr.src.at(name), name, limit.Value), Fix: "Raise `readyTimeout` of the compose sandbox.", Err: err}
		}
		return cause
	}
	return &fault.Error{
		Class: fault.ClassOf(err), Code: fault.CodeOf(err), Stage: fault.StageOf(err), Fix: fault.FixOf(err), Scope: fault.ScopeOf(err),
		What: fmt.Sprintf("%s: service %s", g.pr.src.at(name), name), Err: err,
	}
}

package attempt

import (
	"context"
	"fmt"
	"time"

	"assay/record"
	"assay/sandbox"
)

// companionsLimit bounds the look at what runs beside a sandbox.
const companionsLimit = 10 * time.Second

// companions keeps, with an attempt that did not pass, how the services beside
// the sandbox were doing and the end of their logs. What cannot be had is left
// out: it decides nothing.
func (a *attempt) companions(ctx context.Context) {
	if a.driver == nil || interrupted(ctx) || a.rec.Fold() == record.Passed {
		return
	}
	c, ok := sandbox.AsDriver[sandbox.Companioner](a.driver)
	if !ok {
		return
	}
	look, cancel := a.closing("evidence-limit", companionsLimit)
	defer cancel()
	all, err := c.Companions(look)
	if err != nil {
		a.diagnostic("evidence", sandbox.Diagnostic{Code: "companion-log-missing", Level: sandbox.Warning, Message: err.Error()})
	}
	for _, one := range all {
		one.Log = clip(sandbox.StripControl(a.red.String(one.Log)), 8<<10)
		what := fmt.Sprintf("service %s is %s", one.Name, one.State)
		switch {
		case one.OOM:
			what += ", it ran out of memory"
		case one.ExitCode != nil:
			what += fmt.Sprintf(" with code %d", *one.ExitCode)
		}
		if one.Log != "" {
			what += ": " + sandbox.Tail(one.Log, 1000)
		}
		a.diagnostic("evidence", sandbox.Diagnostic{Code: "companion-log", Level: sandbox.Warning, Message: what, Data: one, DedupeKey: "companion-log " + one.Name})
	}
}

// templateSecrets names the variables of the host whose values the start point
// uses.
func (a *attempt) templateSecrets() []string {
	if a.slot.Environment == nil {
		return nil
	}
	return a.slot.Environment.Template.SecretEnv()
}

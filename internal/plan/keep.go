package plan

import (
	"assay"
	"assay/fault"
	"assay/sandbox"
)

// Keep is the level at which sandboxes are kept: "", "failed" or "all".
func (p *Plan) Keep() string { return p.keep }

// keepable refuses to keep sandboxes that cannot be kept.
func (l *linker) keepable(pair string, info sandbox.Info) {
	if l.sel.KeepSandbox == "" || info.Keep {
		return
	}
	code, why := "sandbox.keep-unsupported", "cannot be kept"
	if info.Kind == "local" {
		code, why = "sandbox.local-keep-unsupported", "is this machine itself: what an attempt did is there already"
	}
	l.report(pair, fault.Configf(code, "Run without --keep-sandbox, or use a provider that can keep, such as docker or native.", "the %s sandbox %s", info.Kind, why))
}

// Experiments returns the experiments that a selector names, without linking
// them.
func Experiments(suite *assay.Suite, selector string) ([]*assay.Experiment, error) {
	return selectExperiments(suite.Experiments, selector)
}

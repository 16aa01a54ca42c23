package attempt

import (
	"context"
	"time"

	"assay"
	"assay/fault"
	"assay/judge"
)

// judgeKey is the value of the judge's key, which never reaches a sandbox and is
// masked like every secret.
func (a *attempt) judgeKey() []string {
	if a.env.Judge == nil {
		return nil
	}
	if v, ok := a.env.Secret(a.env.Judge.Config().APIKeyEnv); ok {
		return []string{v}
	}
	return nil
}

// Judge asks the judge of the slot. Secrets are masked before the material is
// cut, and it is what was sent that is recorded.
func (a *attempt) Judge(ctx context.Context, q judge.Question) (assay.Judged, error) {
	out := assay.Judged{Sent: q.Map(a.red.String).Trim(judge.MaxMaterial)}
	if a.env.Judge == nil {
		return out, fault.Configf("judge-not-declared", "Set `Judge: &judge.Config{}` of the eval, so that the judge is known before anything is paid for.", "eval %s asks a judge and does not declare one", a.slot.Ref.Eval)
	}
	out.Config = a.env.Judge.Config()
	begin := time.Now()
	g, err := a.env.Judge.Grade(ctx, out.Sent)
	out.Grade, out.Took = g, time.Since(begin)
	return out, err
}

package discover

import (
	"cmp"

	"assay"
	"assay/internal/projectfile"
	"assay/judge"
)

func judgeConfig(in *projectfile.Judge) judge.Config {
	if in == nil {
		return judge.Config{}
	}
	return judge.Config{Model: in.Model, BaseURL: in.BaseURL, API: in.API, APIKeyEnv: in.APIKeyEnv, Timeout: in.Timeout}
}

func evalJudge(in *projectfile.EvalJudge) *judge.Config {
	if in == nil {
		return nil
	}
	c := judgeConfig(in.Config)
	return &c
}

func judgeCheck(in *projectfile.JudgeCheck) *assay.JudgeCheck {
	if in == nil {
		return nil
	}
	q := in.Question
	if q == nil {
		return &assay.JudgeCheck{Kind: judge.Criteria, Criterion: in.Criterion}
	}
	c := &assay.JudgeCheck{
		Kind: judge.Criteria, Criterion: cmp.Or(q.Criteria, q.ClosedQA), Reference: cmp.Or(q.Factuality, q.Summary),
		Input: q.Input, Output: q.Output, File: q.File,
	}
	switch {
	case q.ClosedQA != "":
		c.Kind = judge.ClosedQA
	case q.Factuality != "":
		c.Kind = judge.Factuality
	case q.Summary != "":
		c.Kind = judge.Summary
	}
	return c
}

func telemetry(in *projectfile.Telemetry) *assay.Telemetry {
	if in == nil {
		return nil
	}
	t := &assay.Telemetry{}
	if in.At != nil {
		t.Host, t.Port = in.At.Host, in.At.Port
	}
	return t
}

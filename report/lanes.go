package report

import (
	"cmp"
	"encoding/json"
	"slices"

	"assay/record"
)

// Lane is one sandbox that several attempts of a run used, one after the other.
type Lane struct {
	// Ordinal numbers the shared sandboxes of the run, from 1.
	Ordinal  int
	Provider string
	ID       string
	// Uses are its attempts, in order.
	Uses []LaneUse
}

// LaneUse is one attempt in a shared sandbox.
type LaneUse struct {
	Use  int
	Slot *Slot
	// ResetMS is how long the handover to this attempt took, nil for the first.
	ResetMS *int64
	// Changed counts files outside the workdir that were newer than the reset
	// point at the handover, and Ports are new listeners.
	Changed int
	Ports   []int
}

// Lanes returns the shared sandboxes of a run, by number.
func (r *Run) Lanes() []Lane {
	byNumber := map[int]*Lane{}
	for i := range r.Slots {
		s := &r.Slots[i]
		if s.Origin != record.Executed || s.Result == nil || s.Result.Sandbox == nil || s.Result.Sandbox.Ordinal == 0 {
			continue
		}
		at := s.Result.Sandbox
		l := byNumber[at.Ordinal]
		if l == nil {
			l = &Lane{Ordinal: at.Ordinal, Provider: at.Provider}
			byNumber[at.Ordinal] = l
		}
		l.ID = cmp.Or(l.ID, at.ID)
		u := LaneUse{Use: at.Use, Slot: s}
		for _, p := range s.Result.Phases {
			if p.Name == "sandbox.reset" && at.Use > 1 {
				u.ResetMS = &p.MS
			}
		}
		if f, ok := s.Result.Facts["assay.sandbox.drift"]; ok {
			var d struct {
				Changed int   `json:"changed"`
				Ports   []int `json:"ports"`
			}
			if json.Unmarshal(f.Value, &d) == nil {
				u.Changed, u.Ports = d.Changed, d.Ports
			}
		}
		l.Uses = append(l.Uses, u)
	}
	out := make([]Lane, 0, len(byNumber))
	for _, l := range byNumber {
		slices.SortFunc(l.Uses, func(a, b LaneUse) int { return cmp.Compare(a.Use, b.Use) })
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b Lane) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return out
}

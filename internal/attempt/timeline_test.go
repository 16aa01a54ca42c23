package attempt

import (
	"testing"
	"time"

	"assay/agent"
	"assay/internal/otlp"
)

func TestTimelineFindsTurns(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	sent := []sentTurn{{1, at(0), at(100)}, {2, at(200), at(300)}}
	const trace = "5b8efff798038103d269b633813fc60c"
	spans := []otlp.Span{
		{Trace: trace, ID: "a", Parent: agent.TurnSpan(2), Name: "below the second turn", Start: at(50), End: at(60)},
		{Trace: trace, ID: "b", Parent: "a", Name: "further below it", Start: at(50), End: at(55)},
		{Trace: "other", ID: "c", Parent: agent.TurnSpan(2), Name: "of another trace, in the time of the first", Start: at(70), End: at(71)},
		{Trace: trace, ID: "d", Parent: "e", Name: "in a circle", Start: at(250), End: at(251)},
		{Trace: trace, ID: "e", Parent: "d", Name: "in a circle, in nobody's time", Start: at(150), End: at(151)},
	}
	want := map[string]int{"a": 2, "b": 2, "c": 1, "d": 2, "e": 0}
	got := timeline(spans, trace, sent, begin)
	if len(got) != len(spans) {
		t.Fatalf("%+v", got)
	}
	for _, s := range got {
		if s.Turn != want[s.ID] {
			t.Errorf("%s is of turn %d, want %d", s.Name, s.Turn, want[s.ID])
		}
	}
	if got[0].StartMS != 50 || got[0].MS != 10 || got[0].Parent != "" || got[1].Parent != "a" {
		t.Errorf("%+v", got[:2])
	}
}

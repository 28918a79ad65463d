package shared

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/race"
)

func TestTheSimulationFindsEachMistake(t *testing.T) {
	race.Without(t)
	for _, c := range []struct {
		mistake mistake
		from    int // number of a schedule: two mistakes show in one of some hundred schedules, shortly after these
	}{
		{debitLate, 0},
		{spendPastTheEnd, 0},
		{returnAcrossAWindow, 0},
		{ignoreOutstanding, 0},
		{returnTwice, 0},
		{mergeAtTheLatest, 260},
		{returnAsIfNobodyLeased, 330},
	} {
		t.Run(c.mistake.String(), func(t *testing.T) {
			const most = 2000
			of := schedules(20_000)
			for i := range most {
				p := of(c.from + i)
				p.mistake = c.mistake
				if err := newSimulation(p).run(); err != nil {
					t.Logf("schedule %d: %v", c.from+i, err)
					return
				}
			}
			t.Errorf("%d schedules kept all promises", most)
		})
	}
}

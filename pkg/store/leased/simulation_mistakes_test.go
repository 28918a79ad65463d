package leased

import (
	"testing"

	"github.com/weirproxy/weir/internal/race"
)

func TestTheSimulationFindsEachMistake(t *testing.T) {
	mistakes := []mistake{debitLate, spendPastTheEnd, returnAcrossAWindow, ignoreOutstanding, returnTwice}
	if !race.Enabled { // seldom matter, and need many schedules
		mistakes = append(mistakes, mergeAtTheLatest, returnAsIfNobodyLeased)
	}
	for _, m := range mistakes {
		t.Run(m.String(), func(t *testing.T) {
			const most = 2000
			of := schedules(20_000)
			for i := range most {
				p := of(i)
				p.mistake = m
				if err := newSimulation(p).run(); err != nil {
					t.Logf("schedule %d: %v", i, err)
					return
				}
			}
			t.Errorf("%d schedules kept all promises", most)
		})
	}
}

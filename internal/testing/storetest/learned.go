package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// learns returns a charge that teaches a key some hits.
func learns(key string, hits int64, quantile uint32) store.Charge {
	return store.Charge{
		Key: []byte(key), Limit: algorithms.Learn(quantile), Hits: hits, Mode: store.Shadow, CountRejected: true,
		OnError: store.OnErrorAllow, Exact: true,
	}
}

// Random costs come alone, or with a charge that is denied. At times the quantile changes, or the
// key is forgotten.
func learnsCosts(t *testing.T, e Env) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeats
		key := fmt.Sprint("learned", seed)
		ban := charge(key, limit(algorithms.FixedWindow, 0))
		var state algorithms.State
		for step := range 150 {
			hits := int64(0)
			switch r.IntN(12) {
			case 0:
			case 1:
				hits = algorithms.MaxHits - int64(r.IntN(2))
			case 2:
				hits = 1 + int64(r.IntN(3))
			default:
				hits = 1 + r.Int64N(1<<(1+r.IntN(20)))
			}
			c := learns(key, hits, []uint32{500, 950, 950, 950, 999}[r.IntN(5)])
			var d algorithms.Decision
			if r.IntN(2) == 0 {
				_, all := e.take(t, c, ban)
				d = all[0]
			} else {
				d = e.wantAdmitted(t, true, c)[0]
			}
			var want algorithms.Decision
			state, want = algorithms.Take(c.Limit, state, e.Now(), hits, true)
			if !d.Allowed || d.Remaining != want.Remaining || (d.ResetAfter > 0) != (want.ResetAfter > 0) {
				t.Fatalf("seed %d, step %d, %d hits: got %+v; want %+v", seed, step, hits, d, want)
			}
			if got := e.remaining(t, c); got != want.Remaining {
				t.Fatalf("seed %d, step %d: a peek found %d; want %d", seed, step, got, want.Remaining)
			}
			e.Sleep(time.Duration(r.IntN(3)) * time.Minute)
			switch { // a month of sweeps takes seconds
			case step == 75 && seed == 0 && !race.Enabled:
				e.Sleep(algorithms.LearnedLife)
			case r.IntN(80) == 0:
				e.Sleep(algorithms.LearnedLife / 30)
			}
		}
	}
}

// A quota beside the charge that learns decides the request.
func learningDeniesNothing(t *testing.T, e Env) {
	for range algorithms.LearnedFrom + 1 {
		c := learns("k", 1000, 950)
		quota := charge("quota", limit(algorithms.FixedWindow, 0))
		quota.Mode = store.Quota
		e.wantAdmitted(t, true, c)
		e.wantAdmitted(t, false, quota, c)
	}
	if got := e.remaining(t, learns("k", 0, 950)); got < 900 {
		t.Errorf("learned %d from costs of 1000", got)
	}
}

// randomLessons returns random charges with holders, and behind them lessons of one or two keys.
func randomLessons(r *rand.Rand) []store.Charge {
	charges := randomHolds(r)
	for range 1 + r.IntN(2) {
		lesson := learns(fmt.Sprintf("%c/learned/", 'a'+rune(r.IntN(2))), max(0, r.Int64N(1000)-100), []uint32{950, 950, 500}[r.IntN(3)])
		lesson.Rule = charges[len(charges)-1].Rule
		charges = append(charges, lesson)
	}
	return charges
}

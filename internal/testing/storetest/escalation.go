package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// EscalationCases returns the cases of keys that are blocked.
func EscalationCases() []Case {
	return []Case{
		{"blocks_grow_as_the_algorithm_says", blocksGrow},
		{"a_blocked_key_denies_the_request_and_charges_nothing", blocksDeny},
		{"a_reset_ends_a_block", resetEndsABlock},
		{"the_schedule_is_exact_to_the_second", theSchedule},
	}
}

func escalation() algorithms.Limit {
	return algorithms.Escalate{Offenses: 3, Within: 10 * time.Minute, Forget: time.Hour, Period: time.Minute, Windows: true}.Limit()
}

// guard returns a charge that asks about a block.
func guard(key string, l algorithms.Limit) store.Charge {
	return store.Charge{Key: []byte(key), Limit: l, Exact: true}
}

// offense returns a charge that tells an offense, for a block of so many seconds.
func offense(key string, l algorithms.Limit, seconds int64) store.Charge {
	c := guard(key, l)
	c.Hits, c.Mode, c.CountRejected, c.OnError = seconds, store.Shadow, true, store.OnErrorAllow
	return c
}

func blocksGrow(t *testing.T, e Env) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 28)) //nolint:gosec // repeats
		key := fmt.Sprint("k", seed, "/block")
		l := algorithms.Escalate{
			Offenses: 1 + uint32(r.IntN(algorithms.MaxOffenses)), Within: 10 * time.Minute, Forget: time.Hour,
			Period: time.Minute, Windows: r.IntN(2) == 0,
		}.Limit()
		var state algorithms.State
		for step := range 150 {
			c := guard(key, l)
			if r.IntN(3) > 0 {
				c = offense(key, l, 1+r.Int64N(1800))
			}
			var want algorithms.Decision
			state, want = algorithms.Take(l, state, e.Now(), c.Hits, true)
			_, got := e.take(t, c)
			if got[0] != want {
				t.Fatalf("seed %d, step %d, %d hits: got %+v; want %+v", seed, step, c.Hits, got[0], want)
			}
			e.Sleep([]time.Duration{time.Second, 20 * time.Second, time.Minute, 3 * time.Minute, 30 * time.Minute}[r.IntN(5)])
			if r.IntN(40) == 0 {
				e.Sleep(time.Hour)
			}
		}
	}
}

func blocksDeny(t *testing.T, e Env) {
	l, main := escalation(), charge("k", limit(algorithms.TokenBucket, 10))
	other := charge("other", limit(algorithms.FixedWindow, 10))
	other.Rule = 1
	ask := guard("k/block", l)
	for n := range 3 {
		e.wantAdmitted(t, true, main, ask, other)
		if d := e.wantAdmitted(t, true, offense("k/block", l, 100))[0]; d.Allowed != (n < 2) {
			t.Errorf("offense %d: got %+v", n+1, d)
		}
		e.Sleep(time.Minute)
	}
	for range 2 {
		d := e.wantAdmitted(t, false, main, ask, other)
		if want := 40 * time.Second; d[1].RetryAfter != want || d[1].ResetAfter != want {
			t.Errorf("the block has %+v; want %v", d[1], want)
		}
	}
	e.wantRemaining(t, main, 10)
	e.wantRemaining(t, other, 10)
	e.Sleep(40 * time.Second)
	e.wantAdmitted(t, true, main, ask, other)
}

func resetEndsABlock(t *testing.T, e Env) {
	l := escalation()
	for range 3 {
		e.take(t, offense("k/block", l, 1000))
		e.Sleep(time.Minute)
	}
	e.wantAdmitted(t, false, guard("k/block", l))
	if n, err := e.Store.Reset(t.Context(), []store.Charge{guard("k/block", l)}); n != 1 || err != nil {
		t.Errorf("Reset returned %d, %v", n, err)
	}
	e.wantAdmitted(t, true, guard("k/block", l))
}

func theSchedule(t *testing.T, e Env) {
	l := algorithms.Escalate{Offenses: 3, Within: 10 * time.Minute, Forget: 7 * 24 * time.Hour, Period: time.Minute, Windows: true}.Limit()
	const key = "k/block"
	for round := range 2 {
		for n, block := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour, 24 * time.Hour} {
			for i := range 3 {
				e.Sleep(time.Minute)
				if d := e.wantAdmitted(t, true, offense(key, l, int64(block/time.Second)))[0]; d.Allowed != (i < 2) {
					t.Fatalf("round %d, block %d, offense %d: got %+v", round, n, i, d)
				}
			}
			e.Sleep(block - time.Second)
			if d := e.wantAdmitted(t, false, guard(key, l))[0]; d.RetryAfter != time.Second {
				t.Fatalf("round %d, block %d, a second before its end: got %+v", round, n, d)
			}
			e.Sleep(time.Second)
			if d := e.wantAdmitted(t, true, guard(key, l))[0]; algorithms.OffensesOf(d).Blocks != n+1 {
				t.Fatalf("round %d, block %d, at its end: got %+v", round, n, d)
			}
		}
		e.Sleep(7 * 24 * time.Hour)
	}
}

package shared

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestOneOfSeveralProcessesAnswersWithItsShare(t *testing.T) {
	hour := algorithms.Decision{Allowed: true, ResetAfter: time.Hour}
	left := func(n uint64) algorithms.Decision {
		return with1(hour, func(d *algorithms.Decision) { d.Remaining = n })
	}
	over := algorithms.Decision{Remaining: 1, RetryAfter: time.Hour, ResetAfter: time.Hour}
	for _, tt := range []struct {
		name    string
		charges []store.Charge
		want    []algorithms.Decision // of the charges, one after the other
		peeked  []algorithms.Decision // the same, each after the charges before
	}{
		{"hits", []store.Charge{charge("k", 10), hits(charge("k", 10), 2)}, []algorithms.Decision{left(1), over}, []algorithms.Decision{left(1), over}},
		{"a_probe", []store.Charge{hits(charge("k", 10), 0)}, []algorithms.Decision{left(2)}, []algorithms.Decision{left(2)}},
		{
			"a_refund_returns_its_own_hits",
			[]store.Charge{hits(charge("k", 12), 2), hits(charge("k", 12), -4)},
			[]algorithms.Decision{left(1), left(2)},
			[]algorithms.Decision{left(1), left(2)},
		},
		{"fewer_hits_than_processes", []store.Charge{charge("k", 2)}, []algorithms.Decision{left(0)}, []algorithms.Decision{left(0)}},
		{"more_hits_than_the_share", []store.Charge{hits(charge("k", 4), 2)}, []algorithms.Decision{over}, []algorithms.Decision{over}},
		{
			"the_most_hits",
			[]store.Charge{hits(charge("k", algorithms.MaxHits), algorithms.MaxHits)},
			[]algorithms.Decision{left(0)},
			[]algorithms.Decision{left(0)},
		},
		{
			"another_policy_has_no_share",
			[]store.Charge{policy(charge("k", 10), store.OnErrorAllow)},
			[]algorithms.Decision{{Allowed: true, Remaining: 10}},
			[]algorithms.Decision{{Allowed: true, Remaining: 10}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubbleAway(t, setup{Fleet: func() int { return 4 }}, func(r *rig) {
				t := r.t
				var got, peeked []algorithms.Decision
				for _, c := range tt.charges {
					d := make([]algorithms.Decision, 1)
					must.Do(t, r.Peek(t.Context(), []store.Charge{c}, d))
					peeked = append(peeked, d[0])
					c.Left = &store.State{Now: 1}
					must.Get(store.Take(t.Context(), r, []store.Charge{c}, d))(t)
					if got = append(got, d[0]); *c.Left != (store.State{Source: store.Without}) {
						t.Errorf("told %+v; want no state", *c.Left)
					}
				}
				must.Match(t, "Take", tt.want, got)
				must.Match(t, "Peek", tt.peeked, peeked)
			})
		})
	}
}

func with1(d algorithms.Decision, change func(*algorithms.Decision)) algorithms.Decision {
	change(&d)
	return d
}

// A fleet that grows during an outage shares the rest from then on.
func TestTheSizeOfTheFleetCountsAtEachDecision(t *testing.T) {
	size := 0
	inBubbleAway(t, setup{Fleet: func() int { return size }}, func(r *rig) {
		for _, step := range []struct{ size, remaining int }{{-1, 99}, {0, 98}, {1, 97}, {4, 23}, {10, 8}, {2, 40}} {
			size = step.size
			d := make([]algorithms.Decision, 1)
			if _, err := store.Take(r.t.Context(), r, []store.Charge{charge("k", 100)}, d); err != nil || int(d[0].Remaining) != step.remaining {
				r.t.Errorf("size %d: got %+v, %v; want %d left", step.size, d[0], err, step.remaining)
			}
		}
		if got := r.Stats().Fleet; got != 2 {
			r.t.Errorf("Stats().Fleet = %d; want 2", got)
		}
	})
}

// tells is a primary that costs nothing and tells a state.
type tells struct {
	state store.State
	left  uint64
}

func (p *tells) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	p.state.Now++
	for i := range charges {
		if charges[i].Left != nil {
			*charges[i].Left = p.state
		}
		decisions[i] = algorithms.Decision{Allowed: true, Remaining: p.left, ResetAfter: time.Second}
	}
	return true, nil
}

func newTells() *tells { return tellsLeft(charge("k", 5), 3) }

// tellsLeft is a primary that tells a state with that many hits left.
func tellsLeft(c store.Charge, left uint64) *tells {
	at := algorithms.Instant(time.Now().UnixNano())
	p := &tells{state: store.State{Now: at, Source: store.Asked}, left: left}
	if c.Limit.Algorithm.HasState() {
		p.state.Take(c.Limit, at, int64(c.Limit.Capacity()-left), false)
	}
	return p
}

func TestStatesGoToTheCallerAndToTheLocalStore(t *testing.T) {
	for _, own := range []*store.State{nil, {}, {Now: 7}} {
		synctest.Test(t, func(t *testing.T) {
			p := newTells()
			r := newRig(t, setup{Remote: storetest.Of(p)})
			synctest.Wait()
			charges := []store.Charge{charge("k", 5), policy(charge("other", 5), store.OnErrorAllow)}
			charges[0].Left = own
			must.Get(store.Take(t.Context(), r, charges, make([]algorithms.Decision, 3)))(t)
			if own != nil && *own != p.state {
				t.Errorf("the caller was told %+v; want %+v", *own, p.state)
			}
			if left := r.left(charges[0]); left != 3 {
				t.Errorf("the local store has %d left, want 3", left)
			}
			if got := r.local.Stats().Keys; got != 1 {
				t.Errorf("the local store has %d keys; want the one that it may decide", got)
			}
		})
	}
}

func TestAPartOfTheRestIsForHitsThatAnAnswerDoesNotShow(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		for _, tt := range []struct {
			fleet      int
			told, want uint64
		}{{1, 640, 640}, {2, 640, 630}, {4, 640, 630}, {4, 63, 63}, {4, 0, 0}, {4, 1000, 985}} {
			synctest.Test(t, func(t *testing.T) {
				c := charge("k", 1000)
				c.Limit.Algorithm = a
				r := newRig(t, setup{Remote: storetest.Of(tellsLeft(c, tt.told)), Fleet: func() int { return tt.fleet }})
				synctest.Wait()
				d := make([]algorithms.Decision, 1)
				if _, err := store.Take(t.Context(), r, []store.Charge{c}, d); err != nil || d[0].Remaining != tt.told {
					t.Fatalf("%v: got %+v, %v; want %d left", a, d[0], err, tt.told)
				}
				if left := r.left(c); left != tt.want {
					t.Errorf("%v, %d processes: the local store has %d left of %d, want %d", a, tt.fleet, left, tt.told, tt.want)
				}
			})
		}
	}
}

// The shares of all processes in a limit are whole hits, and their sum is the limit, also of fewer
// hits than there are processes. A process whose share is larger has the more.
func TestSharesAreWholeHitsAndTheirSumIsTheLimit(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 12))
		ends := []uint32{0, store.Circle}
		for range r.IntN(9) {
			ends = append(ends, r.Uint32N(store.Circle))
		}
		slices.Sort(ends)
		c := charge(fmt.Sprint("key ", seed), 1+r.Uint32N(20))
		switch r.IntN(4) {
		case 0:
			c.Limit.Requests = r.Uint32()
		case 1:
			c.Limit.Requests = 100
		case 2:
			c.Limit.SetPerPeriod(1 + r.Uint64N(1<<r.IntN(54)))
		}
		all, sum := c.Limit.PerPeriod(), uint64(0)
		for i := range len(ends) - 1 {
			share := store.Share{From: ends[i], To: ends[i+1]}
			mine, want := own(&c, share), float64(share.To-share.From)/store.Circle*float64(all)
			if sum += mine; float64(mine) < want-1 || float64(mine) > want+1 {
				t.Errorf("%+v has %d hits of %d, want about %.2f", share, mine, all, want)
			}
			if all := all * uint64(units(c.Limit)); mine > 0 && priceOf(&c, share).buys(all) > mine {
				t.Errorf("%d hits at %+v cost less than %d units", mine, priceOf(&c, share), all)
			}
		}
		if sum != all {
			t.Errorf("the shares in %d hits are %d", all, sum)
		}
	}
}

// Nine of ten requests come to one of four processes. Shares by their loads let the fleet use the
// whole limit in an outage, and not more; equal shares used half of it.
func TestAFleetUsesALimitWhereItsLoadIs(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.FixedWindow} {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 12))
			f, end := newFleet(t, r, 4, 0)
			defer end()
			ends := []uint32{0, 15_000_000, 15_600_000, 16_200_000, store.Circle}
			f.share = func(i int) store.Share { return store.Share{From: ends[i], To: ends[i+1]} }
			midnight()
			f.are(down)
			limit := algorithms.Limit{Algorithm: a, Requests: 1000, Period: 10 * time.Second}
			admitted, begun := 0, time.Now()
			for time.Since(begun) < time.Minute { // twice the limit
				i := 0
				if r.IntN(10) == 0 {
					i = 1 + r.IntN(3)
				}
				if ok, _ := f.take(t, f.procs[i], []store.Charge{{Key: []byte("key"), Limit: limit, Hits: 1}}, false); ok {
					admitted++
				}
				time.Sleep(5 * time.Millisecond)
			}
			if most := 6000 + 1000; admitted > most || admitted < 97*6000/100 {
				t.Errorf("%v: %d hits were admitted, want 5820 to %d", a, admitted, most)
			}
		})
	}
}

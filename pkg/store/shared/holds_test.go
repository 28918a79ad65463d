package shared

import (
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// play is a process with holders, as a text of steps sees it.
type play struct {
	t      *testing.T
	fleet  *fleet
	limit  algorithms.Limit
	policy store.OnError
	second *store.Charge // of each begin; nil: none
	told   int           // of link.told
	out    strings.Builder
}

// charge returns the charge of a phase of a holder.
func (p *play) charge(phase algorithms.HoldPhase, holder string, hits int64) store.Charge {
	c := store.Charge{
		Key: []byte("key"), Limit: p.limit, Hits: hits, OnError: p.policy,
		Hold: &store.Hold{Phase: phase, Holder: store.HolderOf([]byte(holder)), AtMost: time.Minute},
	}
	if holder == "nobody" {
		c.Hold.Holder = store.Holder{}
	}
	return c
}

// step plays one step, and writes its outcome:
//
//	up, down, late, void  the condition of the link; the breaker follows up and down
//	back                  up, and other processes may not have told their holders
//	wait                  two minutes
//	pair R 3 9            a request of a pair that begins with 3 hits, or ends with 9
//	begin R 3, end R 3    a request; "left" is the remaining hits, "was" the hold as the caller is
//	                      told
func (p *play) step(line string) {
	link, s := p.fleet.links[0], p.fleet.procs[0]
	var verb, holder string
	var hits, cost int64
	_, _ = fmt.Sscan(line, &verb, &holder, &hits, &cost) // shorter lines leave the rest
	fmt.Fprint(&p.out, line)
	switch verb {
	case "late":
		link.is.Store(late)
	case "void":
		link.is.Store(void)
	case "down":
		link.is.Store(down)
		for s.State() != Open {
			c := charge("another key", 1000)
			p.fleet.take(p.t, s, []store.Charge{c}, false)
			time.Sleep(10 * time.Millisecond)
		}
	case "up":
		link.is.Store(up)
		link.flush()
		for c := charge("k", 1); !s.breaker.settled(&c); {
			time.Sleep(time.Second)
			synctest.Wait()
		}
	case "back":
		link.is.Store(up)
		for s.State() != Closed {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
	case "wait":
		time.Sleep(2 * time.Minute)
	default:
		phase := algorithms.HoldBegin
		if verb == "end" {
			phase = algorithms.HoldEnd
		}
		charges := []store.Charge{p.charge(phase, holder, hits)}
		if verb == "pair" {
			phase = algorithms.HoldPair
			charges[0] = p.charge(phase, holder, cost)
			charges[0].Hold.Estimate = uint32(hits) //nolint:gosec // a small number
		}
		if p.second != nil && phase == algorithms.HoldBegin {
			charges = append(charges, *p.second)
		}
		admitted, decisions := p.fleet.take(p.t, s, charges, false)
		d, was := decisions[0], charges[0].Hold.Was
		if phase == algorithms.HoldPair {
			fmt.Fprint(&p.out, map[bool]string{true: ": begins", false: ": ends"}[charges[0].Hold.Phase.Begins()])
		}
		fmt.Fprintf(&p.out, ": %t, %d left", admitted && d.Allowed, d.Remaining)
		if names := [...]string{"", "held", "denied", "ended"}; was.Status != algorithms.HoldUnknown {
			fmt.Fprintf(&p.out, ", was %s %d", names[was.Status], was.Hits)
		}
		if admitted != d.Allowed && phase == algorithms.HoldEnd {
			p.t.Errorf("%s: admitted %t, allowed %t", line, admitted, d.Allowed)
		}
	}
	for ; p.told < len(link.told); p.told++ {
		c := link.told[p.told]
		fmt.Fprintf(&p.out, "; told %s %d", [...]string{"", "begin", "end", "begun", "cancel", "", "pair"}[c.Hold.Phase], c.Hits)
	}
	fmt.Fprintln(&p.out)
}

// finish writes the hits that the hub counts in the end.
func (p *play) finish() string {
	p.fleet.links[0].flush()
	c := p.charge(algorithms.HoldBegin, "", 0)
	d := p.fleet.hub.probe(&c)
	fmt.Fprintf(&p.out, "the primary counts %d\n", c.Limit.Capacity()-d.Remaining)
	return p.out.String()
}

//go:embed testdata/holds.txt
var outagesOfHolders string

// scenario returns the play of a scenario's words.
func scenario(t *testing.T, words string, f *fleet) *play {
	t.Helper()
	p := &play{t: t, fleet: f}
	size := 1
	for word := range strings.SplitSeq(words, ", ") {
		switch word {
		case "day":
			p.limit = algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 100, Period: 24 * time.Hour}
		case "bucket":
			p.limit = algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: 240 * time.Hour}
		case "slots":
			p.limit = algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 10}
		case "ban":
			p.limit = algorithms.Limit{Algorithm: algorithms.Concurrency}
		case "allow":
			p.policy = store.OnErrorAllow
		case "deny":
			p.policy = store.OnErrorDeny
		case "never":
			c := charge("other", 0)
			p.second = &c
		default:
			if _, err := fmt.Sscan(word, &size); err != nil {
				t.Fatalf("%q: %v", word, err)
			}
		}
	}
	f.size = size
	return p
}

func TestHoldersAroundAnOutage(t *testing.T) {
	_, all, _ := strings.Cut(outagesOfHolders, "\n== ")
	for text := range strings.SplitSeq(all, "\n== ") {
		head, want, _ := strings.Cut(text, "\n")
		want = strings.TrimSpace(want) + "\n"
		name, words, _ := strings.Cut(head, ": ")
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, end := newFleet(t, rand.New(rand.NewPCG(1, 2)), 1, 0)
				defer end()
				synctest.Wait()
				p := scenario(t, words, f)
				for line := range strings.Lines(want) {
					line, _, _ = strings.Cut(line, ":")
					line, _, _ = strings.Cut(line, ";")
					if line = strings.TrimSpace(line); !strings.HasPrefix(line, "the primary") {
						p.step(line)
					}
				}
				if diff := cmp.Diff(want, p.finish()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

func TestHoldersAreListedByThePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, end := newFleet(t, nil, 2, 0)
		defer end()
		synctest.Wait()
		slots := algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 10}
		number, s := 1, f.procs[0]
		c := beginOf(&number, store.Charge{Key: []byte("key"), Limit: slots, Hits: 3}, time.Minute)
		f.take(t, s, []store.Charge{c}, false)
		held, all, err := s.Holders(t.Context(), &c, 10)
		if err != nil || all != 1 || len(held) != 1 || held[0].Holder != c.Hold.Holder || held[0].Hits != 3 {
			t.Errorf("Holders = %+v, %d, %v; want one of 3 hits", held, all, err)
		}
		rate := charge("key", 5)
		if _, _, err := s.Holders(t.Context(), &rate, 10); !errors.Is(err, store.ErrNotListed) {
			t.Errorf("Holders of a rate limit: %v, want %v", err, store.ErrNotListed)
		}
		if got := s.Stats().Failures; got != (Failures{}) {
			t.Errorf("%+v after an answer that a rate limit is not listed, want no failure", got)
		}

		f.are(down)
		number++
		c = beginOf(&number, store.Charge{Key: []byte("key"), Limit: slots, Hits: 2}, time.Minute)
		f.take(t, s, []store.Charge{c}, false)
		held, all, err = s.Holders(t.Context(), &c, 10)
		now := f.hub.now()
		want := []store.Held{{Hits: 3, At: now, Until: now.Add(time.Minute)}, {Holder: c.Hold.Holder, Hits: 2, At: now, Until: now.Add(time.Minute)}}
		if diff := cmp.Diff(want, held); diff != "" || all != 2 || err != nil {
			t.Errorf("without the primary: %d holders, %v (-want +got):\n%s", all, err, diff)
		}
	})
	inBubble(t, setup{}, func(r *rig) {
		c := charge("key", 5)
		if _, _, err := r.Holders(r.t.Context(), &c, 10); !errors.Is(err, store.ErrNotListed) {
			r.t.Errorf("of a primary that lists no holders: %v, want %v", err, store.ErrNotListed)
		}
	})
}

func TestAPeekAtAHolderRemembersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, end := newFleet(t, nil, 1, 0)
		defer end()
		synctest.Wait()
		f.are(down)
		number, s := 1, f.procs[0]
		f.size = 2
		c := beginOf(&number, charge("key", 10), time.Minute)
		decisions := make([]algorithms.Decision, 1)
		for range 3 {
			if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || decisions[0].Remaining != 4 || c.Hold.Was != (algorithms.Hold{}) {
				t.Errorf("Peek: %+v, %v, was %+v; want 4 left and no holder", decisions[0], err, c.Hold.Was)
			}
		}
		c.Hits = 3
		f.take(t, s, []store.Charge{c}, false)
		if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || decisions[0].Remaining != 2 || c.Hold.Was.Hits != 3 {
			t.Errorf("Peek at a holder: %+v, %v, was %+v; want 2 left and 3 hits", decisions[0], err, c.Hold.Was)
		}
		for _, other := range []store.OnError{store.OnErrorAllow, store.OnErrorDeny} {
			c.OnError = other
			if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || c.Hold.Was != (algorithms.Hold{}) {
				t.Errorf("policy %d: %v, was %+v; want no holder", other, err, c.Hold.Was)
			}
		}
		if got := len(f.links[0].told); got != 1 {
			t.Errorf("the primary is told of %d holders, want the one that has begun", got)
		}
		if got := s.Stats(); got.Holders != 1 || got.Carried != 3 {
			t.Errorf("%+v; want one holder and 3 hits carried back", got)
		}
	})
}

func TestHoldersWithoutThePrimaryAllocateNoMoreThanOtherCharges(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	inBubbleAway(t, setup{Fleet: func() int { return 2 }}, func(r *rig) {
		decisions := make([]algorithms.Decision, 1)
		allocates := func(charges ...store.Charge) float64 {
			return testing.AllocsPerRun(100, func() {
				for i := range charges {
					must.Get(store.Take(r.t.Context(), r, charges[i:i+1], decisions))(r.t)
				}
			})
		}
		number := 1
		begin := beginOf(&number, charge("key", 1000), time.Minute)
		end := owned(&begin)
		end.Hold.Phase = algorithms.HoldEnd
		want := allocates(charge("key", 1000), charge("key", 1000))
		if got := allocates(begin, end); got > want {
			r.t.Errorf("a begin and an end allocate %v times, want %v times as two other charges", got, want)
		}
	})
}

package linear

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// method is a method of a store.
type method uint8

const (
	take method = iota
	peek
	reset
)

// call is the input of an operation.
type call struct {
	method  method
	now     algorithms.Instant
	keys    []int // of the charges
	charges []store.Charge
	alone   bool // no other call is under way
	waits   bool // a refund that waits for the verdict on other parts
}

// String shows a call.
func (c call) String() string {
	var text strings.Builder
	text.WriteString([]string{"Take", "Peek", "Reset"}[c.method])
	for i := range c.charges {
		x := &c.charges[i]
		fmt.Fprintf(&text, " [key %d hits %d of %d per %v mode %d counted %t]", c.keys[i], x.Hits, x.Limit.Capacity(), x.Limit.Period, x.Mode, x.CountRejected)
		if h := x.Hold; h != nil {
			fmt.Fprintf(&text, "(phase %d of holder %d, estimate %d, for %v)", h.Phase, h.Holder[0], h.Estimate, h.AtMost)
		}
	}
	return fmt.Sprintf("%s at %d", &text, c.now)
}

// answer is the output of an operation.
type answer struct {
	model.Answer

	forgotten int
}

// script makes the calls of a history.
type script struct {
	plan    Plan
	name    string
	limits  [2]algorithms.Limit // before and after a reload
	counted bool
	resets  bool         // calls reset keys; with Parts no call refunds then
	loaded  atomic.Int32 // the limits in force
}

// newScript chooses an algorithm and its limits.
func newScript(p Plan, r *rand.Rand, name string) *script {
	all := algorithms.RateAlgorithms()
	if p.Holders {
		all = algorithms.Algorithms()
	}
	l := algorithms.Limit{Algorithm: all[r.IntN(len(all))], Requests: uint32(1 + r.IntN(20)), Period: time.Second}
	if l.Algorithm == algorithms.Concurrency {
		l.Period = 0
	}
	s := &script{plan: p, name: name, limits: [2]algorithms.Limit{l, l}}
	s.limits[1].Requests = uint32(r.IntN(25)) // 0 is a ban
	if l.Algorithm == algorithms.TokenBucket {
		s.limits[0].Burst = uint32(r.IntN(20))
		s.limits[1].Burst = uint32(r.IntN(20))
		s.limits[1].Requests = max(1, s.limits[1].Requests)
	}
	s.counted = !p.Parts && r.IntN(3) == 0
	s.resets = !p.Parts || r.IntN(2) == 0
	return s
}

// client is one of the callers of a history.
type client struct {
	*script
	choices *rand.Rand
	used    []int64 // hits that the client has taken of each key, and may give back in a plan of parts
}

// next chooses a call. A client that reloads changes the limits for all.
func (s *client) next(now algorithms.Instant) call {
	r := s.choices
	c := call{now: now}
	switch n := r.IntN(20); {
	case n == 0 && !s.plan.Parts:
		s.loaded.Store(1 - s.loaded.Load())
	case n == 1 && s.resets:
		c.method = reset
	case n <= 4:
		c.method = peek
	}
	charges := 1
	if c.method == take && s.plan.Keys > 1 {
		charges = 1 + r.IntN(3)
	}
	l, used := s.limits[s.loaded.Load()], slices.Clone(s.used)
	for i := range charges {
		key := r.IntN(s.plan.Keys)
		x := store.Charge{Key: fmt.Appendf(nil, "%s-%d", s.name, key), Limit: l, Hits: 1 + int64(r.IntN(3)), Rule: i}
		switch n := r.IntN(10); {
		case n == 0:
			x.Hits = 0
		case n <= 2 && s.plan.Parts && s.resets: // a refund of hits that a reset forgot would take from reservations
		case n <= 2 && s.plan.Parts:
			x.Hits = -min(x.Hits, used[key])
			used[key] += x.Hits
		case n <= 2:
			x.Hits = -x.Hits
		case n == 3:
			x.Hits = int64(r.IntN(25))
		}
		if c.method == take && !s.plan.Parts {
			x.CountRejected = s.counted && r.IntN(2) == 0
			if charges > 1 {
				x.Mode = []store.Mode{store.Enforce, store.Enforce, store.Quota, store.Shadow, store.ShadowQuota}[r.IntN(5)]
			}
		}
		if s.plan.Holders && r.IntN(5) > 0 {
			x.Hold = chooseHold(r)
		}
		c.keys, c.charges = append(c.keys, key), append(c.charges, x)
	}
	return c
}

// chooseHold returns a begin or an end of one of a few holders.
func chooseHold(r *rand.Rand) *store.Hold {
	phases := []algorithms.HoldPhase{algorithms.HoldBegin, algorithms.HoldBegin, algorithms.HoldEnd, algorithms.HoldEnd, algorithms.HoldBegun, algorithms.HoldCancel}
	if r.IntN(3) == 0 {
		phases = []algorithms.HoldPhase{algorithms.HoldPair}
	}
	name := byte(1 + r.IntN(4)) // no name has only zeros
	return &store.Hold{
		Phase:  phases[r.IntN(len(phases))],
		Holder: store.Holder{0: name, 15: name},
		AtMost: []time.Duration{300 * time.Millisecond, time.Minute}[r.IntN(2)],

		Estimate: uint32(r.IntN(4)),
	}
}

// learn notes the hits that a call has taken and given back.
func (s *client) learn(c call, got answer) {
	for i, key := range c.keys {
		if got.Admitted {
			s.used[key] += c.charges[i].Hits
		}
	}
}

// record plays a history and returns its operations, with the algorithm and the limits in words.
func record(t *testing.T, e Env, p Plan, seed uint64) (history []porcupine.Operation, about string) {
	t.Helper()
	r := random(seed)
	s := newScript(p, r, fmt.Sprintf("%d", seed))
	var order atomic.Int64 // the time of calls and returns
	var failed atomic.Pointer[error]
	of, clients := make([][]porcupine.Operation, p.Clients), make([]client, p.Clients)
	for i := range clients {
		clients[i] = client{script: s, choices: random(seed<<8 + uint64(i)), used: make([]int64, p.Keys)}
	}
	for phase := range p.Phases {
		if phase > 0 {
			e.Sleep(time.Duration(r.IntN(900)) * time.Millisecond)
		}
		now := e.Now()
		var ready atomic.Int32
		var ended sync.WaitGroup
		for i := range clients {
			client := &clients[i]
			ended.Go(func() {
				for ready.Add(1); int(ready.Load()) < p.Clients; {
					runtime.Gosched() // all begin at once
				}
				for range p.Calls {
					c := client.next(now)
					o, err := play(t, e.Store, c, i, &order)
					if err != nil {
						failed.Store(&err)
						return
					}
					of[i] = append(of[i], o)
					got, _ := o.Output.(answer)
					client.learn(c, got)
				}
			})
		}
		ended.Wait()
	}
	for key := range p.Keys { // the rest of each key, exact in any plan
		l := s.limits[s.loaded.Load()]
		c := call{
			method: peek, now: e.Now(), keys: []int{key}, alone: true,
			charges: []store.Charge{{Key: fmt.Appendf(nil, "%s-%d", s.name, key), Limit: l, Hits: 1}},
		}
		o, err := play(t, e.Store, c, 0, &order)
		if err != nil {
			failed.Store(&err)
		}
		of[0] = append(of[0], o)
	}
	if err := failed.Load(); err != nil {
		t.Errorf("seed %d: %v", seed, *err)
	}
	return slices.Concat(of...), fmt.Sprintf("%v, %d or %d per %v", s.limits[0].Algorithm, s.limits[0].Requests, s.limits[1].Requests, s.limits[0].Period)
}

// play calls the store.
func play(t *testing.T, s store.Store, c call, client int, order *atomic.Int64) (porcupine.Operation, error) {
	t.Helper()
	out := answer{Answer: model.Answer{Decisions: make([]algorithms.Decision, len(c.charges)), Found: make([]algorithms.Hold, len(c.charges))}}
	charges := model.Copy(c.charges)
	o := porcupine.Operation{ClientId: client, Input: c, Call: order.Add(1)}
	var err error
	if !c.alone {
		runtime.Gosched() // so that the time of the call has other calls in it
	}
	switch c.method {
	case take:
		out.Admitted, err = store.Take(t.Context(), s, charges, out.Decisions)
	case peek:
		err = s.Peek(t.Context(), charges, out.Decisions)
	case reset:
		out.forgotten, err = s.Reset(t.Context(), charges)
	}
	for i := range charges {
		if h := charges[i].Hold; h != nil {
			out.Found[i] = h.Was
		}
	}
	if c.method == take {
		out.Phases = model.PhasesOf(charges)
	}
	o.Return, o.Output = order.Add(1), out
	return o, err
}

package main

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// defect is a mistake of a fleet.
type defect string

const (
	none defect = ""

	// The five of the first order.
	retry     defect = "a retry admits twice"
	lostCount defect = "a failover loses counts"
	staleSlip defect = "a stale lease is spent again"
	clockJump defect = "a clock that jumps lifts a limit"
	swapped   defect = "answers of two keys are swapped"

	// Each hides behind an excuse of the judge.
	longDenial   defect = "a sidecar denies long after a fault"
	neighbor     defect = "the neighbor of a slow sidecar denies"
	early        defect = "a sidecar denies before a fault"
	undivided    defect = "a sidecar that is cut off has a whole limit"
	overlapping  defect = "the parts of all sidecars without Redis are more than the limit"
	longDivided  defect = "a sidecar is without Redis long after a fault"
	longLoss     defect = "a failover loses the hits of three seconds"
	lateLoss     defect = "counts are lost long after a failover"
	doubleCharge defect = "a hit is charged twice"
	fullEarly    defect = "a limit is full before all hits are used"
	stranded     defect = "a lease keeps nearly all hits"
	failedTwice  defect = "a request that failed is admitted twice as often"
)

// rig is a fleet in virtual time with at most one defect. The faults are as kinds have them.
type rig struct {
	*scene

	defect defect
	random *rand.Rand
	counts map[string]int
	before map[string]int // the counts of some time before
	slips  [sidecars]map[string]int
	states map[string]algorithms.State
	locals [sidecars]map[string]algorithms.State
	lost   bool
	n      int
	last   drive.Result
}

const (
	begun   = int64(1_800_000_000_000_000_000)
	length  = 32 * time.Second
	faultAt = 10 * time.Second
	slowAt  = 26 * time.Second
)

// after reports whether an instant is in a time after the begin of the scene.
func after(at int64, from, to time.Duration) bool {
	return at >= begun+int64(from) && at < begun+int64(to)
}

// newRig returns a fleet with a fault of a kind.
func newRig(k *kind, d defect, t *traffic) *rig {
	r := &rig{
		scene:  &scene{Name: k.name, Sidecars: sidecars, Limits: t.limits(sidecars), Slow: redisTimeout},
		defect: d, random: rand.New(rand.NewPCG(t.seed, 7)), //nolint:gosec // a history that comes again
		counts: make(map[string]int), before: make(map[string]int), states: make(map[string]algorithms.State),
	}
	for i := range sidecars {
		r.slips[i], r.locals[i] = make(map[string]int), make(map[string]algorithms.State)
	}
	if k.name != "steady" {
		from, lasts := begun+int64(faultAt), int64(lasting)
		if k.sentinel {
			lasts /= 4
		}
		r.Faults = []fault{{from, from + lasts, from + lasts, k.sidecar, 0}}
		if k.sentinel {
			r.Faults[0].Back, r.Faults[0].Kept = from, from-int64(lag)
		}
	}
	return r
}

// play returns the history of the fleet. Answers of a sidecar are slow for a moment.
func (r *rig) play(t *traffic) *scene {
	type decision struct {
		at int64
		o  op
	}
	var all []decision
	gap := int64(time.Second) / int64(t.rate)
	for sidecar := range uint8(sidecars) {
		for n := range int(t.length.Seconds() * float64(t.rate)) {
			sent := begun + int64(n)*gap + r.random.Int64N(gap)
			a := t.choose(n, time.Duration(sent-begun), r.random)
			took := int64(time.Millisecond) + r.random.Int64N(int64(3*time.Millisecond))
			if sidecar == 1 && after(sent, slowAt, slowAt+20*time.Millisecond) {
				took += int64(redisTimeout)
			}
			o := op{sent, sent + took, a.key, a.hits, sidecar, drive.Open}
			all = append(all, decision{sent + r.random.Int64N(took), o})
		}
	}
	slices.SortFunc(all, func(x, y decision) int { return cmp.Compare(x.at, y.at) })
	for i := range all {
		d := &all[i]
		d.o.result = r.decide(d.at, &d.o)
		r.ops = append(r.ops, d.o)
	}
	slices.SortFunc(r.ops, func(x, y op) int { return cmp.Compare(x.sent, y.sent) })
	return r.scene
}

// alone reports whether a sidecar is without Redis.
func (r *rig) alone(at int64, sidecar uint8) bool {
	for _, f := range r.Faults {
		to := f.To + int64(400*time.Millisecond)
		if r.defect == longDivided {
			to += int64(8 * time.Second)
		}
		if (f.Sidecar < 0 || f.Sidecar == int(sidecar)) && at >= f.From && at < to {
			return true
		}
	}
	return false
}

func (r *rig) decide(at int64, o *op) drive.Result {
	r.n++
	r.lose(at)
	key, c := string(o.key), o.class()
	allowed := r.allows(at, key, c, o)
	answer := drive.Denied
	if allowed {
		answer = drive.Allowed
	}
	if r.defect == failedTwice && c == countExact && r.n%50 == 0 && allowed {
		r.counts[key] -= 2 * int(o.hits)
		return drive.Failed
	}
	if r.defect == swapped && r.n%10 == 0 {
		answer, r.last = r.last, answer
	} else {
		r.last = answer
	}
	return answer
}

// lag is the time of which a failover without a defect loses the hits.
const lag = 100 * time.Millisecond

// lose loses counts, as the defects of a failover do.
func (r *rig) lose(at int64) {
	span, when := lag, faultAt
	switch r.defect { //nolint:exhaustive // the others lose no more
	case longLoss:
		span = 3 * time.Second
	case lateLoss:
		span, when = time.Second, faultAt+2*time.Second
	case lostCount:
		span = time.Hour
	}
	if len(r.Faults) == 0 || r.Faults[0].Kept == 0 || r.lost {
		return
	}
	if after(at, 0, max(0, when-span)) {
		maps.Copy(r.before, r.counts)
	}
	if after(at, when, time.Hour) {
		r.lost = true
		for key := range r.counts {
			r.counts[key] = r.before[key]
		}
	}
}

func (r *rig) allows(at int64, key string, c class, o *op) bool {
	alone, limit, hits := r.alone(at, o.sidecar), int(r.Limits[c]), int(o.hits)
	switch c { //nolint:exhaustive // the others have limits of a second
	case countExact:
		switch {
		case alone,
			r.defect == longDenial && o.sidecar == 0 && after(at, faultAt+lasting+3*time.Second, faultAt+lasting+3200*time.Millisecond),
			r.defect == neighbor && o.sidecar == 2 && after(at, slowAt, slowAt+redisTimeout),
			r.defect == early && o.sidecar == 0 && after(at, faultAt-300*time.Millisecond, faultAt):
			return false
		}
		full := limit
		if r.defect == fullEarly {
			full--
		}
		allowed := r.counts[key]+hits <= full
		switch {
		case !allowed, r.defect == retry && r.n%7 == 0:
		case r.defect == doubleCharge && r.n%40 == 0:
			r.counts[key] += 2 * hits
		default:
			r.counts[key] += hits
		}
		return allowed
	case countLeased:
		return r.leased(alone, key, limit, o)
	}
	return r.takes(at, alone, key, c, o)
}

// leased decides with leased hits.
func (r *rig) leased(alone bool, key string, limit int, o *op) bool {
	slips, hits := r.slips[o.sidecar], int(o.hits)
	if slips[key] < hits && !alone {
		r.counts[key] -= slips[key]
		lease := min(10, limit-r.counts[key])
		if r.defect == stranded && o.sidecar == 0 {
			lease = (limit - r.counts[key]) * 4 / 5
		}
		r.counts[key] += lease
		if r.defect == staleSlip {
			lease += slips[key]
		}
		slips[key] = lease
	}
	if slips[key] < hits {
		return false
	}
	slips[key] -= hits
	return true
}

// takes decides a limit of a second. A sidecar without Redis has its part of the limit.
func (r *rig) takes(at int64, alone bool, key string, c class, o *op) bool {
	l, states := r.limit(c), r.states
	if r.defect == clockJump {
		at += (at - begun) / int64(300*time.Millisecond) * int64(time.Second)
	}
	if alone {
		states = r.locals[o.sidecar]
		part := uint32(sidecars)
		switch r.defect { //nolint:exhaustive // the others have their part
		case undivided:
			part = 1
		case overlapping:
			part = 3
		}
		l.Requests, l.Burst = l.Requests/part, l.Burst/part
	} else if r.defect == fullEarly {
		l.Requests, l.Burst = l.Requests*9/10, l.Burst*9/10
		if c.leased() {
			l.Requests, l.Burst = l.Requests/5, l.Burst/5
		}
	}
	state, d := algorithms.Take(l, states[key], algorithms.Instant(at), int64(o.hits), false)
	states[key] = state
	return d.Allowed
}

// TestEachDefectOfAFleetIsFound: five defects are found, each by the class that it breaks, and so
// are defects that hide behind the excuses of the judge. A fleet without a defect is not blamed.
func TestEachDefectOfAFleetIsFound(t *testing.T) {
	for _, test := range []struct {
		defect defect
		scene  string
		want   []class
	}{
		{retry, "steady", []class{countExact}},
		{lostCount, "failover", []class{countExact, countLeased}},
		{staleSlip, "steady", []class{countLeased}},
		{clockJump, "steady", []class{secondExact, secondLeased, bucketExact, bucketLeased}},
		{swapped, "steady", []class{countExact, countLeased, secondExact, secondLeased, bucketExact, bucketLeased}},

		{longDenial, "kill", []class{countExact}},
		{longDenial, "partition", []class{countExact}},
		{longDenial, "failover", []class{countExact}},
		{neighbor, "steady", []class{countExact}},
		{early, "kill", []class{countExact}},
		{undivided, "partition", []class{secondExact, secondLeased, bucketExact, bucketLeased}},
		{undivided, "kill", []class{secondExact, secondLeased, bucketExact, bucketLeased}},
		{overlapping, "pause", []class{secondExact, secondLeased}},
		{longDivided, "partition", []class{countExact, countLeased, secondExact, secondLeased, bucketExact, bucketLeased}},
		{longLoss, "failover", []class{countExact, countLeased}},
		{lateLoss, "failover", []class{countExact, countLeased}},
		{doubleCharge, "kill", []class{countExact}},
		{doubleCharge, "failover", []class{countExact}},
		{fullEarly, "steady", []class{countExact, secondExact, secondLeased, bucketExact, bucketLeased}},
		{fullEarly, "pause", []class{countExact, secondExact, secondLeased, bucketExact, bucketLeased}},
		{stranded, "steady", []class{countLeased}},
		{failedTwice, "steady", []class{countExact}},
	} {
		t.Run(test.scene+": "+string(test.defect), func(t *testing.T) {
			t.Parallel()
			found := make(map[class]string)
			v := playOne(t, test.scene, test.defect)
			for _, x := range v.violations {
				found[x.class] = x.text
			}
			for c := range classes {
				if (found[c] != "") != slices.Contains(test.want, c) {
					t.Errorf("%v: found %q; want a violation in %v alone", c, found[c], test.want)
				}
			}
		})
	}
	for _, k := range kinds() {
		t.Run("none: "+k.name, func(t *testing.T) {
			t.Parallel()
			v := playOne(t, k.name, none)
			for _, x := range v.violations {
				t.Errorf("%v, key %d: %s", x.class, x.key, x.text)
			}
			if len(v.blunt) > 0 || v.exact < v.operations*leastExact/100 || v.slow == 0 {
				t.Errorf("%d of %d operations judged exactly, %d slow spans, not noticed:\n%s", v.exact, v.operations, v.slow, strings.Join(v.blunt, "\n"))
			}
		})
	}
}

// playOne judges a history of a fleet.
func playOne(t *testing.T, scene string, d defect) verdict {
	t.Helper()
	all := kinds()
	k := &all[slices.IndexFunc(all, func(k kind) bool { return k.name == scene })]
	requests := &traffic{rate: 600, length: length, life: 8 * time.Second, seed: 1}
	v := newRig(k, d, requests).play(requests).check()
	if want := sidecars * 600 * 32; v.operations != want || v.undecided > 0 {
		t.Fatalf("%d operations, %d keys undecided; want %d and none", v.operations, v.undecided, want)
	}
	return v
}

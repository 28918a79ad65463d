package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	// denies is the time after a fault in which a sidecar may still decide by on_store_error. The
	// sidecar asks Redis again after half a second at most, and needs three answers. The rest is
	// for a busy machine.
	denies = 1500 * time.Millisecond
	// settles is how long after a fault limits may still be divided: at most 1.4 seconds longer. See
	// docs/redis.md.
	settles = 2500 * time.Millisecond
	// notices is how long after the begin of a fault of all the last of them decides without Redis:
	// twice redisTimeout.
	notices = 2 * redisTimeout
)

// violation is a broken promise.
type violation struct {
	key   int32
	class class
	text  string
}

// verdict is the judgment on a scene.
type verdict struct {
	operations, failed int
	exact              int // operations that no fault excuses
	keys               int // with an order that Porcupine has found
	blurred            int // denials of these keys that a fault excuses
	over               int // hits beyond a limit that faults excuse
	undecided          int // keys that Porcupine gave up
	slow               int // spans of slow answers, which excuse their sidecars as faults do
	violations         []violation
	blunt              []string // wrong limits that the judge would not notice
}

func (v *verdict) add(o verdict) {
	v.exact, v.keys, v.blurred, v.over = v.exact+o.exact, v.keys+o.keys, v.blurred+o.blurred, v.over+o.over
	v.undecided, v.violations = v.undecided+o.undecided, append(v.violations, o.violations...)
}

// judge judges the keys of a scene.
type judge struct {
	*scene

	of      map[int32][]op // the requests of each key, in the order in which they were sent
	pace    *pace
	alone   []fault // when a sidecar may decide without Redis: faults, and spans of slow answers
	excused []span  // the same with the time to settle, merged, in order
	calm    []span  // between them
	whole   []span  // when all are without Redis for certain
}

// span is a time, in Unix nanoseconds.
type span struct {
	from, to int64
	sidecars uint8 // without Redis, a bit each
}

// has reports whether a request began and ended in the span.
func (p *span) has(o *op) bool { return o.sent >= p.from && o.received < p.to }

// check judges a scene. Each key with an exact count has an order that Porcupine finds. Each other
// key keeps the bound of its limit in each interval, and denies for a reason.
func (s *scene) check() verdict {
	v := verdict{operations: len(s.ops)}
	j := &judge{scene: s, of: make(map[int32][]op), pace: s.pace()}
	slow := s.slowSpans()
	v.slow, j.alone = len(slow), append(slices.Clone(s.Faults), slow...)
	last := int64(0)
	for i := range s.ops {
		o := s.ops[i]
		if o.result == drive.Failed {
			v.failed++
		}
		if o.result != drive.Unreached {
			j.of[o.key] = append(j.of[o.key], o)
		}
		last = max(last, o.received)
	}
	for _, ops := range j.of {
		slices.SortStableFunc(ops, func(x, y op) int { return cmp.Compare(x.sent, y.sent) })
	}
	j.divide(last + 1)
	for c := range classes {
		v.add(j.class(c))
		v.blunt = append(v.blunt, j.blunt(c)...)
	}
	return v
}

// blunt judges the class as if its limit were one lower, and one higher. A judge that finds nothing
// then misses a defect of one hit. Hits in leases are out of sight, so a limit with leases is only
// too high where it is twice as high.
func (j *judge) blunt(c class) (missed []string) {
	limit := j.Limits[c]
	higher := limit + 1
	if c.leased() {
		higher = 5 * limit
	}
	for _, wrong := range []uint32{limit - 1, higher} {
		s, other := *j.scene, *j
		s.Limits[c], other.scene = wrong, &s
		if !other.blames(c) {
			missed = append(missed, fmt.Sprintf("%v: a limit of %d in the place of %d is not noticed", c, wrong, limit))
		}
	}
	return missed
}

// blames reports whether a key of the class breaks a promise.
func (j *judge) blames(c class) bool {
	for key, ops := range j.of {
		if ops[0].class() == c && len(j.key(key, ops).violations) > 0 {
			return true
		}
	}
	return false
}

// class judges the keys of a class.
func (j *judge) class(c class) (v verdict) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for key, ops := range j.of {
		if ops[0].class() != c {
			continue
		}
		group.Go(func() error {
			one := j.key(key, ops)
			mu.Lock()
			defer mu.Unlock()
			v.add(one)
			return nil
		})
	}
	_ = group.Wait() // no function fails
	slices.SortStableFunc(v.violations, func(x, y violation) int { return cmp.Compare(x.key, y.key) })
	return v
}

// slowSpans returns the spans of slow answers of each sidecar.
func (s *scene) slowSpans() (all []fault) {
	last := make([]int, s.Sidecars) // of all, from 1; 0: none
	for i := range s.ops {
		o := &s.ops[i]
		if o.received-o.sent < int64(s.Slow) || o.result == drive.Unreached || int(o.sidecar) >= s.Sidecars {
			continue
		}
		if n := last[o.sidecar]; n > 0 && o.sent <= all[n-1].To {
			all[n-1].To = max(all[n-1].To, o.received)
			continue
		}
		all = append(all, fault{From: o.sent, To: o.received, Sidecar: int(o.sidecar)})
		last[o.sidecar] = len(all)
	}
	return all
}

// divide divides the time of a scene until its end.
func (j *judge) divide(last int64) {
	first := int64(0)
	for _, f := range slices.SortedFunc(slices.Values(j.alone), func(x, y fault) int { return cmp.Compare(x.From, y.From) }) {
		p := span{f.From, f.To + int64(settles), 1<<j.Sidecars - 1}
		if f.Sidecar >= 0 {
			p.sidecars = 1 << f.Sidecar
		}
		if n := len(j.excused); n > 0 && p.from <= j.excused[n-1].to {
			j.excused[n-1].to = max(j.excused[n-1].to, p.to)
			j.excused[n-1].sidecars |= p.sidecars
		} else {
			j.excused = append(j.excused, p)
		}
		if from := f.From + int64(notices); f.Sidecar < 0 && from < f.Back {
			j.whole = append(j.whole, span{from: from, to: f.Back})
		}
	}
	for _, p := range j.excused {
		if p.from > first {
			j.calm = append(j.calm, span{from: first, to: p.from})
		}
		first = p.to
	}
	if first < last {
		j.calm = append(j.calm, span{from: first, to: last})
	}
}

// withoutRedis reports whether the sidecar may have decided a request without Redis.
func (j *judge) withoutRedis(o *op, settles time.Duration) bool {
	return slices.ContainsFunc(j.alone, func(f fault) bool {
		return (f.Sidecar < 0 || f.Sidecar == int(o.sidecar)) && o.received >= f.From && o.sent <= f.To+int64(settles)
	})
}

// key judges one key.
func (j *judge) key(key int32, ops []op) (v verdict) {
	c := ops[0].class()
	broken := func(format string, args ...any) {
		v.violations = append(v.violations, violation{key, c, fmt.Sprintf(format, args...)})
	}
	if c.counts() {
		j.count(c, ops, &v, broken)
		return v
	}
	j.interval(c, ops, &v, broken)
	j.reasons(c, ops, broken)
	return v
}

package main

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/promise"
)

// interval judges a key whose limit admits more as time goes by. Away from faults, and where all
// sidecars are without Redis, the limit is exact. Else the parts of sidecars without Redis come on
// top.
func (j *judge) interval(c class, ops []op, v *verdict, broken func(string, ...any)) {
	l := j.limit(c)
	for _, p := range j.calm {
		in := within(ops, p)
		v.exact += len(in)
		if over := overOf(l, in); over > 0 {
			broken("%d hits beyond the limit of %d, away from faults", over, l.Requests)
		}
	}
	for _, p := range j.whole {
		in := within(ops, p)
		for i := range in { // without Redis its clock is as the last answer has shown it
			guess := j.pace.before(in[i].sidecar, p.from-int64(notices))
			in[i].sent, in[i].received = in[i].sent-guess, in[i].received+guess
		}
		if over := overOf(l, in); over > 0 {
			broken("%d hits beyond the limit of %d, while no sidecar had Redis", over, l.Requests)
		}
	}
	for _, p := range j.excused {
		p.from, p.to = p.from-int64(l.Period), p.to+int64(l.Period)
		in, wide := within(ops, p), l
		wide.Requests += uint32(j.parts(p) * float64(l.Requests))
		wide.Burst += uint32(j.parts(p) * float64(l.Burst))
		v.over += overOf(l, in)
		if over := overOf(wide, in); over > 0 {
			broken("%d hits beyond %d, the bound near a fault of a limit of %d", over, wide.Requests, l.Requests)
		}
	}
}

// parts returns the part of a limit that sidecars without Redis may admit beside Redis: the part of
// each, at most all of it together. The part of one follows its load, so it has a quarter more.
func (j *judge) parts(p span) float64 {
	return min(1, 1.25/float64(j.Sidecars)*float64(bits.OnesCount8(p.sidecars)))
}

// within returns the requests that began and ended in a span.
func within(ops []op, p span) (in []op) {
	for i := range ops {
		if p.has(&ops[i]) {
			in = append(in, ops[i])
		}
	}
	return in
}

// overOf returns the hits beyond a limit, a lower bound.
func overOf(l algorithms.Limit, ops []op) int {
	history := make([]promise.Request, 0, len(ops))
	for i := range ops {
		if o := &ops[i]; o.result == drive.Allowed {
			history = append(history, promise.Request{Sent: o.sent, Received: o.received, Keys: []int{0}, Admitted: true})
		}
	}
	return promise.Over(promise.Judge([]algorithms.Limit{l}, history, 0))
}

// sentUntil returns how many requests were sent until an instant.
func sentUntil(ops []op, at int64) int {
	n, _ := slices.BinarySearchFunc(ops, at+1, func(o op, at int64) int { return cmp.Compare(o.sent, at) })
	return n
}

// reasons judges the denials away from faults: each has its reason in requests that may have been
// charged before. Half a limit may lie in leases of other sidecars.
func (j *judge) reasons(c class, ops []op, broken func(string, ...any)) {
	l := j.limit(c)
	charges := slices.DeleteFunc(slices.Clone(ops), func(o op) bool { return o.result == drive.Denied })
	for _, p := range j.calm {
		found, in := 0, within(ops, p)
		switch c {
		case bucketExact:
			found = j.bucketReasons(l, in, p.from <= ops[0].sent)
		case bucketLeased:
			for i := range in {
				o := &in[i]
				if from := o.sent - 2*int64(l.Period); o.result == drive.Denied && from >= p.from && j.mayBeIn(charges, from, o.received) < int(l.Requests)/2 {
					found++
				}
			}
		default:
			need := int(l.Requests)
			if c.leased() {
				need /= 2
			}
			for i := range in {
				o := &in[i]
				from := o.sent - o.sent%int64(l.Period)
				known := from < p.from || o.received >= from+int64(l.Period) || o.sent < from+j.pace.before(o.sidecar, o.sent)
				if o.result == drive.Denied && !known && j.mayBeIn(charges, from, o.received) < need {
					found++
				}
			}
		}
		if found > 0 {
			broken("%d denials without a reason, away from faults", found)
		}
	}
}

// pace is the time of the slowest answer of each sidecar in each tenth of a second.
type pace struct {
	first   int64 // in tenths since 1970
	slowest [][]int64
}

const tenth = int64(100 * time.Millisecond)

func (s *scene) pace() *pace {
	p := &pace{slowest: make([][]int64, s.Sidecars)}
	if len(s.ops) > 0 {
		p.first = s.ops[0].sent / tenth
	}
	for i := range s.ops {
		o := &s.ops[i]
		if int(o.sidecar) >= s.Sidecars || o.sent/tenth < p.first || o.sent/tenth-p.first > mostTenths {
			continue
		}
		all, at := &p.slowest[o.sidecar], int(o.sent/tenth-p.first)
		for len(*all) <= at {
			*all = append(*all, 0)
		}
		(*all)[at] = max((*all)[at], o.received-o.sent)
	}
	return p
}

// mostTenths bounds the length of a scene.
const mostTenths = 24 * 60 * 60 * 10

// before returns the time of the slowest answer of a sidecar in the two seconds before an instant.
// A microsecond, the precision of Redis's clock, is added. A denial may outlive its reason by this
// time. The sidecar remembers a denial for as long as Redis said, from the answer on (see
// docs/redis.md). The sidecar knows the clock of Redis as well.
func (p *pace) before(sidecar uint8, at int64) (slowest int64) {
	if int(sidecar) < len(p.slowest) {
		all, last := p.slowest[sidecar], at/tenth-p.first
		for at := max(0, last-20); at <= last && at < int64(len(all)); at++ {
			slowest = max(slowest, all[at])
		}
	}
	return slowest + int64(time.Microsecond)
}

// mayBeIn returns how many requests may have been charged in a time away from faults, without slow
// ones.
func (s *scene) mayBeIn(charges []op, from, to int64) (n int) {
	for i := sentUntil(charges, to) - 1; i >= 0 && charges[i].sent >= from-int64(s.Slow); i-- {
		if charges[i].received >= from {
			n++
		}
	}
	return n
}

// bucketReasons returns the number of denials of a bucket without a reason. At their instants the
// bucket had a hit, although each request charged as late as it can. A bucket that is not new may
// have charges of a fault. After its first hit that was admitted it has none.
func (j *judge) bucketReasons(l algorithms.Limit, ops []op, isNew bool) (found int) {
	full, period, rate := int64(l.Capacity())*int64(l.Period), int64(l.Period), int64(l.Requests)
	var charges, denied []op
	for i := range ops {
		if ops[i].result == drive.Denied {
			denied = append(denied, ops[i])
		} else {
			charges = append(charges, ops[i])
		}
	}
	byEnd := slices.SortedFunc(slices.Values(charges), func(x, y op) int { return cmp.Compare(x.received, y.received) })
	level, at, known := full, int64(0), isNew
	next := 0
	refill := func(now int64) {
		if at > 0 {
			level = min(full, level+rate*min(now-at, full/rate))
		}
		at = now
	}
	for i := range denied {
		d := &denied[i]
		for ; next < len(byEnd) && byEnd[next].received <= d.sent; next++ {
			o := &byEnd[next]
			refill(o.received)
			level -= period
			others := int64(sentUntil(charges, o.received)) - 1 - endedBefore(byEnd, o.sent)
			if o.result == drive.Allowed && (!known || level < -others*period) {
				level, known = -others*period, true // the bucket had its hit
			}
		}
		refill(d.sent)
		pending := int64(sentUntil(charges, d.received) - next)
		if known && level-pending*period >= period+rate*j.pace.before(d.sidecar, d.sent) {
			found++
		}
	}
	return found
}

// endedBefore returns how many requests ended before an instant.
func endedBefore(byEnd []op, at int64) int64 {
	n, _ := slices.BinarySearchFunc(byEnd, at, func(o op, at int64) int { return cmp.Compare(o.received, at) })
	return int64(n)
}

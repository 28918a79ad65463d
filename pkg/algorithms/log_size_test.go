package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Apply takes the memory that SizeAfter says. A log has memory for less than eight times its
// entries.
func TestALogTakesTheMemoryThatItSaysBefore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var g Log
		l := Limit{Algorithm: SlidingWindowLog, Requests: rapid.Uint32Range(1, 200).Draw(rt, "requests"), Period: time.Second}
		now := Instant(0)
		for range rapid.IntRange(1, 300).Draw(rt, "charges") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 0, 1, time.Millisecond, 10 * time.Millisecond, 900 * time.Millisecond}).Draw(rt, "wait"))
			var p Pending
			for range rapid.IntRange(1, 2).Draw(rt, "pending") {
				p, _ = g.Decide(l, now, p, rapid.SampledFrom([]int64{1, 1, 1, 3, 0, -1, -5}).Draw(rt, "hits"), rapid.Bool().Draw(rt, "count rejected"))
			}
			before, says := g.Size(), g.SizeAfter(l, now, p)
			g.Apply(l, now, p)
			if got := g.Size(); got > says || says > before && got != says {
				rt.Fatalf("a log of %d bytes takes %d after a charge; SizeAfter said %d", before, got, says)
			}
			if length := len(g.ring); length >= logShrinks && 8*g.Len() <= length && p.charged {
				rt.Fatalf("a log of %d entries has memory for %d", g.Len(), length)
			}
		}
	})
}

// A log that must not grow keeps its size, and never admits more than its limit.
func TestALogInPlaceIsStricterAndNoLarger(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var g Log
		l := Limit{Algorithm: SlidingWindowLog, Requests: rapid.Uint32Range(1, 20).Draw(rt, "requests"), Period: time.Second}
		now, size := Instant(0), rapid.IntRange(0, 5).Draw(rt, "hits before")
		var admitted []logged // all hits that passed
		for i := range rapid.IntRange(1, 100).Draw(rt, "charges") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 1, 10 * time.Millisecond, 300 * time.Millisecond, time.Second}).Draw(rt, "wait"))
			hits := rapid.SampledFrom([]int64{1, 1, 2, 7}).Draw(rt, "hits")
			p, d := g.Decide(l, now, Pending{}, hits, rapid.Bool().Draw(rt, "count rejected"))
			if d.Allowed {
				admitted = append(admitted, logged{now, uint64(hits)})
			}
			if i <= size {
				g.Apply(l, now, p)
			} else if before := g.Size(); g.Len() > 0 {
				g.ApplyInPlace(l, now, p)
				if got := g.Size(); got > before {
					rt.Fatalf("a log of %d bytes has grown to %d", before, got)
				}
			} else {
				g.Apply(l, now, p)
			}
			var passed uint64
			for j := len(admitted) - 1; j >= 0 && now.Sub(admitted[j].at) < l.Period; j-- {
				passed += admitted[j].hits
			}
			if passed > uint64(l.Requests) {
				rt.Fatalf("%d hits passed in a period; the limit is %d", passed, l.Requests)
			}
			if _, after := g.Decide(l, now, Pending{}, 0, false); d.Allowed && after.Remaining != d.Remaining {
				rt.Fatalf("%d hits remain after the charge; the decision said %d", after.Remaining, d.Remaining)
			}
		}
	})
}

package owed_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	. "github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// Hits keep coming while a process tells the hits of an outage. The slow model is a list of
// instants that wait, and one of a call.
func TestABookSaysWhetherHitsOfBeforeAnInstantWait(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowLog, algorithms.TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := charge(a, 1)
				c.Limit.Requests, c.Limit.Period = 1000, 365*24*time.Hour
				var b Book
				var waiting, flying []algorithms.Instant
				var call *Telling
				now := start
				for range rapid.IntRange(1, 40).Draw(t, "steps") {
					now += algorithms.Instant(rapid.IntRange(1, 50).Draw(t, "ms")) * algorithms.Instant(time.Millisecond)
					clocks := Clocks{Redis: now, Here: now}
					switch step := rapid.SampledFrom([]string{"add", "tell", "applied", "refused", "unknown"}).Draw(t, "step"); {
					case step == "add":
						b.Add(&c, Late{At: now})
						waiting = append(waiting, now)
					case step == "tell" && call == nil:
						for _, e := range b.Of(c.Key, clocks) {
							call, flying, waiting = b.Tell(e, clocks), waiting, nil
						}
					case step == "tell", call == nil:
					default:
						outcome := map[string]Outcome{"applied": Applied, "refused": Refused, "unknown": Unknown}[step]
						if b.Told(call, outcome, clocks); outcome != Applied {
							waiting = append(waiting, flying...)
						}
						call, flying = nil, nil
					}
					at := start + algorithms.Instant(rapid.IntRange(0, int(now-start)).Draw(t, "at"))
					want := slices.ContainsFunc(slices.Concat(waiting, flying), func(x algorithms.Instant) bool { return x < at })
					if got := b.OwesBefore(Clocks{Redis: at, Here: at}); got != want {
						t.Fatalf("hits of before %v wait: %t; want %t, as %v wait and %v are on the way", at, got, want, waiting, flying)
					}
				}
			})
		})
	}
}

// An end of a holder is told in its turn, as the hits are.
func TestABookSaysWhetherEventsOfBeforeAnInstantWait(t *testing.T) {
	var b Book
	c := charge(algorithms.FixedWindow, 1)
	c.Hold = &store.Hold{Phase: algorithms.HoldEnd, Holder: store.HolderOf([]byte("a")), AtMost: time.Minute}
	b.AddEvent(&c, start, 0)
	for _, after := range []time.Duration{0, time.Millisecond} {
		at := start.Add(after)
		if got, want := b.OwesBefore(Clocks{Redis: at, Here: at}), after > 0; got != want {
			t.Errorf("events of before %v later wait: %t; want %t", after, got, want)
		}
	}
}

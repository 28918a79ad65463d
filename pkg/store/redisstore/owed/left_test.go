package owed_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	. "github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// restarted returns the Book of a process that starts at now, after the end of the process of b.
// The entries are JSON meanwhile.
func restarted(t interface{ Fatal(args ...any) }, b *Book, end, now Clocks) *Book {
	next := new(Book)
	for _, l := range b.Leave(end) {
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var read Left
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if err := next.Return(&read, now, calendarOf); err != nil {
			t.Fatal(err)
		}
	}
	b.Look(time.Time{}, end, func(e Entry) { t.Fatal("the process that ended still owes", e.Charge()) })
	return next
}

// calendarOf makes a calendar in UTC.
func calendarOf(of LeftCalendar) (*algorithms.Calendar, error) {
	return algorithms.NewCalendar(algorithms.CalendarSpec{
		Unit: of.Unit, Count: of.Count, FirstHit: of.FirstHit, Day: of.Day, At: of.At, Starts: of.Starts,
	})
}

// tellings returns all hits and events by key and instant, and the hits of buckets by key.
func tellings(b *Book, at Clocks) map[string]int64 {
	all := make(map[string]int64)
	b.Look(time.Time{}, at, func(e Entry) {
		what := b.Tell(e, at)
		if what == nil {
			return
		}
		for i, c := range what.Charges {
			name := fmt.Sprintf("%s of %d in %v, %d of window, fix %v", c.Key, c.Limit.Requests, c.Limit.Period, what.Of, what.Fix)
			if c.Hold != nil {
				name += fmt.Sprintf(", holder %+v", *c.Hold)
			}
			if a := c.Limit.Algorithm; a == algorithms.TokenBucket || a == algorithms.TokenBucketInteger {
				name = string(c.Key)
			} else {
				name += fmt.Sprint(" at ", what.Instant[i])
			}
			all[name] += c.Hits
		}
	})
	return all
}

// Hits and holders that were left and returned are told as if the process had not ended.
func TestALeftBookTellsWhatTheBookTells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var lives, ends Book
		now := Clocks{Redis: start, Here: start - 700_000}
		pass := func(name string) {
			d := algorithms.Instant(rapid.Int64Range(0, 4_000).Draw(t, name) * int64(time.Millisecond))
			now.Redis, now.Here = now.Redis+d, now.Here+d
		}
		back := 0 // a bucket's hits that are given back are one entry for each instant
		add := func() {
			pass("pause")
			a := rapid.SampledFrom(algorithms.RateAlgorithms()).Draw(t, "algorithm")
			c := charge(a, rapid.Int64Range(1, 8).Draw(t, "hits"))
			c.Limit.Requests = rapid.SampledFrom([]uint32{10, 10, 25}).Draw(t, "requests")
			late := Late{At: now.Redis - algorithms.Instant(rapid.Int64Range(0, 500).Draw(t, "age")*int64(time.Millisecond))}
			switch {
			case rapid.IntRange(0, 4).Draw(t, "kind") == 0 && a != algorithms.TokenBucketInteger && a != algorithms.TokenBucket && back < 10:
				c.Hits, late.Fix, back = -c.Hits, Fix{Left: "left", Target: "target", Was: "was"}, back+1
			case a == algorithms.FixedWindow && rapid.Bool().Draw(t, "here"):
				c.Key, late.Here, late.At = []byte("counter"), true, late.At-700_000
			case rapid.Bool().Draw(t, "part"):
				full := now.Redis.Add(time.Duration(rapid.Int64Range(-3_000, 3_000).Draw(t, "full")) * time.Millisecond)
				late.Part = store.Part{Full: full, Mine: rapid.Uint32Range(1, 4).Draw(t, "mine"), Of: 4}
			}
			lives.Add(&c, late)
			ends.Add(&c, late)
		}
		hold := func() {
			c := charge(algorithms.Concurrency, 1)
			c.Limit.Period = 0
			phase := rapid.SampledFrom([]algorithms.HoldPhase{algorithms.HoldEnd, algorithms.HoldBegun}).Draw(t, "phase")
			c.Hold = &store.Hold{Phase: phase, Holder: store.Holder{rapid.Byte().Draw(t, "holder")}, AtMost: time.Minute}
			lives.AddEvent(&c, now.Redis, 0)
			ends.AddEvent(&c, now.Redis, 0)
		}
		some := func() {
			for range rapid.IntRange(0, 15).Draw(t, "adds") {
				add()
			}
			hold()
		}
		some()
		if rapid.Bool().Draw(t, "told before") {
			told := func(b *Book) {
				b.Look(time.Time{}, now, func(e Entry) {
					if what := b.Tell(e, now); what != nil {
						b.Told(what, Applied, now)
					}
				})
			}
			told(&lives)
			told(&ends)
			some()
		}
		end := now
		pass("away")
		again := restarted(t, &ends, end, now)
		pass("later")
		got, want := tellings(again, now), tellings(&lives, now)
		for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger} {
			name := a.String()
			if diff := got[name] - want[name]; diff < 0 || diff > 1 {
				t.Fatalf("%s: after a restart %d hits are told, want %d or one more", name, got[name], want[name])
			}
			delete(got, name)
			delete(want, name)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("after a restart Redis is told\n%v\nwant\n%v", got, want)
		}
	})
}

// Nothing of an earlier process is of the future. While a clock has gone back no time passes.
func TestHitsOfAnEarlierProcessAreNeverOfTheFuture(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		for _, step := range []time.Duration{-time.Hour, -time.Second, 0, time.Second, time.Hour} {
			var b Book
			c := charge(a, 7)
			b.Add(&c, Late{At: start})
			end := Clocks{Redis: start.Add(time.Second), Here: start}
			now := Clocks{Redis: end.Redis.Moved(step), Here: start}
			before := b.Owed(&c, end.Redis)
			next := restarted(t, &b, end, now)
			if got := next.Owed(&c, now.Redis); step <= 0 && got != before || step == time.Hour && got > 0 {
				t.Errorf("%v, a step of %v: %d hits are owed, %d before", a, step, got, before)
			}
			next.Look(time.Time{}, now, func(e Entry) {
				if what := next.Tell(e, now); what.Instant[0] > now.Redis || what.Of > now.Redis {
					t.Errorf("%v, a step of %v: hits are %v after now", a, step, what.Instant[0].Sub(now.Redis))
				}
			})
		}
	}
}

// Return never panics. The book stays within its bounds with any file.
func TestReturnBelievesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		now := Clocks{Redis: start, Here: start}
		numbers := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, 1, int64(start), 1 << 62, -1, 10_000_000_000}))
		for range 3 {
			l := Left{
				Key: []byte("k"), Here: rapid.Bool().Draw(t, "here"),
				Saved: Clocks{algorithms.Instant(numbers.Draw(t, "redis")), algorithms.Instant(numbers.Draw(t, "here"))},
				Part:  store.Part{Full: algorithms.Instant(numbers.Draw(t, "full")), Mine: rapid.Uint32().Draw(t, "mine"), Of: rapid.Uint32().Draw(t, "of")},
			}
			for range rapid.IntRange(0, 3).Draw(t, "charges") {
				c := LeftCharge{
					Limit: algorithms.Limit{
						Algorithm: algorithms.Algorithm(rapid.Byte().Draw(t, "algorithm") % 8), Requests: rapid.Uint32().Draw(t, "requests"),
						Period: time.Duration(numbers.Draw(t, "period")), Extra: algorithms.Extra{Burst: rapid.SampledFrom([]uint32{0, 1, 1 << 31}).Draw(t, "burst")},
					},
					Hits: numbers.Draw(t, "hits"), At: algorithms.Instant(numbers.Draw(t, "at")), Here: algorithms.Instant(numbers.Draw(t, "event here")),
				}
				if rapid.Bool().Draw(t, "hold") {
					c.Hold = &store.Hold{Phase: algorithms.HoldPhase(rapid.Byte().Draw(t, "phase") % 6), AtMost: time.Duration(numbers.Draw(t, "at most"))}
				}
				l.Charges = append(l.Charges, c)
			}
			_ = b.Return(&l, now, calendarOf)
		}
		for _, at := range []Clocks{now, {now.Redis.Add(time.Hour), now.Here.Add(time.Hour)}} {
			b.Look(time.Time{}, at, func(e Entry) {
				what := b.Tell(e, at)
				if what == nil {
					return
				}
				for _, of := range what.Instant {
					if of > at.Redis || of < 0 {
						t.Fatalf("an instant %v after now", time.Duration(of-at.Redis))
					}
				}
				b.Told(what, Refused, at)
			})
		}
		end := Clocks{start.Add(100 * 365 * 24 * time.Hour), start.Add(100 * 365 * 24 * time.Hour)}
		b.Look(time.Time{}, end, func(Entry) {})
		if hits, holders := b.Size(); hits+holders > 0 {
			t.Fatalf("after 100 years %d entries of hits and %d holders are left", hits, holders)
		}
	})
}

package redisstore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 4)) }

// family is the limits that one state is charged under: of one key, algorithm and period.
type family struct {
	key    string
	limits []algorithms.Limit
}

// families returns families with limits of any size. Limits of sliding_window_log are small, as
// configuration bounds them.
func families(r *rand.Rand, name string, n int) []family {
	all := make([]family, n)
	for i := range all {
		f := &all[i]
		f.key = fmt.Sprintf("%s %d", name, i)
		all := append(algorithms.RateAlgorithms(), algorithms.CalendarAlgorithms()...)
		a := all[r.IntN(len(all))]
		period := randomPeriod(r)
		if a.HasCalendar() {
			period = max(time.Second, period.Truncate(time.Second))
		}
		c := randomCalendar(r, a)
		for range 1 + r.IntN(3) { // a fleet may run old and new rules at once
			l := randomLimit(r, a, period)
			if l.Calendar = c; r.IntN(8) == 0 {
				l.Calendar = randomCalendar(r, a)
			}
			f.limits = append(f.limits, l)
		}
		if slices.ContainsFunc(f.limits, func(l algorithms.Limit) bool { return l.Calendar != f.limits[0].Calendar }) {
			f.key += changing
		}
	}
	return all
}

// changing ends the key of a family with several calendars.
const changing = " changing"

// randomCalendar returns a calendar for an algorithm that needs one, mostly.
func randomCalendar(r *rand.Rand, a algorithms.Algorithm) *algorithms.Calendar {
	if !a.HasCalendar() || r.IntN(8) == 0 {
		return nil
	}
	if r.IntN(4) == 0 {
		return calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, FirstHit: true})
	}
	spec := algorithms.CalendarSpec{
		Unit: algorithms.CalendarDay + algorithms.CalendarUnit(r.IntN(4)), Count: 1 + r.Uint32N(3),
		Zone: time.FixedZone("", r.IntN(100_000)-50_000), At: time.Duration(r.IntN(86_400)) * time.Second,
	}
	if r.IntN(4) == 0 { // with summer time
		names := []string{"Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo"}
		spec.Zone, _ = zones.Load(names[r.IntN(len(names))])
	}
	switch spec.Unit {
	case algorithms.CalendarWeek:
		spec.Starts = time.Weekday(r.IntN(7))
	case algorithms.CalendarMonth, algorithms.CalendarYear:
		spec.Day = uint8(1 + r.IntN(31))
	default:
	}
	return calendarOf(spec)
}

// calendarOf returns the calendar of a valid description.
func calendarOf(s algorithms.CalendarSpec) *algorithms.Calendar {
	c, _ := algorithms.NewCalendar(s)
	return c
}

// randomPeriod returns a period in whole microseconds.
func randomPeriod(r *rand.Rand) time.Duration {
	some := []time.Duration{
		algorithms.MinPeriod, algorithms.MinPeriod + Granularity, 7 * time.Millisecond, time.Second, 10 * time.Second, time.Minute,
		time.Minute + Granularity, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, algorithms.MaxPeriod, algorithms.MaxPeriod - Granularity,
	}
	if r.IntN(4) > 0 {
		return some[r.IntN(len(some))]
	}
	return algorithms.MinPeriod + time.Duration(r.Int64N(int64(algorithms.MaxPeriod-algorithms.MinPeriod))>>r.IntN(40)).Truncate(Granularity)
}

func randomLimit(r *rand.Rand, a algorithms.Algorithm, period time.Duration) algorithms.Limit {
	l := algorithms.Limit{Algorithm: a, Period: period, Requests: randomCount(r)}
	switch a {
	case algorithms.SlidingWindowLog:
		l.Requests %= 50
	case algorithms.TokenBucketInteger:
		l.Requests = uint32(min(int64(l.Requests), int64(period)))
	case algorithms.TokenBucket:
		if l.Requests > 0 && r.IntN(2) == 0 {
			l.Burst = max(1, randomCount(r))
		}
	case algorithms.FixedWindow, algorithms.SlidingWindowCounter, algorithms.Concurrency, algorithms.Learned, algorithms.Escalation:
	case algorithms.CalendarWindow, algorithms.CalendarCounter:
	}
	return l
}

func randomCount(r *rand.Rand) uint32 {
	some := []uint32{1, 2, 3, 5, 7, 10, 12, 100, 999, 1_000_000, 0, math.MaxUint32, math.MaxUint32 - 1}
	switch r.IntN(6) {
	case 0:
		return r.Uint32()
	case 1:
		return r.Uint32N(20)
	default:
		return some[r.IntN(len(some))]
	}
}

// randomCharges returns the charges of a request. After the last decisions the hits often just fit,
// or just do not.
func randomCharges(r *rand.Rand, all []family, last []algorithms.Decision) []store.Charge {
	charges := make([]store.Charge, 1+r.IntN(4)*r.IntN(2))
	rule := 0
	for i := range charges {
		f := &all[r.IntN(len(all))]
		if i > 0 && r.IntN(4) == 0 { // a key twice
			f = &all[indexOf(all, string(charges[i-1].Key))]
		}
		l := f.limits[0]
		if r.IntN(5) == 0 {
			l = f.limits[r.IntN(len(f.limits))]
		}
		rule += r.IntN(2)
		charges[i] = store.Charge{
			Key: []byte(f.key), Limit: l, Hits: randomHits(r, l, last), Rule: rule,
			Mode: store.Mode(r.IntN(4)), CountRejected: r.IntN(3) == 0,
		}
		if r.IntN(2) == 0 {
			charges[i].Mode = store.Enforce
		}
		if i > 0 && charges[i-1].Rule == rule { // the charges of a rule have its mode
			charges[i].Mode = charges[i-1].Mode
		}
	}
	return charges
}

func indexOf(all []family, key string) int {
	for i := range all {
		if all[i].key == key {
			return i
		}
	}
	return 0
}

func randomHits(r *rand.Rand, l algorithms.Limit, last []algorithms.Decision) int64 {
	capacity := int64(l.Capacity())
	remaining := capacity
	if len(last) > 0 {
		remaining = int64(last[r.IntN(len(last))].Remaining)
	}
	some := []int64{
		1, 1, 1, 2, 3, 0, remaining, remaining + 1, capacity, capacity + 1, capacity / 2, capacity / 3, algorithms.MaxHits,
		r.Int64N(capacity + 1), -1, -1, -2, -remaining, -capacity / 2, -r.Int64N(capacity + 1), -algorithms.MaxHits,
	}
	return min(some[r.IntN(len(some))], algorithms.MaxHits)
}

// randomPause returns a pause in whole microseconds, often until just before or after the next
// change of a decision.
func randomPause(r *rand.Rand, l algorithms.Limit, d algorithms.Decision, now algorithms.Instant) time.Duration {
	token := l.Period / time.Duration(max(1, l.Requests))
	window := l.Period - time.Duration(now)%l.Period
	some := []time.Duration{
		0, 0, 0, 0, Granularity, token, token + Granularity, d.RetryAfter, d.RetryAfter - Granularity, d.RetryAfter + Granularity,
		d.ResetAfter, d.ResetAfter - Granularity, window, window - Granularity, window + Granularity, l.Period, l.Period - Granularity,
		time.Duration(r.Int64N(int64(l.Period))), time.Duration(r.Int64N(int64(l.Period))) / 16, 2 * l.Period,
	}
	pause := min(max(0, some[r.IntN(len(some))]), 2*algorithms.MaxPeriod)
	if r.IntN(2) == 0 {
		return pause.Truncate(Granularity)
	}
	return (pause + Granularity - 1).Truncate(Granularity)
}

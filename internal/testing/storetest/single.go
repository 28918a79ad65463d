package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func singleCases() []Case {
	return []Case{
		{"every_algorithm_admits_exactly_its_limit", admitsExactlyItsLimit},
		{"the_same_hits_pass_after_retry_after_and_not_before", retryAfterIsTight},
		{"a_denial_changes_nothing", denialChangesNothing},
		{"a_probe_charges_nothing", probeChargesNothing},
		{"hits_are_taken_whole_or_not_at_all", hitsAreTakenWhole},
		{"a_refund_gives_back_at_most_what_was_used", refundClamps},
		{"count_rejected_goes_into_debt", countRejectedGoesIntoDebt},
		{"a_limit_of_zero_denies_everything", zeroDenies},
		{"keys_of_any_bytes_are_independent", keysAreIndependent},
		{"algorithm_and_period_make_states_of_their_own", algorithmAndPeriodSeparate},
		{"the_largest_limits_do_not_overflow", largestLimits},
	}
}

func admitsExactlyItsLimit(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 10))
		for i := range uint64(10) {
			if d := e.wantAdmitted(t, true, c)[0]; d.Remaining != 9-i {
				t.Errorf("%v: remaining after %d hits = %d; want %d", a, i+1, d.Remaining, 9-i)
			}
		}
		d := e.wantAdmitted(t, false, c)[0]
		if d.Remaining != 0 || d.RetryAfter <= 0 {
			t.Errorf("%v: decision over the limit = %+v; want none remaining and a wait", a, d)
		}
	}
}

func retryAfterIsTight(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 7))
		c.Hits = 5
		e.wantAdmitted(t, true, c)
		d := e.wantAdmitted(t, false, c)[0]
		e.Sleep(d.RetryAfter - time.Microsecond)
		e.wantAdmitted(t, false, c)
		e.Sleep(time.Microsecond)
		e.wantAdmitted(t, true, c)
	}
}

func denialChangesNothing(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 5))
		e.wantAdmitted(t, true, c)
		big := c
		big.Hits = 5
		for range 3 {
			e.wantAdmitted(t, false, big)
		}
		e.wantRemaining(t, c, 4)
	}
}

func probeChargesNothing(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c, probe := charge("k", limit(a, 2)), charge("k", limit(a, 2))
		probe.Hits = 0
		for range 5 {
			if d := e.wantAdmitted(t, true, probe)[0]; d.Remaining != 2 {
				t.Errorf("%v: a probe found %d remaining; want 2", a, d.Remaining)
			}
		}
		e.wantAdmitted(t, true, c, c)
		if d := e.wantAdmitted(t, true, probe)[0]; d.Remaining != 0 {
			t.Errorf("%v: a probe at the limit found %d remaining; want 0", a, d.Remaining)
		}
	}
}

func hitsAreTakenWhole(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 10))
		c.Hits = 6
		e.wantAdmitted(t, true, c)
		e.wantAdmitted(t, false, c)
		c.Hits = 4
		e.wantAdmitted(t, true, c)
		c.Hits = 11
		e.wantAdmitted(t, false, c)
	}
}

func refundClamps(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c, refund := charge("k", limit(a, 10)), charge("k", limit(a, 10))
		refund.Hits = -3
		e.wantAdmitted(t, true, refund) // of a key never used
		e.wantRemaining(t, c, 10)
		c.Hits = 8
		e.wantAdmitted(t, true, c)
		if d := e.wantAdmitted(t, true, refund)[0]; d.Remaining != 5 {
			t.Errorf("%v: remaining after a refund of 3 of 8 = %d; want 5", a, d.Remaining)
		}
		refund.Hits = -algorithms.MaxHits
		if d := e.wantAdmitted(t, true, refund)[0]; d.Remaining != 10 {
			t.Errorf("%v: remaining after a refund of everything = %d; want 10", a, d.Remaining)
		}
	}
}

func countRejectedGoesIntoDebt(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 10))
		c.CountRejected = true
		c.Hits = 15
		e.wantAdmitted(t, false, c)
		c.Hits = 0
		e.wantAdmitted(t, false, c) // past the limit, as a probe sees
		c.Hits = -5
		e.wantAdmitted(t, true, c)
		c.Hits = 0
		e.wantAdmitted(t, true, c) // at the limit
		c.Hits = 1
		c.CountRejected = false
		e.wantAdmitted(t, false, c)
	}
}

func zeroDenies(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		for _, counted := range []bool{false, true} {
			c := charge("k", limit(a, 0))
			c.CountRejected = counted
			if d := e.wantAdmitted(t, false, c)[0]; d.RetryAfter <= 0 || d.RetryAfter > time.Minute || d.RetryAfter != d.ResetAfter {
				t.Errorf("%v: decision of a ban = %+v; want equal waits of at most a minute", a, d)
			}
		}
	}
}

func keysAreIndependent(t *testing.T, e Env) {
	keys := []string{"", "a", "b", "ab", "a_b", "a\x00b", "a\nb", "\xff\xfe", "{a}", "a:b", string(make([]byte, 1000))}
	for _, a := range EveryRate() {
		for _, k := range keys {
			if d := e.wantAdmitted(t, true, charge(k, limit(a, 1)))[0]; d.Remaining != 0 {
				t.Errorf("%v: key %q has %d remaining after its one hit", a, k, d.Remaining)
			}
			e.wantAdmitted(t, false, charge(k, limit(a, 1)))
		}
	}
}

func algorithmAndPeriodSeparate(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		for _, period := range []time.Duration{time.Minute, time.Hour, 90 * time.Second} {
			l := algorithms.Limit{Algorithm: a, Requests: 1, Period: period}
			e.wantAdmitted(t, true, charge("k", l))
			e.wantAdmitted(t, false, charge("k", l))
		}
	}
}

func largestLimits(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		if a == algorithms.SlidingWindowLog {
			continue // rules bound the size
		}
		l := algorithms.Limit{Algorithm: a, Requests: algorithms.MaxHits, Period: 1000 * time.Hour}
		c := store.Charge{Key: []byte("k"), Limit: l, Hits: algorithms.MaxHits, CountRejected: true}
		e.wantAdmitted(t, true, c)
		for range 3 {
			e.wantAdmitted(t, false, c)
		}
		c.Hits = -algorithms.MaxHits
		for range 4 {
			e.wantAdmitted(t, true, c)
		}
		e.wantRemaining(t, c, algorithms.MaxHits)
		if a.HasWindows() {
			c.Key, c.Hits, c.Exact = []byte("large"), algorithms.MaxHits, true // not leased, as a budget is not
			c.Limit.SetPerPeriod(algorithms.MaxCount)
			for i := range uint64(4) {
				e.wantAdmitted(t, true, c)
				e.wantRemaining(t, c, algorithms.MaxCount-(i+1)*algorithms.MaxHits)
			}
			c.Limit.SetPerPeriod(4*algorithms.MaxHits + 1)
			e.wantAdmitted(t, false, charge("large", c.Limit), charge("large", c.Limit))
			e.wantAdmitted(t, true, charge("large", c.Limit))
			e.wantRemaining(t, c, 0)
		}
	}
}

// EveryRate returns every algorithm with a period, with or without a calendar.
func EveryRate() []algorithms.Algorithm {
	return append(algorithms.RateAlgorithms(), algorithms.CalendarAlgorithms()...)
}

// EveryAlgorithm returns EveryRate and concurrency.
func EveryAlgorithm() []algorithms.Algorithm {
	return append(algorithms.Algorithms(), algorithms.CalendarAlgorithms()...)
}

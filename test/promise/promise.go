// Package promise judges a service by the promises of its limits, from outside. The only facts are
// the times of requests and of their answers. The service may be one process, or a fleet that
// shares its counts.
//
// The package knows only the earliest and the latest instant of each decision, not the instant
// itself. A promise is broken when no instants in those spans keep it: no false alarm. The spans
// leave little open where each key gets far more requests than its limit admits. A window that
// admits one too many is full even without the requests that may belong to the next.
//
//	fixed_window            requests that can be distributed over the windows they may belong to,
//	                        none with too many
//	token_bucket            in any interval at most burst + requests * its length / period, of what
//	                        certainly fell in it
//	token_bucket_integer    the same, and for each charge what a nanosecond makes
//	sliding_window_log      in any interval shorter than the period at most requests, of what
//	                        certainly fell in it
//	sliding_window_counter  as fixed_window; and the estimate, of what certainly fell in either
//	                        window, at the latest instant
//
// A second oracle finds a service that denies too much: one process decides the same requests, each
// in the middle of its span (see [Replay]).
package promise

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// granularity of instants in Redis, in nanoseconds: a decision may seem to fall so much before it
// was asked for.
const granularity = int64(time.Microsecond)

// A Request was answered. The decision fell somewhere from Sent to Received, by one clock for all
// requests. The clock of the counts must be the same.
type Request struct {
	Sent, Received int64 // Unix nanoseconds
	Keys           []int // numbers of the limits that the request charges with one hit each
	Admitted       bool
}

// span is from when to when something admitted may have been decided.
type span struct{ from, to int64 }

// A Count is the hits on one key.
type Count struct {
	Admitted int
	Over     int // hits admitted beyond the promise: a lower bound
	Expected int // hits that one process would have admitted
}

// Judge counts the hits on each key, which has the limit with the same number. All limits enforce,
// and denied hits do not count. Requests sent before since, in Unix nanoseconds, count for Over
// alone.
func Judge(limits []algorithms.Limit, history []Request, since int64) []Count {
	counts := make([]Count, len(limits))
	spans := make([][]span, len(limits))
	expected := Replay(limits, history)
	for i := range history {
		r := &history[i]
		for _, key := range r.Keys {
			if r.Admitted {
				spans[key] = append(spans[key], span{r.Sent - r.Sent%granularity, r.Received})
			}
			if r.Sent >= since && r.Admitted {
				counts[key].Admitted++
			}
			if r.Sent >= since && expected[i] {
				counts[key].Expected++
			}
		}
	}
	for key := range counts {
		counts[key].Over = over(limits[key], spans[key])
	}
	return counts
}

// Over returns the hits of all keys that no promise allows.
func Over(counts []Count) int {
	n := 0
	for _, c := range counts {
		n += c.Over
	}
	return n
}

// over returns how many hits on one key are beyond its limit's promise.
func over(l algorithms.Limit, spans []span) int {
	slices.SortFunc(spans, func(x, y span) int { return cmp.Compare(x.to, y.to) })
	switch l.Algorithm {
	case algorithms.FixedWindow:
		return overWindows(l, spans)
	case algorithms.SlidingWindowCounter:
		return max(overWindows(l, spans), overEstimate(l, spans))
	case algorithms.SlidingWindowLog:
		return overLog(l, spans)
	default:
		return overBucket(l, spans)
	}
}

// overWindows returns how many hits do not find room in the windows they may belong to, however
// they are distributed. Each window in order takes first the hits that no later window can take
// (Glover 1967, on matching in convex graphs).
func overWindows(l algorithms.Limit, spans []span) int {
	byFirst := make(map[int64][]int64) // the last windows of the spans
	first, last := int64(-1), int64(-1)
	for _, s := range spans {
		from, to := window(s.from, l.Period), window(s.to, l.Period)
		byFirst[from] = append(byFirst[from], to)
		if first < 0 || from < first {
			first = from
		}
		last = max(last, to)
	}
	homeless := 0
	var waiting []int64
	for w := first; w <= last; w++ {
		waiting = append(waiting, byFirst[w]...)
		slices.Sort(waiting)
		waiting = waiting[min(len(waiting), int(l.Requests)):]
		for len(waiting) > 0 && waiting[0] <= w {
			homeless++
			waiting = waiting[1:]
		}
	}
	return homeless
}

// overEstimate returns by how much the estimate of each window was at most beyond the limit, summed
// up. Spans are in the order of their ends; only spans inside one window count.
func overEstimate(l algorithms.Limit, spans []span) int {
	counts, worst := make(map[int64]int64), make(map[int64]int64)
	period := int64(l.Period)
	for _, s := range spans {
		w := window(s.to, l.Period)
		if window(s.from, l.Period) != w {
			continue
		}
		counts[w]++
		// The latest of these hits was decided at s.to or before; the estimate was at least this.
		estimate := counts[w]*period + counts[w-1]*((w+1)*period-s.to)
		worst[w] = max(worst[w], hits(estimate-int64(l.Requests)*period, period))
	}
	total := int64(0)
	for _, n := range worst {
		total += n
	}
	return int(total)
}

// overBucket returns how many hits must go so that no interval has more than the bucket's promise.
func overBucket(l algorithms.Limit, spans []span) int {
	slack := int64(0)
	if l.Algorithm == algorithms.TokenBucketInteger {
		slack = int64(l.Requests) // of each charge: a nanosecond
	}
	period, rate := int64(l.Period), int64(l.Requests)
	t := newPeaks(spans, func(from int64) int64 { return rate * from })
	return gone(t, spans, period-slack, func(s span) int64 {
		most := t.max(0, s.to) - rate*(s.to-t.origin)
		return most - int64(l.Capacity())*period
	})
}

// overLog returns how many hits must go so that no interval shorter than the period has more than
// the limit.
func overLog(l algorithms.Limit, spans []span) int {
	t := newPeaks(spans, func(int64) int64 { return 0 })
	return gone(t, spans, 1, func(s span) int64 { return t.max(s.to-int64(l.Period)+1, s.to) - int64(l.Requests) })
}

// gone adds the hits of spans, which are in the order of their ends. Where an interval that ends
// with a span has an excess, the hit that began last goes. Each later interval with another hit of
// the excess has that hit, too. So no fewer hits suffice.
func gone(t *peaks, spans []span, value int64, excess func(s span) int64) (n int) {
	var begins []int64 // of the hits that stay, in order
	for _, s := range spans {
		t.add(s.from, value)
		at, _ := slices.BinarySearch(begins, s.from)
		for begins = slices.Insert(begins, at, s.from); excess(s) > 0; n++ {
			last := len(begins) - 1
			t.add(begins[last], -value)
			begins = begins[:last]
		}
	}
	return n
}

// hits rounds up to whole ones.
func hits(parts, whole int64) int64 { return (parts + whole - 1) / whole }

// window returns the number of the aligned window of an instant in Unix nanoseconds.
func window(at int64, period time.Duration) int64 { return at / int64(period) }

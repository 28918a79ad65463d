// Package quota divides one limit among clients that count by themselves: Envoys with RLQS. A
// [Division] is the ledger of one limit. A division is a pure machine: reports, acknowledgements
// and instants in, orders out.
//
// # Why a division never admits too many
//
// A client has a token bucket and spends from it without asking. The ledger keeps a level, and for
// each client the tokens and the rate of all buckets that the client may still have. Three rules
// hold at every instant:
//
//   - level + all tokens is at most the burst.
//   - The rates are at most the limit's rate. The level gains by the rest of the rate alone.
//   - A bucket that may start with tokens is debited from the level before its order is sent.
//
// Proof. Let V be the level and all tokens in buckets. Each bucket holds at most its size, so V
// is at most the burst. The level and the buckets gain at most the limit's rate together. A debit
// moves tokens from the level to a bucket, and raises V at most by nothing. Every admitted hit
// lowers V by one, and V is never below 0. So an interval of length T admits at most burst + rate
// × T. The meter of RFC 2697 with one rate has the same bound.
//
// # A change
//
// A client may spend the old and the new bucket of a change until all its threads use the new one.
// Envoy 1.40 keeps the fill ratio of a changed bucket, which nobody else sees. So a change is
// debited as a full bucket. Both buckets gain for at most [Settle]. The rates have the larger one
// of the two. So the debit has the smaller rate × Settle more. Afterwards, and only after the
// acknowledgement, the old tokens and the old rate are free.
//
// An order is in force until its delivery, its time to live and the drift of the client's clock are
// over. The end of the stream changes nothing. An order that may come after the order before
// has expired may find no bucket. Such an order is a change too.
//
// A change that the level can never pay has two steps: the client first gets no bucket at all,
// which is debited nothing.
//
// # Hits that this process counts
//
// Requests of RLS on the same limit are one more client, the own one. Weir keeps the bucket.
// Each change is a new bucket, as for the others, and requests on their way may use the one before
// until [Settle] is over. Orders for the client arrive at once and do not expire. The bucket may
// start empty: then nothing is debited but the gain of the bucket before.
//
// Where processes have parts of a limit, each has such a client: see [Division.JoinHere]. No bucket
// of that client starts empty. All its buckets end with the process. A process that was stopped
// must use [Division.Deny] before it decides such requests again, as others may have its part.
//
// Without a division a count decides these requests, and it goes on below a division. [Begin] takes
// all hits from the count, and they are the first level. Requests that have begun before find the
// gain of [Handover] at most, which the level pays. Of a window they find one hit in sixteen, which
// nobody else gets. Until the window ends, the limit of the division is the rest of the window.
// [Division.End] takes hits from the count until it has at most the level, and the gain of a window
// that is not over. No other client has a bucket then.
package quota

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Bounds of time. An Envoy that does not keep them can admit more, see docs/rlqs.md.
const (
	TTL      = 20 * time.Second       // of an order, from its arrival
	Renew    = 5 * time.Second        // from an order to its repetition
	Delivery = 10 * time.Second       // from sending an order to the last instant at which it may arrive
	Settle   = 250 * time.Millisecond // from the arrival of an order to the last thread of the client that uses it
	Idle     = 10 * time.Minute       // without a request, then a client loses its bucket

	drift  = 1024             // a clock of a client may be wrong by one part in so many
	turn   = 10 * time.Second // that a client keeps its bucket while others wait for one
	expiry = Delivery + TTL + TTL/drift + Settle
)

// token is one token in the units of a ledger. Rates are these units in a second.
const token = 1e9

// MostHits is the most hits of a limit, and of its burst, that can be divided.
const MostHits = algorithms.MaxDivided

// Limit is the limit of a division: at most Burst + Rate × T in each interval of length T. Both
// are billionths of a hit; Rate is in a second. The zero Limit admits nothing.
type Limit struct{ Rate, Burst int64 }

// LimitOf returns the limit of a division for a rate limit. The error is of
// [algorithms.Limit.CheckDivided]. A fixed window becomes a bucket of an eighth of its hits and the rate of the rest. Each
// interval of the window's length then has at most the hits of a window.
func LimitOf(l algorithms.Limit) (Limit, error) {
	if err := l.CheckDivided(); err != nil {
		return Limit{}, err
	}
	n := l.PerPeriod()
	switch {
	case n == 0:
		return Limit{}, nil
	case l.Algorithm == algorithms.TokenBucket:
		return Limit{Rate: scale(int64(n)*token, time.Second, l.Period), Burst: int64(l.Capacity()) * token}, nil
	}
	burst := int64(max(1, n/8)) * token
	rest := int64(n+1)*token - burst // hits are whole: burst and rest may be nearly one more
	return Limit{Rate: scale(rest-rest/(8*drift)-1, time.Second, l.Period), Burst: burst}, nil
}

// LimitOfAll returns a limit that keeps all limits of a rule, of which there is at least one.
func LimitOfAll(limits []algorithms.Limit) (all Limit, err error) {
	for i, l := range limits {
		next, err := LimitOf(l)
		if err != nil {
			return Limit{}, err
		}
		if i > 0 {
			next.Rate, next.Burst = min(next.Rate, all.Rate), min(next.Burst, all.Burst)
		}
		all = next
	}
	return all, nil
}

// scale returns n × by / of, rounded down. The result must fit.
func scale(n int64, by, of time.Duration) int64 {
	high, low := bits.Mul64(uint64(n), uint64(by))
	if high >= uint64(of) {
		return 1<<63 - 1
	}
	result, _ := bits.Div64(high, low, uint64(of))
	return int64(min(result, 1<<63-1))
}

// Bucket is a token bucket of a client: Fill tokens in Interval seconds, and at most Max. Without
// Max it is no bucket: every request is denied.
type Bucket struct{ Max, Fill, Interval uint32 }

// rate returns the rate of the bucket by the fastest clock that a client may have.
func (b Bucket) rate() int64 {
	if b.Max == 0 {
		return 0
	}
	r := (int64(b.Fill)*token + int64(b.Interval) - 1) / int64(b.Interval)
	return r + (r+drift-1)/drift
}

func (b Bucket) tokens() int64 { return int64(b.Max) * token }

// bucketOf returns the bucket of so many tokens whose rate is at most rate, or no bucket. Envoy
// 1.40 takes a bucket that differs from the one before in its interval alone as the same one.
func bucketOf(size, rate int64, before Bucket) Bucket {
	rate -= (rate + drift - 1) / drift
	interval, fill := int64(1), rate/token
	for fill < 64 && interval < token && size > 0 {
		interval *= 10
		fill = scale(rate, time.Duration(interval), token)
	}
	b := Bucket{Max: uint32(size / token), Fill: uint32(fill), Interval: uint32(interval)}
	if b.Max == before.Max && b.Fill == before.Fill && b.Interval != before.Interval {
		b.Fill--
	}
	if b.Max == 0 || b.Fill == 0 {
		return Bucket{}
	}
	return b
}

// shares divides a rate by demands, each at most rate, and writes the shares over them. First
// max-min: the smallest demands are met in full. The rest goes half equally, half by demand. The
// sum is at most rate. order is memory of the same length.
func shares(demands []int64, rate int64, order []int) {
	n := int64(len(demands))
	if n == 0 {
		return
	}
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(demands[a], demands[b]) })
	left, sum := rate, int64(0)
	for i, client := range order {
		demands[client] = min(demands[client], left/(n-int64(i)))
		left -= demands[client]
		sum += demands[client]
	}
	for i := range demands {
		more := left / 2 / n
		if sum > 0 {
			more += scale(left/2, time.Duration(demands[i]), time.Duration(sum))
		}
		demands[i] += more
	}
}

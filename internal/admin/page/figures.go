package page

import (
	"iter"
	"math"
	"slices"
	"time"
)

// Source is the state of the service that the page shows beside the answers of the admin service.
// Each function may be nil, and must be safe for concurrent use.
type Source struct {
	Totals func() Totals
	Rules  func() iter.Seq[Rule]
	Store  func() Store
	Loads  func() Loads
	Ready  func() string // the reason why requests should not come now; "" while they should
}

// Totals is the counts of requests since the start.
type Totals struct {
	Passed, Denied, Failed uint64 // requests
	Unmatched, NoDomain    uint64 // descriptors that no rule matched, and descriptors of domains without rules
	Latency                Latency
}

// Latency is a histogram of the times of requests since the start.
type Latency struct {
	Bounds []float64 // of the buckets in seconds, rising
	Counts []uint64  // requests up to each bound, and at the end all requests
}

// quantile returns a time in seconds below which the part q of the requests lies that came between
// two histograms; 0 without requests. Within a bucket the times count as evenly spread. Above the
// last bound the result is that bound.
func (l *Latency) quantile(before *Latency, q float64) float64 {
	n := len(l.Bounds)
	if len(l.Counts) != n+1 || n == 0 {
		return 0
	}
	since := func(i int) float64 {
		if i < 0 {
			return 0
		}
		if len(before.Counts) != n+1 || before.Counts[i] > l.Counts[i] {
			return float64(l.Counts[i])
		}
		return float64(l.Counts[i] - before.Counts[i])
	}
	rank := q * since(n)
	if rank == 0 {
		return 0
	}
	for i, bound := range l.Bounds {
		if since(i) < rank {
			continue
		}
		low := 0.0
		if i > 0 {
			low = l.Bounds[i-1]
		}
		return low + (bound-low)*(rank-since(i-1))/(since(i)-since(i-1))
	}
	return l.Bounds[n-1]
}

// Rule is a rule with its counts.
type Rule interface {
	ID() any      // comparable; the same while the counts of the rule go on
	Tally() Tally // since the start
	About() About
}

// Tally is the counts of decisions by a rule.
type Tally struct{ Passed, Denied, Shadowed uint64 }

func (t Tally) sum() uint64 { return t.Passed + t.Denied + t.Shadowed }

// About describes a rule.
type About struct {
	Domain string   `json:"domain"`
	Path   string   `json:"path"`
	File   string   `json:"file"`
	Line   int      `json:"line"`
	Limits []string `json:"limits"` // in words
	Notes  []string `json:"notes,omitempty"`
}

// Store is the health of the store of the counts.
type Store struct {
	Kind    string    `json:"kind"`           // memory or Redis
	Reason  string    `json:"reason"`         // why Redis does not answer; "" while it does
	Since   time.Time `json:"since,omitzero"` // the last change
	Without uint64    `json:"without"`        // requests decided without Redis since the start
	Owed    int       `json:"owed"`           // keys with hits that Redis does not know of
	Fleet   int       `json:"fleet"`          // processes that share Redis; 0: not known
	Keys    int       `json:"keys"`           // in memory
	Places  int       `json:"places"`         // that they take
	Max     int       `json:"max"`            // bound of Places
	Latency Latency   `json:"-"`              // of calls to Redis
	P99     float64   `json:"p99"`            // of these in seconds, over the last step
	Evicted uint64    `json:"evicted"`        // keys forgotten before their time since the start
	Full    uint64    `json:"full"`           // new keys that found memory full
}

// Loads is the outcome of loading rules.
type Loads struct {
	Hash      string    `json:"hash"`
	LoadedAt  time.Time `json:"loadedAt,omitzero"`
	TriedAt   time.Time `json:"triedAt,omitzero"`
	Errors    []string  `json:"errors"`
	Warnings  []string  `json:"warnings"`
	Succeeded uint64    `json:"succeeded"`
	Refused   uint64    `json:"refused"`
	Sources   []string  `json:"sources"`
	Rules     int       `json:"rules"`
}

// point is the rates between two samples.
type point struct {
	At     int64   `json:"t"`  // milliseconds since 1970, of the end
	Passed float64 `json:"ok"` // per second, as the next two
	Denied float64 `json:"no"`
	Failed float64 `json:"bad"`
	P50    float64 `json:"p50"` // seconds, as the next
	P99    float64 `json:"p99"`
}

// rate returns the events per second between two counts, rounded to three digits after the point.
func rate(now, before uint64, step time.Duration) float64 {
	if now <= before || step <= 0 {
		return 0
	}
	return math.Round(float64(now-before)/step.Seconds()*1000) / 1000
}

// between returns the point between two samples.
func between(before, now *Totals, from, to time.Time) point {
	step := to.Sub(from)
	return point{
		At:     to.UnixMilli(),
		Passed: rate(now.Passed, before.Passed, step), Denied: rate(now.Denied, before.Denied, step), Failed: rate(now.Failed, before.Failed, step),
		P50: now.Latency.quantile(&before.Latency, 0.5), P99: now.Latency.quantile(&before.Latency, 0.99),
	}
}

// since drops the points before an instant.
func since(all []point, at time.Time) []point {
	first := slices.IndexFunc(all, func(p point) bool { return p.At >= at.UnixMilli() })
	if first < 0 {
		return all[:0]
	}
	return append(all[:0], all[first:]...)
}

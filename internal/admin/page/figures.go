package page

import (
	"math"
	"slices"
	"time"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// quantile returns a time in seconds below which the part q of the requests lies that came between
// two histograms; 0 without requests. Within a bucket the times count as evenly spread. Above the
// last bound the result is that bound.
func quantile(before, now *adminv1.Latency, q float64) float64 {
	bounds, counts, was := now.GetBounds(), now.GetCounts(), before.GetCounts()
	n := len(bounds)
	if len(counts) != n+1 || n == 0 {
		return 0
	}
	since := func(i int) float64 {
		if i < 0 {
			return 0
		}
		if len(was) != n+1 || was[i] > counts[i] {
			return float64(counts[i])
		}
		return float64(counts[i] - was[i])
	}
	rank := q * since(n)
	if rank == 0 {
		return 0
	}
	for i, bound := range bounds {
		if since(i) < rank {
			continue
		}
		low := 0.0
		if i > 0 {
			low = bounds[i-1]
		}
		return low + (bound-low)*(rank-since(i-1))/(since(i)-since(i-1))
	}
	return bounds[n-1]
}

// Rule is a rule with its counts.
type Rule struct {
	ID    any // comparable; the same while the counts of the rule go on
	Tally Tally
	About func() About
}

// Tally is the counts of decisions by a rule since the start.
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

func between(from, to sample) point {
	step, before, now := to.at.Sub(from.at), from.is.GetRequests(), to.is.GetRequests()
	return point{
		At:     to.at.UnixMilli(),
		Passed: rate(now.GetPassed(), before.GetPassed(), step),
		Denied: rate(now.GetDenied(), before.GetDenied(), step),
		Failed: rate(now.GetFailed(), before.GetFailed(), step),
		P50:    quantile(before.GetLatency(), now.GetLatency(), 0.5),
		P99:    quantile(before.GetLatency(), now.GetLatency(), 0.99),
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

package redisstore

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// BenchmarkHolders is the time in which Redis runs the script, of one request in each call. The
// requests are a plain charge, a begin, and an end at another cost. Under concurrency so many other
// holders of the key hold, and the plain charge is of a token bucket. The phases come in turns, in
// rounds, and the fastest round counts: Redis measures by the clock of a shared machine.
func BenchmarkHolders(b *testing.B) {
	for _, a := range algorithms.Algorithms() {
		others := []int{0}
		if a == algorithms.Concurrency {
			others = []int{0, 10, 10_000}
		}
		for _, n := range others {
			name := a.String()
			if a == algorithms.Concurrency {
				name = fmt.Sprintf("%v/held=%d", a, n)
			}
			b.Run(name, func(b *testing.B) { benchHolders(b, a, n) })
		}
	}
}

func benchHolders(b *testing.B, a algorithms.Algorithm, others int) {
	b.Helper()
	s := open(b, urlOf("redis", shared(b).Address()), Options{})
	l, plain := benchLimit(a), benchLimit(a)
	if a == algorithms.Concurrency {
		l, plain = inFlight(100_000_000), benchLimit(algorithms.TokenBucket)
	}
	key := string(benchKey(1))
	for n := range others {
		ask(b, s, begin(key, l, fmt.Sprint("other ", n), 1))
	}
	const round = 50
	least := [3]float64{math.MaxFloat64, math.MaxFloat64, math.MaxFloat64} // microseconds of Redis in a round: plain, begin, end
	calls := 0
	decisions := make([]algorithms.Decision, 1)
	for b.Loop() {
		for phase := range least {
			command(b, s, "CONFIG", "RESETSTAT")
			for n := range round {
				c := store.Charge{Key: []byte(key), Limit: plain, Hits: 1}
				if phase > 0 {
					c = withHolder(algorithms.HoldPhase(phase), key, l, fmt.Sprint(calls, n), int64(phase))
				}
				if _, err := store.Take(b.Context(), s, []store.Charge{c}, decisions); err != nil {
					b.Fatal(err)
				}
			}
			least[phase] = min(least[phase], scriptTime(b, s))
		}
		calls += round
	}
	for phase, unit := range []string{"plain-µs", "begin-µs", "end-µs"} {
		b.ReportMetric(least[phase]/round, unit)
	}
	b.ReportMetric(0, "ns/op")
}

// scriptTime returns the microseconds in which Redis ran the script since its statistics began.
func scriptTime(tb testing.TB, s *Store) float64 {
	tb.Helper()
	text, err := command(tb, s, "INFO", "commandstats").ToString()
	if err != nil {
		tb.Fatal(err)
	}
	found := regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`).FindStringSubmatch(text)
	if found == nil {
		tb.Fatalf("no script in %q", text)
	}
	us, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		tb.Fatal(err)
	}
	return us
}

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// take asks the sidecars in turns for n hits of each key, several at once. The result is the number
// of admitted hits of each key.
func (l *ledger) take(ctx context.Context, f *fleet, n int, value string) []int {
	const atOnce = 5
	admitted := make([]int, len(l.limits))
	var mu sync.Mutex // guards admitted
	for key := range l.limits {
		var askers sync.WaitGroup
		for asker := range atOnce {
			askers.Go(func() {
				for i := asker; i < n; i += atOnce {
					if l.ask(ctx, f.clients[i%len(f.clients)], key, value) == "OK" {
						mu.Lock()
						admitted[key]++
						mu.Unlock()
					}
				}
			})
		}
		askers.Wait()
	}
	return admitted
}

// awaitLeft waits until a client learns that so many hits of each key are left, give or take slack.
func (l *ledger) awaitLeft(t *testing.T, c client, want []int, value string, slack int) {
	t.Helper()
	for key, limit := range l.limits {
		parts.Eventually(t, func() string {
			if got := c.probe(t, limit.Algorithm.String(), value); got > want[key]+slack || got < want[key]-slack {
				return fmt.Sprintf("%v, %s: %d hits are left, want %d", limit.Algorithm, value, got, want[key])
			}
			return ""
		})
	}
}

// left returns how many hits of each key are left, as a client says.
func (l *ledger) left(t *testing.T, c client, value string) []int {
	t.Helper()
	var left []int
	for _, limit := range l.limits {
		left = append(left, c.probe(t, limit.Algorithm.String(), value))
	}
	return left
}

// each is a list with the same number for each key.
func (l *ledger) each(n int) []int { return slices.Repeat([]int{n}, len(l.limits)) }

// near reports whether numbers differ by at most slack.
func near(got, want []int, slack int) bool {
	return slices.EqualFunc(got, want, func(x, y int) bool { return x <= y+slack && x >= y-slack })
}

// less returns each number less n.
func less(numbers []int, n int) []int {
	var all []int
	for _, number := range numbers {
		all = append(all, number-n)
	}
	return all
}

// outage takes Redis away by a disturbance without an end of its own, or else by the network, and
// returns the end.
func outage(t *testing.T, r *parts.Redis, p *parts.Proxy, d disturbance) (end func()) {
	t.Helper()
	do := func(command []string) {
		if _, err := r.Do(parts.Soon(t), command...); err != nil {
			t.Fatal(err)
		}
	}
	switch {
	case d.stops:
		if err := r.Pause(parts.Soon(t)); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := r.Continue(); err != nil {
				t.Fatal(err)
			}
		}
	case len(d.end) > 0:
		do(d.begin)
		return func() { do(d.end) }
	}
	p.Down()
	return func() {
		if err := p.Up(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnOutageInTheMiddleOfAPeriodCostsNoHitAndAdmitsNothingTooMany(t *testing.T) {
	t.Parallel()
	// Of the value part the requests never reach the limit. Of the value all, they ask for more than
	// the limit in the outage.
	const limit, before, during = 240, 60, 60
	const unseen = (limit - before) / 64 // the part of the rest for hits of others that an answer does not show
	for _, sharing := range []string{"exact", "leased"} {
		for _, d := range append(disturbances()[2:], disturbance{name: "unreachable"}) {
			t.Run(sharing+", "+d.name, func(t *testing.T) {
				t.Parallel()
				r := startRedis(t, parts.RedisOptions{})
				p := parts.ProxyFor(t, r.Address())
				slack, stranded := 0, 0
				if sharing == "leased" {
					// A bucket gains while hits lie in a lease, and gets back the rest: an integer bucket one hit
					// less each time. The rest then need not be whole, and two sidecars have parts of it as each
					// has last seen it. Hits of a lease that are given back when Redis stops can be lost.
					slack, stranded = 10, 40
				}
				part, all := newLedger(limit, year*time.Second), newLedger(limit, year*time.Second)
				f := &fleet{}
				for range 2 {
					f.start(t, part.rules(), urlOf(p.Address()), "--sharing="+sharing, "--fleet-size=2")
				}
				f.awaitState(t, "closed")
				for value, l := range map[string]*ledger{"part": part, "all": all} {
					if got := l.take(t.Context(), f, before, value); !slices.Equal(got, l.each(before)) {
						t.Fatalf("before the outage: of %d requests %v passed", before, got)
					}
					for _, c := range f.clients {
						l.awaitLeft(t, c, l.each(limit-before), value, slack) // leases are back, and this sidecar knows it
					}
				}
				partLeft, allLeft := part.left(t, f.clients[0], "part"), all.left(t, f.clients[0], "all")

				breakers := f.opened(t)
				end := outage(t, r, p, d)
				for i, s := range f.sidecars {
					parts.Eventually(t, func() string {
						if s.metric(t, "weir_store_opened_total") > breakers[i] {
							return ""
						}
						f.clients[i].outcome(t.Context(), questions("fixed_window", "of nobody"))
						return "the breaker has not opened"
					})
				}
				if got := part.take(t.Context(), f, during, "part"); !slices.Equal(got, part.each(during)) {
					t.Errorf("in the outage: of %d requests %v passed, where %d hits were left", during, got, limit-before)
				}
				if got := all.take(t.Context(), f, 2*limit, "all"); !near(got, less(allLeft, unseen), stranded) {
					t.Errorf("in the outage: %v hits passed at both sidecars, want the %v that were left, each less %d", got, allLeft, unseen)
				}
				end()

				// A sidecar that knows nothing but the counts in Redis.
				fresh := &fleet{}
				fresh.start(t, part.rules(), urlOf(r.Address()), "--sharing=exact", patientFleet)
				fresh.awaitState(t, "closed")
				part.awaitLeft(t, fresh.clients[0], less(partLeft, during), "part", stranded)
				all.awaitLeft(t, fresh.clients[0], all.each(0), "all", stranded+unseen) // none where denied hits count
				f.awaitState(t, "closed")
				if got := all.take(t.Context(), f, limit, "all"); slices.Max(got) > stranded+unseen {
					t.Errorf("after the outage: %v more hits passed", got)
				}
				part.errorless(t)
				all.errorless(t)
				all.atMost(t, limit-stranded-unseen, 0)
			})
		}
	}
}

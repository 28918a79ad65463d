package e2e

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// admitted asks n times of each sidecar, of several at once, for one hit of a key, and returns how
// many of them passed.
func (f *fleet) admitted(t *testing.T, n int, pairs ...string) int {
	t.Helper()
	var passed atomic.Int64
	var askers sync.WaitGroup
	const atOnce = 5
	for _, c := range f.clients {
		for asker := range atOnce {
			askers.Go(func() {
				for i := asker; i < n; i += atOnce {
					switch outcome := c.outcome(t.Context(), questions(pairs...)); outcome {
					case "OK":
						passed.Add(1)
					case "OVER_LIMIT":
					default:
						t.Errorf("%v: %s", pairs, outcome)
					}
				}
			})
		}
	}
	askers.Wait()
	return int(passed.Load())
}

// probe asks one sidecar for the remaining hits of a key, without a hit.
func (c client) probe(t *testing.T, key, value string) int {
	t.Helper()
	return int(c.ask(t, 0, key, value).GetLimitRemaining())
}

// undisturbed repeats do, each time with a new value, until Redis has decided all of one run. A
// machine that is too busy decides some hits without Redis, and such a run proves nothing.
// undisturbed returns the value of that run.
func (f *fleet) undisturbed(t *testing.T, do func(value string)) string {
	t.Helper()
	value := ""
	parts.Eventually(t, func() string {
		value = fmt.Sprintf("fresh-%d", f.fresh.Add(1))
		before := f.away(t)
		do(value)
		if more := f.away(t) - before; more > 0 {
			return fmt.Sprintf("%d charges were decided without Redis", more)
		}
		return ""
	})
	return value
}

// use takes some hits of each of the keys, which all pass, and returns the value that the keys
// have. Each sidecar then has seen all of these hits.
func (f *fleet) use(t *testing.T, hits int, keys ...string) string {
	t.Helper()
	return f.undisturbed(t, func(value string) {
		for _, key := range keys {
			if got := f.admitted(t, hits/len(f.clients), key, value); got != hits {
				t.Errorf("%s: of %d requests %d passed", key, hits, got)
			}
			for _, c := range f.clients {
				c.probe(t, key, value)
			}
		}
	})
}

// left checks how many hits of a key Redis still admits, for each sidecar the same, and has them
// taken.
func (f *fleet) left(t *testing.T, want int, key, value string) {
	t.Helper()
	for i, c := range f.clients {
		got := 0
		parts.Eventually(t, func() string {
			before := f.away(t)
			got = c.probe(t, key, value)
			if f.away(t) > before {
				return "Redis was not always asked"
			}
			return ""
		})
		if got != want {
			t.Errorf("%s: sidecar %d says that %d hits are left, want %d", key, i, got, want)
		}
	}
	before := f.away(t)
	if got := f.admitted(t, few, key, value); got != want && f.away(t) == before {
		t.Errorf("%s: %d more requests passed, want %d", key, got, want)
	}
}

// holds checks that the limits hold over all sidecars: of keys that nobody has used, exactly as
// many hits pass as the limit says.
func (f *fleet) holds(t *testing.T) {
	t.Helper()
	for _, keys := range [][]string{{"window"}, {"bucket"}, {"window", "bucket"}} {
		got := 0
		f.undisturbed(t, func(value string) {
			var pairs []string
			for _, key := range keys {
				pairs = append(pairs, key, value)
			}
			got = f.admitted(t, few, pairs...)
		})
		// In several slots, a request that will be denied holds its reservation for a moment, and other
		// requests find those hits missing.
		short := f.slots && len(keys) > 1
		if got > few || got < few && !short {
			t.Errorf("%v: %d requests passed, want %d", keys, got, few)
		}
	}
}

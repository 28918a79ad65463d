// Package linear checks that a store is linearizable: package model explains a history of
// concurrent calls by an order of the calls. In that order no call comes before a call that had
// ended earlier. Porcupine
// (github.com/anishathalye/porcupine) searches the order.
//
// Calls of a history take, refund, probe, peek and reset a few keys, or begin and end holders. A
// reload changes the limits of these keys meanwhile. The clock moves only between two phases, while
// no call is under way. So the instant of each call is known, and every answer too, to the
// nanosecond.
//
// The package is for tests. For a long run, LINEAR_OPERATIONS in the environment replaces the
// number of calls of a test, and LINEAR_SEED its first seed.
package linear

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Env is the store under test.
type Env struct {
	Store store.Store
	Sleep func(time.Duration)       // moves the store's clock; nothing else does
	Now   func() algorithms.Instant // the store's clock
}

// Plan is the form of the histories.
type Plan struct {
	Keys    int  // of a history; calls of Take charge up to three
	Clients int  // that call at the same time
	Calls   int  // of each client in a phase
	Phases  int  // between which the clock moves
	Parts   bool // the keys of a request lie in several slots, so that less is promised: see model
	Holders bool // most charges begin or end a holder
}

// OneKey is many calls on one key.
func OneKey() Plan { return Plan{Keys: 1, Clients: 4, Calls: 6, Phases: 3} }

// Crossing is transactions over several keys.
func Crossing() Plan { return Plan{Keys: 3, Clients: 4, Calls: 5, Phases: 3} }

// Holding is transactions that begin and end a few holders of two keys.
func Holding() Plan { return Plan{Keys: 2, Clients: 4, Calls: 5, Phases: 3, Holders: true} }

// InParts is transactions whose keys lie in several slots of a cluster.
func InParts() Plan { return Plan{Keys: 3, Clients: 4, Calls: 5, Phases: 1, Parts: true} }

// Operations returns the number of calls of a test: n, a tenth of n with the race detector or
// -short, or LINEAR_OPERATIONS.
func Operations(tb testing.TB, n int) int {
	tb.Helper()
	return number(tb, "LINEAR_OPERATIONS", race.Scale(n))
}

// Seed returns the first seed of a test: 0, or LINEAR_SEED.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	return uint64(number(tb, "LINEAR_SEED", 0))
}

// number returns the number in a variable of the environment, or a default.
func number(tb testing.TB, name string, usual int) int {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		tb.Fatalf("%s: %q: must be a whole number", name, text)
	}
	return n
}

// longest is the time that the search for one order may take. Most searches take less than a
// millisecond.
const longest = time.Minute

// Check records histories of that many calls, starting with a seed, and fails the test for the
// first one without an order. Check returns the number of calls.
func Check(t *testing.T, e Env, p Plan, seed uint64, operations int) int {
	t.Helper()
	calls := 0
	for ; calls < operations && !t.Failed(); seed++ {
		history, about := record(t, e, p, seed)
		calls += len(history)
		if t.Failed() {
			break
		}
		switch porcupine.CheckOperationsTimeout(p.model(), history, longest) {
		case porcupine.Ok:
		case porcupine.Illegal:
			t.Errorf("seed %d: %s: the history has no order:\n%s%s", seed, about, describe(history), p.conflict(history))
		case porcupine.Unknown:
			t.Errorf("seed %d: %s: no order was found within %v:\n%s", seed, about, longest, describe(history))
		}
	}
	return calls
}

// Legal reports whether the first histories all have an order, for tests of this package.
func legal(t *testing.T, e Env, p Plan, histories int) bool {
	t.Helper()
	for seed := range uint64(histories) {
		history, _ := record(t, e, p, seed)
		if porcupine.CheckOperationsTimeout(p.model(), history, longest) != porcupine.Ok {
			return false
		}
	}
	return true
}

// conflict describes the first call that the longest order does not explain, and the model's answer
// there.
func (p Plan) conflict(history []porcupine.Operation) (text string) {
	m := p.model()
	_, info := porcupine.CheckOperationsVerbose(m, history, longest)
	parts := [][]porcupine.Operation{history}
	if m.Partition != nil {
		parts = m.Partition(history)
	}
	for n, orders := range info.PartialLinearizationsOperations() {
		var best []porcupine.Operation
		for _, order := range orders {
			if len(order) > len(best) {
				best = order
			}
		}
		keys, _ := m.Init().(model.Keys)
		found := make(map[int64]bool)
		for _, o := range best {
			c, _ := o.Input.(call)
			keys, _ = step(keys, c)
			found[o.Call] = true
		}
		slices.SortFunc(parts[n], func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		if i := slices.IndexFunc(parts[n], func(o porcupine.Operation) bool { return !found[o.Call] }); i >= 0 {
			c, _ := parts[n][i].Input.(call)
			_, want := step(keys, c)
			text += fmt.Sprintf("%d calls have an order; then call %d, %v, has the model's answer %v, with the states %+v\n", len(best), parts[n][i].Call, c, want, keys)
		}
	}
	return text
}

// describe returns a history, a line for each call, in the order of the calls.
func describe(history []porcupine.Operation) (text string) {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range history {
		text += fmt.Sprintf("%5d to %5d client %d: %v -> %v\n", o.Call, o.Return, o.ClientId, o.Input, o.Output)
	}
	return text
}

// random returns the choices of a seed.
func random(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 11)) //nolint:gosec // a history that can be chosen again
}

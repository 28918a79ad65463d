package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// budgetRules are rules of domain llm with a budget for each user.
const budgetRules = `
domain: llm
descriptors:
  - key: user
    rate_limit:
      budget: %s
      unit: year
      prices: {table: prices.csv, unknown: deny}
      hold: {begin: request, end: request_done, at_most: 1h}
`

// In thousandths of a millionth of money, a token costs the price here times 1000.
const budgetPrices = "model,input,cached_input,cache_write,output\nm,3,0.3,3.75,15\n"

// millionths is the price of a request, counted again.
func millionths(input, cached, written, output int) int {
	return (3000*(input-cached-written) + 300*cached + 3750*written + 15000*output + 999) / 1000
}

// spending is a request for an answer with a usage, and its prices.
type spending struct {
	path, body     string
	estimate, cost int
}

// spend returns a random request. The answer has at least half of the tokens of the estimate, and
// up to most times as many.
func spend(r *rand.Rand, w wire, most float64) spending {
	maximum := 20 + r.IntN(400)
	s := spending{body: fmt.Sprintf(w.body, maximum)}
	asked := (len(s.body) + 3) / 4
	within := func(n int) int { return n/2 + r.IntN(1+int(float64(n)*most)-n/2) }
	usage := parts.Usage{Input: within(asked), Output: within(maximum)}
	usage.Cached = r.IntN(usage.Input/8 + 1)
	if most > 1 && !strings.HasPrefix(w.name, "Gemini") { // has no cache writes in its answers
		usage.Written = r.IntN(2) // at a higher price than the input of the estimate
	}
	s.path = w.path + usage.Query()
	s.estimate = millionths(asked, 0, 0, maximum)
	s.cost = millionths(usage.Input, usage.Cached, usage.Written, usage.Output)
	return s
}

// startBudget serves budgetRules.
func startBudget(t *testing.T, budget string, args ...string) *sidecar {
	t.Helper()
	dir := t.TempDir()
	parts.Write(t, filepath.Join(dir, "rules.yaml"), fmt.Sprintf(budgetRules, budget))
	parts.Write(t, filepath.Join(dir, "prices.csv"), budgetPrices)
	s := startSidecarOn(t, dir, args...)
	s.awaitCounts(t, args)
	return s
}

// requestsToModels is how many requests a test sends to models.
func requestsToModels(t *testing.T) int {
	t.Helper()
	if text := os.Getenv("LLM_REQUESTS"); text != "" {
		return must.Get(strconv.Atoi(text))(t)
	}
	return 400
}

// A hundred requests at a time go to four APIs, as JSON and as streams. About two thirds fit the
// budget.
func TestABudgetIsSpentToTheMillionthAndNotBeyond(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		for name, most := range map[string]float64{"at most the estimate": 1, "up to three times": 3} {
			t.Run(store+"/"+name, func(t *testing.T) {
				t.Parallel()
				const atATime = 100
				n := requestsToModels(t)
				r := rand.New(rand.NewPCG(1, uint64(most))) //nolint:gosec // repeats
				var all []spending
				estimated, wished := 0, 0
				for i := range n {
					s := spend(r, wires()[i%len(wires())], most)
					all = append(all, s)
					estimated, wished = estimated+s.estimate, wished+s.cost
				}
				if most == 1 && estimated > 2*wished {
					t.Errorf("the estimates are %d, and the costs %d; want at most twice as much", estimated, wished)
				}
				budget := wished * 2 / 3
				s := startBudget(t, fmt.Sprintf("%d.%06d", budget/1e6, budget%1e6), start(t)...)
				e := startDeployed(t, "llm/envoy.yaml", parts.BackendFor(t), s.GRPC)
				client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atATime}}
				t.Cleanup(client.CloseIdleConnections)
				spent, passed, beyond := 0, 0, []int{}
				var mu sync.Mutex // guards the three
				var group sync.WaitGroup
				next := make(chan spending)
				for range atATime {
					group.Go(func() {
						for one := range next {
							a, err := e.send(parts.Soon(t), client, one.path, strings.NewReader(one.body), "x-user: alice")
							mu.Lock()
							switch {
							case err != nil || a.code != http.StatusOK && a.code != http.StatusTooManyRequests:
								t.Errorf("got %d (%v), want 200 or 429", a.code, err)
							case a.code == http.StatusOK:
								spent, passed, beyond = spent+one.cost, passed+1, append(beyond, one.cost-one.estimate)
							}
							mu.Unlock()
						}
					})
				}
				for _, one := range all {
					next <- one
				}
				close(next)
				group.Wait()
				slices.SortFunc(beyond, func(x, y int) int { return y - x })
				bound := budget
				for _, over := range beyond[:min(len(beyond), atATime)] {
					bound += max(over, 0)
				}
				t.Logf("%d of %d requests passed and spent %d of %d, at most %d", passed, n, spent, budget, bound)
				if spent > bound {
					t.Errorf("spent %d, want at most %d", spent, bound)
				}
				if passed < n/3 {
					t.Errorf("only %d of %d requests have passed", passed, n)
				}
				awaitLeft(t, dial(t, s.GRPC), "llm", "alice", max(0, budget-spent))
			})
		}
	}
}

func TestAKeyOfAHundredTokensServesItsFirstRequest(t *testing.T) {
	t.Parallel()
	const limit = 100
	s := startSidecar(t, `
domain: llm
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 100, hold: {begin: request, end: request_done, at_most: 1h}}
`)
	backend := parts.BackendFor(t)
	e := startDeployed(t, "llm/envoy.yaml", backend, s.GRPC)
	flight := e.think(t, 60, 5000, "midway=first", "bob")
	awaitGate(t, backend, "first", 1)
	if a := must.Get(e.send(parts.Soon(t), http.DefaultClient, "/v1/messages?", strings.NewReader(`{"max_tokens": 5000}`), "x-user: bob"))(t); a.code != http.StatusTooManyRequests {
		t.Errorf("a second request meanwhile: got %d, want 429", a.code)
	}
	backend.Open("first")
	flight.land(t)
	awaitLeft(t, dial(t, s.GRPC), "llm", "bob", limit-60)
}

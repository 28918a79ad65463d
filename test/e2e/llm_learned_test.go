package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

// Users ask one request after the other, whose answers have a lognormal number of tokens. Clients
// name a maximum that is far above. What a begin holds shows in the header of its answer.
func TestALearnedEstimateCovers95PercentOfTheCosts(t *testing.T) {
	t.Parallel()
	const users, budget, maximum = 2, 4_000_000_000, 20_000
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			learns := strings.Replace(budgetRules, "at_most: 1h", "at_most: 1h, estimate: {learned: {quantile: 0.95, ceiling: 1.00}}", 1)
			parts.Write(t, filepath.Join(dir, "rules.yaml"), fmt.Sprintf(learns, "4000"))
			parts.Write(t, filepath.Join(dir, "prices.csv"), budgetPrices)
			args := start(t)
			s := startSidecarOn(t, dir, args...)
			s.awaitCounts(t, args)
			e := startDeployed(t, "llm/envoy.yaml", parts.BackendFor(t), s.GRPC)
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: users}}
			t.Cleanup(client.CloseIdleConnections)
			c := dial(t, s.GRPC)

			var mu sync.Mutex // guards the sums
			var covered, total, held, cost, sent int
			var group sync.WaitGroup
			for user := range users {
				group.Go(func() {
					r := rand.New(rand.NewPCG(uint64(user), 9)) //nolint:gosec // repeats
					spent, name := 0, fmt.Sprint("user", user)
					for i := range requestsToModels(t) / users {
						w := wires()[r.IntN(len(wires()))]
						body := fmt.Sprintf(w.body, maximum)
						usage := parts.Usage{Input: 10 + r.IntN(50), Output: 1 + int(300*math.Exp(0.8*r.NormFloat64()))}
						a, err := e.send(parts.Soon(t), client, w.path+usage.Query(), strings.NewReader(body), "x-user: "+name)
						if err != nil || a.code != http.StatusOK {
							t.Errorf("request %d: got %d (%v), want 200", i, a.code, err)
							return
						}
						left, _ := strconv.Atoi(a.header.Get("x-ratelimit-remaining"))
						holds, costs := budget-spent-left, millionths(usage.Input, 0, 0, usage.Output)
						estimate := millionths((len(body)+3)/4, 0, 0, maximum)
						if i < algorithms.LearnedFrom && holds != estimate {
							t.Errorf("request %d holds %d, want the estimate %d that was sent", i, holds, estimate)
						}
						spent += costs
						parts.Eventually(t, func() string {
							if got := c.leftBy(t, "llm", name, "request_done"); got != budget-spent {
								return fmt.Sprintf("%s has %d left, want %d", name, got, budget-spent)
							}
							return ""
						})
						if i < algorithms.LearnedFrom {
							continue
						}
						mu.Lock()
						total, held, cost, sent = total+1, held+holds, cost+costs, sent+estimate
						if costs <= holds {
							covered++
						}
						mu.Unlock()
					}
				})
			}
			group.Wait()
			part := float64(covered) / float64(total)
			t.Logf("covers %.2f %% of %d costs, mean estimate / true cost %.2f; as sent it is %.1f", 100*part, total,
				float64(held)/float64(cost), float64(sent)/float64(cost))
			slack := 0.02
			if total < 5000 {
				slack = 0.04
			}
			if part < 0.95-slack || part > 0.95+slack {
				t.Errorf("covers %d of %d costs", covered, total)
			}
		})
	}
}

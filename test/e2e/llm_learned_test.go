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

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

// Users send one request after the other. The answers have a lognormal number of tokens, and the
// maximum of the clients is far above. The header of an answer shows how much its begin holds.
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

const learningRules = `
domain: llm
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000000, hold: {begin: request, end: request_done, at_most: 1h, estimate: {learned: {ceiling: 5000}}}}
`

// askUser sends the begin or the end of a request of alice, and returns the hits that are left.
func (c client) askUser(t *testing.T, phase, holder string, hits int) int {
	t.Helper()
	answer, err := c.service.ShouldRateLimit(parts.Soon(t), &ratelimitv3.RateLimitRequest{
		Domain: "llm",
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "alice"}, {Key: phase, Value: holder}},
			HitsAddend: wrapperspb.UInt64(uint64(hits)),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return int(answer.GetStatuses()[0].GetLimitRemaining())
}

// Two Weirs on one Redis teach a key. A third one, which starts later, holds its first begin as
// sent, and then knows the number, also while Redis is away.
func TestLearnedEstimatesOutliveARestartOfWeirAndAnOutageOfRedis(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	args := []string{"--store=redis", "--redis-url=" + urlOf(r.Address())}
	two := []client{dial(t, startWith(t, learningRules, args...).GRPC), dial(t, startWith(t, learningRules, args...).GRPC)}
	left := 0
	for i := range algorithms.LearnedFrom {
		left = two[i%2].askUser(t, "request_done", fmt.Sprint("end", i), 100)
	}
	s := startWith(t, learningRules, args...)
	c := dial(t, s.GRPC)
	for i, want := range []int{3000, 100, 100} {
		now := c.askUser(t, "request", fmt.Sprint("begin", i), 3000)
		if left-now != want {
			t.Errorf("begin %d holds %d, want %d", i, left-now, want)
		}
		left = now
	}
	r.Kill()
	c.askUser(t, "request", "away", 3000)
	before := c.askUser(t, "request", "away2", 3000)
	if now := c.askUser(t, "request", "away3", 3000); before-now < 100 || before-now > 102 {
		t.Errorf("without Redis a begin holds %d, want 100", before-now)
	}
}

package limiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// A program that embeds Weir: rules, a store, and a check for each request.
func Example() {
	rules, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(`
domain: shop
descriptors:
  - key: path
    value: /checkout
    descriptors:
      - key: customer
        rate_limit: {algorithm: token_bucket, requests_per_unit: 2, unit: hour}
`)}}, descriptors.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	states, err := memstore.New(memstore.Options{MaxKeys: 100_000})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer states.Close()
	limits, err := limiter.New(states, limiter.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	limits.SetRules(rules, nil, time.Now())

	request := limiter.Request{Domain: "shop"}
	d := request.Add()
	d.Entries = append(d.Entries,
		descriptors.Entry{Key: "path", Value: "/checkout"},
		descriptors.Entry{Key: "customer", Value: "alice"},
	)
	var verdict limiter.Verdict
	for range 3 {
		if err := limits.Check(context.Background(), &request, &verdict); err != nil {
			fmt.Println(err)
			return
		}
		decision := verdict.Statuses[0].Decision
		if verdict.OverLimit {
			fmt.Println("over limit, retry in", decision.RetryAfter.Round(time.Minute))
		} else {
			fmt.Println("passes,", decision.Remaining, "left")
		}
	}
	// Output:
	// passes, 1 left
	// passes, 0 left
	// over limit, retry in 30m0s
}

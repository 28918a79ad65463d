package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const shop = `
domain: shop
descriptors:
  - key: path
    value: /checkout
    descriptors:
      - key: customer
        rate_limit: {algorithm: token_bucket, requests_per_unit: 2, unit: hour}
`

// newLimits returns a limiter in memory with the rules of shop; LoadFiles reads rules from files
// instead.
func newLimits() (*limiter.Limiter, func(), error) {
	states, err := memstore.New(memstore.Options{MaxKeys: 100_000})
	if err != nil {
		return nil, nil, err
	}
	limits, err := limiter.New(states, limiter.Options{})
	if err == nil {
		_, err = limits.Load(descriptors.Source{Name: "shop.yaml", Data: []byte(shop)})
	}
	return limits, states.Close, err
}

// limited returns next behind the rules of the domain shop.
func limited(limits *limiter.Limiter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := limits.Allow(r.Context(), "shop",
			limiter.Entry{Key: "path", Value: r.URL.Path},
			limiter.Entry{Key: "customer", Value: r.Header.Get("X-Customer")})
		if err == nil && !result.Allowed { // after an error the request passes
			seconds := (result.RetryAfter + time.Second - 1) / time.Second
			w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Middleware of net/http.
func ExampleLimiter_Allow() {
	limits, closeStates, err := newLimits()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeStates()
	handler := limited(limits, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "paid") }))
	for range 3 {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/checkout", nil)
		r.Header.Set("X-Customer", "alice")
		handler.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 paid
	// 200 paid
	// 429 too many requests
}

// A mistake in new rules leaves the earlier rules in force.
func ExampleLimiter_Load() {
	limits, closeStates, err := newLimits()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeStates()
	_, err = limits.Load(descriptors.Source{Name: "shop.yaml", Data: []byte("domain: shop\ndescriptors: [{key: path, rate_limit: {unit: fortnight}}]\n")})
	if mistakes, ok := errors.AsType[descriptors.Errors](err); ok {
		fmt.Printf("%s:%d: %s\n", mistakes[0].File, mistakes[0].Line, mistakes[0].Text)
	}
	fmt.Println(limits.Rules().Count(), "rule in force")
	// Output:
	// shop.yaml:2: "fortnight" is not a unit, must be second, minute, hour, day, week, month or year
	// 1 rule in force
}

// Several descriptors in one transaction: all pass, or the request is denied.
func ExampleLimiter_Check() {
	limits, closeStates, err := newLimits()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeStates()
	request := limiter.Request{Domain: "shop"}
	for _, customer := range []string{"alice", "bob"} {
		d := request.Add()
		d.Entries = append(d.Entries, limiter.Entry{Key: "path", Value: "/checkout"}, limiter.Entry{Key: "customer", Value: customer})
	}
	var verdict limiter.Verdict
	for range 3 {
		if err := limits.Check(context.Background(), &request, &verdict); err != nil {
			fmt.Println(err)
			return
		}
		if decision := verdict.Statuses[0].Decision; verdict.OverLimit {
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

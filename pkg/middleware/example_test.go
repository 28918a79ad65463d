package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/middleware"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// A limit for each API key, without rules.
func ExamplePerKey() {
	limits, err := limiter.PerKey(limiter.PerMinute(60), 3) // bursts of 3, and one a second in the long run
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limits.Close()
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	limited := middleware.PerKey(limits, middleware.Header("X-API-Key"))(hello)

	for range 4 {
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		r.Header.Set("X-API-Key", "alice")
		limited.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Remaining"))
	}
	// Output:
	// 200 2
	// 200 1
	// 200 0
	// 429 0
}

// Rules of a file.
func ExampleNew() {
	states, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer states.Close()
	limits, err := limiter.New(states, limiter.Options{})
	if err == nil {
		_, err = limits.Load(descriptors.Source{Name: "shop.yaml", Data: []byte(`
domain: shop
descriptors:
- key: path
  descriptors:
  - key: customer
    rate_limit: {requests_per_unit: 1, unit: hour}
`)})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	limited, err := middleware.New(middleware.Options{
		Limiter: limits,
		Describe: func(r *http.Request, to *limiter.Request) {
			to.Domain = "shop"
			d := to.Add()
			d.Entries = append(d.Entries,
				limiter.Entry{Key: "path", Value: r.URL.Path}, limiter.Entry{Key: "customer", Value: r.Header.Get("X-Customer")})
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limited(http.NotFoundHandler())
	for _, customer := range []string{"alice", "alice", "bob"} {
		r, w := httptest.NewRequest(http.MethodGet, "/orders", nil), httptest.NewRecorder()
		r.Header.Set("X-Customer", customer)
		handler.ServeHTTP(w, r)
		fmt.Println(customer, w.Code)
	}
	// Output:
	// alice 404
	// alice 429
	// bob 404
}

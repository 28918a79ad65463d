package main

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestUsageWithRedisCountsTheHitsOfAllSidecarsOnTheKeysOfOne(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	rules := rulesFile(t, "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 10, warn_at: 80%}}\n")
	a := start(t, "--rules", rules, "--store=redis", "--redis-url=redis://"+redis.Address())
	b := start(t, "--rules", rules, "--store=redis", "--redis-url=redis://"+redis.Address())
	ask := func(r *running, user, hits string) {
		t.Helper()
		if code, body := r.post(t, "/json", `{"domain": "shop", "hitsAddend": `+hits+`, "descriptors": [{"entries": [{"key": "user", "value": "`+user+`"}]}]}`); code != 200 {
			t.Fatalf("got %d %s", code, body)
		}
	}
	ask(a, "ann", "3")
	ask(b, "ann", "4")
	ask(b, "bob", "2")
	list := func() string {
		t.Helper()
		var out strings.Builder
		if err := run(t.Context(), []string{"usage", "--csv", "--server", a.address["admin tcp"], "shop", "user"}, nil, &out, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := list(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "user=ann,fixed_window/365d,7,10,") || !strings.HasSuffix(got, ",true\n") {
		t.Errorf("got\n%s\nwant 7 of 10 of ann, and no bob", got)
	}
	redis.Kill()
	if got := list(); !strings.Contains(got, "user=ann,fixed_window/365d,3,10,") || !strings.HasSuffix(got, ",false\n") {
		t.Errorf("without Redis got\n%s\nwant the last decision", got)
	}
}

func TestAddedHitsWithRedisAreSoManyOverAllSidecars(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	rules := rulesFile(t, "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 2, count_rejected: false}}\n")
	var all []*running
	for range 2 {
		all = append(all, start(t, "--rules", rules, "--store=redis", "--redis-url=redis://"+redis.Address()))
	}
	passed := func(hits int) (n int) {
		t.Helper()
		for i := range hits {
			if code, _ := all[i%2].post(t, "/json", `{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}`); code == 200 {
				n++
			}
		}
		return n
	}
	if got := passed(10); got != 2 {
		t.Errorf("%d of 10 pass, want 2", got)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"grant", "--add=5", "--reason=r", "--server", all[0].address["admin tcp"], "shop", "user=ann"}, nil, &out, &out); err != nil {
		t.Fatal(err)
	}
	for limit := ""; !strings.Contains(limit, "by grant"); {
		out.Reset()
		if err := run(t.Context(), []string{"match", "--server", all[1].address["admin tcp"], "shop", "user=ann"}, nil, &out, &out); err != nil {
			t.Fatal(err)
		}
		limit = out.String()
	}
	if got := passed(10); got != 5 {
		t.Errorf("%d of 10 pass with 5 more, want 5", got)
	}
}

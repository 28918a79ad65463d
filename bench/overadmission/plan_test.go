package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
)

func TestRequestsChargeWhatTheirRulesSay(t *testing.T) {
	o := options{limits: limits{keys: 4, requests: 10, period: time.Second, several: true}}
	p, err := newPlan(o, algorithms.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	var keys [][]int
	for _, c := range p.choices {
		keys = append(keys, c.keys)
	}
	want := [][]int{{0, 4}, {0, 5}, {1, 4}, {1, 5}, {2, 4}, {2, 5}, {3, 4}, {3, 5}}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys of the requests (-want +got):\n%s", diff)
	}
	bursts := make([]uint32, 0, len(p.limits))
	for _, l := range p.limits {
		bursts = append(bursts, l.Burst)
	}
	if want := []uint32{2, 2, 2, 2, 4, 4}; !slices.Equal(bursts, want) {
		t.Errorf("bursts of the keys: got %v; want %v", bursts, want)
	}
}

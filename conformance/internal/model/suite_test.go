package model

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/forms"
	"github.com/weirproxy/weir/conformance/internal/runner"
)

type (
	headerValue    = corev3.HeaderValue
	metadataStruct = structpb.Struct
)

func noHeaders([]*bill) []*headerValue { return nil }

func noMetadata(*request, []*ratelimitv3.RateLimitResponse_DescriptorStatus, []*Node) *metadataStruct {
	return nil
}

// TestMain runs as the service where the suite starts this binary.
func TestMain(m *testing.M) {
	name, service := os.LookupEnv("RLS_MUTANT")
	if !service {
		flag.Parse()
		os.Exit(m.Run())
	}
	h := Correct()
	for _, other := range append(mutants(), constant()...) {
		if other.name == name {
			other.hooks(&h)
		}
	}
	code, err := Serve(h)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// constant are services that answer each request alike.
func constant() []mutant {
	return []mutant{
		{"always OK", "", always(ratelimitv3.RateLimitResponse_OK)},
		{"always over", "", always(ratelimitv3.RateLimitResponse_OVER_LIMIT)},
	}
}

// play runs the chosen cases against a mutant, or against the correct service.
func play(t *testing.T, name string, uncounted bool, chosen func(c *cases.Case) bool) []runner.Result {
	t.Helper()
	documents, err := cases.Load()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	features, variable := []string{cases.FeatureMetadata, cases.FeatureHeaders, cases.FeatureCounted}, ""
	if uncounted {
		features, variable = []string{cases.FeatureMetadata, cases.FeatureHeaders, cases.FeatureUncounted}, "RLS_UNCOUNTED=1"
	}
	r := runner.Runner{
		Start: fmt.Sprintf("env RLS_MUTANT=%q %s %q", name, variable, program), Form: forms.Weir, Redis: os.Getenv("REDIS_SERVER"),
		Features: features, Workers: 16,
	}
	results, err := r.Run(t.Context(), documents, chosen)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func all(*cases.Case) bool { return true }

func TestCorrectServicePassesEveryCase(t *testing.T) {
	t.Parallel()
	for _, uncounted := range []bool{false, true} {
		for _, result := range play(t, "", uncounted, all) {
			if result.Outcome == runner.Fail {
				t.Errorf("denials uncounted: %t: %s: %s", uncounted, result.ID, result.Reason)
			}
		}
	}
}

// needsRedis reports whether a case cannot be played without Redis.
func needsRedis(id string) bool {
	return strings.HasPrefix(id, "outages/") && os.Getenv("REDIS_SERVER") == ""
}

func TestEachMutantIsFoundByItsCase(t *testing.T) {
	t.Parallel()
	slots := make(chan struct{}, 6)
	for _, m := range mutants() {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			if needsRedis(m.found) {
				t.Skip("REDIS_SERVER is not set")
			}
			results := play(t, m.name, strings.Contains(m.found, "uncounted") && strings.HasPrefix(m.found, "denials"), func(c *cases.Case) bool { return c.ID() == m.found })
			if len(results) != 1 {
				t.Fatalf("there is no case %s", m.found)
			}
			if results[0].Outcome != runner.Fail {
				t.Errorf("%s does not find it: %s %s", m.found, results[0].Outcome, results[0].Reason)
			}
		})
	}
}

func TestConstantServicesPassOnlyWhatTheyMust(t *testing.T) {
	t.Parallel()
	for _, m := range constant() {
		var passed []string
		for _, result := range play(t, m.name, false, all) {
			if result.Outcome == runner.Pass {
				passed = append(passed, result.ID)
			}
		}
		compare(t, m.name, mustPass()[m.name], passed)
	}
}

// compare checks a set of names against the one that testdata lists.
func compare(t *testing.T, name string, want, got []string) {
	t.Helper()
	for _, id := range got {
		if !slices.Contains(want, id) {
			t.Errorf("%s: %s is not in the list", name, id)
		}
	}
	for _, id := range want {
		if !slices.Contains(got, id) && !needsRedis(id) {
			t.Errorf("%s: %s is in the list without need", name, id)
		}
	}
}

// TestEachCaseFailsOnAMutant plays the whole suite against each mutant.
func TestEachCaseFailsOnAMutant(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes; make conformance runs it")
	}
	t.Parallel()
	var mu sync.Mutex
	failed := make(map[string]bool)
	seen := make(map[string]bool)
	var group sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, m := range append(mutants(), constant()...) {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for _, uncounted := range []bool{false, true} {
				results := play(t, m.name, uncounted, func(c *cases.Case) bool {
					return !uncounted || slices.Contains(c.Needs, cases.FeatureUncounted)
				})
				mu.Lock()
				for _, result := range results {
					seen[result.ID] = true
					failed[result.ID] = failed[result.ID] || result.Outcome == runner.Fail
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	var never []string
	for _, id := range sorted(seen) {
		if !failed[id] {
			never = append(never, id)
		}
	}
	compare(t, "cases that no mutant fails", neverFail(), never)
}

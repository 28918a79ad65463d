package model

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	go endWithParent()
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

// endWithParent ends the process when the one that started it has ended, for a test that is killed
// ends no process.
func endWithParent() {
	parent := os.Getppid()
	for range time.Tick(time.Second) {
		if os.Getppid() != parent {
			os.Exit(1)
		}
	}
}

// constant are services that answer each request alike.
func constant() []mutant {
	return []mutant{
		{"always OK", "", always(ratelimitv3.RateLimitResponse_OK)},
		{"always over", "", always(ratelimitv3.RateLimitResponse_OVER_LIMIT)},
	}
}

// documents reads the documents of the suite.
func documents(t *testing.T) []*cases.Document {
	t.Helper()
	all, err := cases.Load()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// play runs the cases of documents against a mutant, or against the correct service.
func play(t *testing.T, name string, uncounted bool, documents []*cases.Document, chosen func(c *cases.Case) bool) []runner.Result {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	features, variable := []string{cases.FeatureSentinel, cases.FeatureMetadata, cases.FeatureHeaders, cases.FeatureCounted}, ""
	if uncounted {
		features, variable = []string{cases.FeatureSentinel, cases.FeatureMetadata, cases.FeatureHeaders, cases.FeatureUncounted}, "RLS_UNCOUNTED=1"
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

// needsUncounted reports whether a case needs a target that does not count denied requests.
func needsUncounted(c *cases.Case) bool { return slices.Contains(c.Needs, cases.FeatureUncounted) }

func TestCorrectServicePassesEveryCase(t *testing.T) {
	t.Parallel()
	results := play(t, "", false, documents(t), all)
	results = append(results, play(t, "", true, documents(t), needsUncounted)...)
	for _, result := range results {
		if result.Outcome == runner.Fail {
			t.Errorf("%s: %s", result.ID, result.Reason)
		}
	}
}

// needsRedis reports whether a case cannot be played without Redis.
func needsRedis(id string) bool {
	document, _, _ := strings.Cut(id, "/")
	return (document == "outages" || document == "failovers") && os.Getenv("REDIS_SERVER") == ""
}

// failures collects the cases that fail on any mutant, and is safe for concurrent use.
type failures struct {
	mu  sync.Mutex
	ids map[string]bool // guarded by mu
}

func (f *failures) add(results []runner.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range results {
		if r.Outcome == runner.Fail {
			f.ids[r.ID] = true
		}
	}
}

// Each mutant fails the case that it names, and each case fails on a mutant: a case that no fault
// can fail proves nothing.
func TestMutantsAndCasesFindEachOther(t *testing.T) {
	t.Parallel()
	all := documents(t)
	failed := failures{ids: make(map[string]bool)}
	t.Run("each mutant is found", func(t *testing.T) {
		slots := make(chan struct{}, 8)
		for _, m := range mutants() {
			t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				if needsRedis(m.found) {
					t.Skip("REDIS_SERVER is not set")
				}
				failed.add(playMutant(t, m, all))
			})
		}
	})
	for _, d := range all {
		for i := range d.Cases {
			if id := d.Cases[i].ID(); !failed.ids[id] && !needsRedis(id) {
				t.Errorf("%s: fails on no mutant", id)
			}
		}
	}
}

// playMutant plays the documents of the cases that must find a mutant. Where cases run one after
// the other, or have processes of their own, it plays those cases alone.
func playMutant(t *testing.T, m mutant, all []*cases.Document) []runner.Result {
	t.Helper()
	found := strings.Fields(m.found)
	of := slices.DeleteFunc(slices.Clone(all), func(d *cases.Document) bool {
		return !slices.ContainsFunc(found, func(id string) bool { return strings.HasPrefix(id, d.Name+"/") })
	})
	results := play(t, m.name, strings.Contains(m.found, "denials/uncounted"), of, func(c *cases.Case) bool {
		return !c.Document.Alone && !c.Document.Serial || slices.Contains(found, c.ID())
	})
	for _, id := range found {
		i := slices.IndexFunc(results, func(r runner.Result) bool { return r.ID == id })
		if i < 0 {
			t.Fatalf("there is no case %s", id)
		}
		if results[i].Outcome != runner.Fail {
			t.Errorf("%s does not find it: %s %s", id, results[i].Outcome, results[i].Reason)
		}
	}
	return results
}

// A service that answers each request alike passes only the cases of a list.
func TestConstantServicesPassNoCaseButThoseThatTheyMust(t *testing.T) {
	t.Parallel()
	all := documents(t)
	if testing.Short() {
		// These take most of the time, for they start a process for each case.
		all = slices.DeleteFunc(all, func(d *cases.Document) bool { return d.Alone })
	}
	for _, m := range constant() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			results := play(t, m.name, false, all, func(c *cases.Case) bool { return !needsUncounted(c) })
			results = append(results, play(t, m.name, true, all, needsUncounted)...)
			passed := make(map[string]bool)
			for _, result := range results {
				passed[result.ID] = result.Outcome == runner.Pass
				if passed[result.ID] && !must(m.name, result.ID) {
					t.Errorf("passes %s", result.ID)
				}
			}
			for _, id := range mustPass()[m.name] {
				if !passed[id] {
					t.Errorf("does not pass %s, which its list has", id)
				}
			}
		})
	}
}

// must reports whether a service that answers each request alike has to pass a case.
func must(name, id string) bool {
	document, _, _ := strings.Cut(id, "/")
	return slices.Contains(mustPass()[name], id) || document == "health" || document == "drain"
}

package deploy

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/test/parts"
)

// load loads all rule files of a directory, as `sidecar --rules` does, and fails on mistakes and on
// warnings.
func load(t *testing.T, directory string) *descriptors.Rules {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("rule files in %s: got %v, %v", directory, files, err)
	}
	var sources []descriptors.Source
	for _, file := range files {
		content := parts.Read(t, file)
		table := func(name string) (*descriptors.Table, error) {
			path := descriptors.TablePath(file, name)
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			return descriptors.NewTable(path, content), nil
		}
		sources = append(sources, descriptors.Source{Name: file, Data: []byte(content), Table: table})
	}
	rules, warnings, err := descriptors.Load(sources, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range warnings {
		t.Error(warning)
	}
	return rules
}

func TestRuleFilesLoadWithoutAWarningAndEnvoyNamesTheirDomain(t *testing.T) {
	t.Parallel()
	tests := []struct{ bootstrap, rules string }{
		{"envoy.yaml", "rules"},
		{"envoy-uds.yaml", "rules"},
		{"k8s/envoy.yaml", "k8s/rules"},
		{"llm/envoy.yaml", "llm/rules"},
		{"concurrency/envoy.yaml", "concurrency/rules"},
		{"rlqs/envoy.yaml", "rlqs/rules"},
		{"llm-routes/envoy.yaml", "llm-routes/rules"},
	}
	for _, test := range tests {
		t.Run(test.bootstrap, func(t *testing.T) {
			rules := load(t, test.rules)
			domain := ""
			for _, filter := range as[list](t, readYAML(t, test.bootstrap), "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0,
				"typed_config", "http_filters") {
				if name := as[table](t, filter)["name"]; name == "envoy.filters.http.ratelimit" || name == "envoy.filters.http.rate_limit_quota" {
					domain = as[string](t, filter, "typed_config", "domain")
				}
			}
			if rules.Domain(domain) == nil {
				t.Errorf("%s asks about domain %q, for which %s has no rules", test.bootstrap, domain, test.rules)
			}
		})
	}
}

// ruleKeys returns all keys that a rule file may have. Weir itself warns authors of such rules.
func ruleKeys(t *testing.T) []string {
	t.Helper()
	const everyMap = `
domain: wrong
nope: 1
default: {nope: 1}
defaults: {nope: 1}
descriptors:
  - key: wrong
    nope: 1
    rate_limit: {nope: 1, replaces: [{nope: 1}], hold: {nope: 1, estimate: {nope: 1, learned: {nope: 1}}}, align: {nope: 1}, prices: {nope: 1}, schedule: [{nope: 1}], escalate: {nope: 1}}
  - {key: wrong, match: {nope: 1}}
  - {key: wrong, match: {cidr: [10.0.0.0/8], group_by: {nope: 1}}}
`
	_, _, err := descriptors.Load([]descriptors.Source{{Name: "wrong", Data: []byte(everyMap)}}, descriptors.Options{})
	var mistakes descriptors.Errors
	if !errors.As(err, &mistakes) {
		t.Fatalf("rules with unknown keys: got %v, want descriptors.Errors", err)
	}
	keys := map[string]bool{}
	lists := 0
	for _, mistake := range mistakes {
		if _, allowed, found := strings.Cut(mistake.Text, "must be one of "); found && strings.HasSuffix(mistake.Path, "nope") {
			lists++
			for key := range strings.SplitSeq(allowed, ", ") {
				keys[key] = true
			}
		}
	}
	if want := strings.Count(everyMap, "nope"); lists != want {
		t.Fatalf("unknown keys that were answered with a list of the known: got %d, want %d", lists, want)
	}
	return slices.Sorted(maps.Keys(keys))
}

func TestRuleFilesTogetherShowEveryKeyAndEveryAlgorithm(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("rules", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	keys, chosen := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		collect(readYAML(t, file), keys, chosen)
	}
	if diff := cmp.Diff(ruleKeys(t), slices.Sorted(maps.Keys(keys))); diff != "" {
		t.Errorf("keys in rules/*.yaml (-want +got):\n%s", diff)
	}
	var all []string
	for _, algorithm := range algorithms.Algorithms() {
		all = append(all, algorithm.String())
	}
	slices.Sort(all)
	if diff := cmp.Diff(all, slices.Sorted(maps.Keys(chosen))); diff != "" {
		t.Errorf("algorithms in rules/*.yaml (-want +got):\n%s", diff)
	}
}

// collect adds the keys of v, but not those inside metadata, which may be any, and the values of
// `algorithm`.
func collect(v any, keys, algorithms map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			keys[key] = true
			if name, ok := value.(string); ok && key == "algorithm" {
				algorithms[name] = true
			}
			if key != "metadata" {
				collect(value, keys, algorithms)
			}
		}
	case []any:
		for _, value := range v {
			collect(value, keys, algorithms)
		}
	}
}

package descriptors

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
)

const gateway = `{"domain":"default/eg/http","descriptors":[{"key":"httproute/default/shop/rule/0/match/0/*","value":"httproute/default/shop/rule/0/match/0/*","descriptors":[
{"key":"rule-0-match-0","rate_limit":{"requests_per_unit":5,"unit":"HOUR"}},
{"key":"rule-1-match-0","value":"rule-1-match-0","rate_limit":{"requests_per_unit":7,"unit":"MINUTE","name":"all"}}]}]}`

// withOverlay loads the document of a gateway under an overlay.
func withOverlay(overlay, document string, o Options) (*Rules, []Warning, error) {
	return Load([]Source{
		{Name: "xds:http", Data: []byte(document), Generated: true}, {Name: "overlay.yaml", Data: []byte(overlay)},
	}, o)
}

func limitsOf(rules *Rules) (all []*Limit) {
	for _, r := range rules.All() {
		for i := range r.Limits {
			all = append(all, &r.Limits[i])
		}
	}
	return all
}

func TestAnOverlayGivesALimitOfAControlPlaneItsWords(t *testing.T) {
	rules, warnings, err := withOverlay(`
overlay:
- for: {domain: "default/*", path: ["httproute/default/shop/*", rule-0-match-*], unit: hour}
  set: {algorithm: token_bucket, burst: 20, on_store_error: deny, sharing: exact, warn_at: [80%]}
- for: {name: all}
  set: {algorithm: sliding_window_counter}
- for: {path: ["**"]}
  set: {algorithm: sliding_window_log}
`, gateway, Options{})
	if err != nil {
		t.Fatal(err)
	}
	limits := limitsOf(rules)
	first, second := limits[0], limits[1]
	if first.Algorithm != algorithms.TokenBucket || first.Burst != 20 || first.Requests != 5 || first.OnStoreError != OnStoreErrorDeny ||
		first.Sharing != SharingExact || first.WarnAt[0] != 80 || first.Overlay() != "overlay.yaml:3" {
		t.Errorf("rule-0: got %+v of %q, want the words of line 3", first, first.Overlay())
	}
	if second.Algorithm != algorithms.SlidingWindowCounter || second.Requests != 7 || second.Overlay() != "overlay.yaml:5" {
		t.Errorf("rule-1: got %+v of %q, want the words of line 5", second, second.Overlay())
	}
	want := []string{"overlay.yaml:7: warning: overlay[2].for: is never reached: earlier entries match all its limits"}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// Each row is the element of an overlay, and a part of the only message.
func TestMistakesOfAnOverlaySayTheWordsToWrite(t *testing.T) {
	for in, want := range map[string]string{
		"{for: {name: all}, set: {requests_per_unit: 9}}":                   "set.requests_per_unit: would change the limit itself, must stay in its source: an overlay has algorithm, burst, align",
		"{for: {name: all}, set: {period: 10s}}":                            "set.period: would change the limit itself",
		"{for: {name: all}, set: {algorithm: TokenBucket}}":                 ": write token_bucket",
		"{for: {name: all}, set: {algorithm: concurrency}}":                 "must be another algorithm",
		"{for: {name: all}, set: {burst: 9}}":                               "must be left out for fixed_window, or stand beside algorithm: token_bucket",
		"{for: {name: all}, set: {group: a b}}":                             `group: is "a b", must be 1 to 63 letters`,
		"{for: \"*\", set: {algorithm: token_bucket}}":                      `for: is the text "*", must be a map`,
		"{for: {key: a}, set: {algorithm: token_bucket}}":                   "for.key: is not a key that is known here: the entries are path: [a]",
		"{for: {path: [a=b]}, set: {algorithm: token_bucket}}":              "path[0]: is a pattern of the key alone: probably {key: a, value: b} is meant",
		"{for: {name: all}, set: {brust: 9}}":                               "did you mean burst?",
		"{for: {name: all}, set: {sharing: lease}}":                         `"lease" is not known, must be leased, exact or divided`,
		"{for: {name: all}, set: {}}":                                       "set: is empty, must have one of algorithm",
		"{for: {name: all}}":                                                "set: is missing, must be the words for these limits, such as set: {algorithm: token_bucket, burst: 20}",
		"{set: {algorithm: token_bucket}}":                                  "for: is missing, must say which limits are meant",
		"{for: {}, set: {algorithm: token_bucket}}":                         "for: has no key, must have domain, path, name or unit",
		"{for: {path: []}, set: {algorithm: token_bucket}}":                 "path: is empty, must have a pattern for each entry of the descriptor",
		"{for: {path: httproute/*}, set: {algorithm: token_bucket}}":        "must be a list with a pattern for each entry of the descriptor",
		"{for: {path: [\"**\", x]}, set: {algorithm: token_bucket}}":        "stands before other patterns, must be the last one",
		"{for: {unit: hours}, set: {algorithm: token_bucket}}":              ": write unit: hour",
		"{for: {names: all}, set: {algorithm: token_bucket}}":               "did you mean name?",
		"{for: {name: \"\"}, set: {algorithm: token_bucket}}":               "name: is empty, must be a text",
		"{for: {unit: hour}, set: {align: {to: calender}}}":                 "calender",
		"{match: {name: all}, set: {algorithm: token_bucket}}":              "match: is not a key that is known here: an entry has for and set",
		"{for: {name: nobody}, set: {algorithm: token_bucket}}":             "overlay[0].for: matches no limit of the rules in force",
		"{for: {domain: \"*x*\", path: [a]}, set: {count_rejected: false}}": "overlay[0].for: matches no limit of the rules in force",
	} {
		_, warnings, err := withOverlay("overlay:\n- "+in+"\n", gateway, Options{})
		got := ""
		if err != nil {
			got = err.Error()
		} else if len(warnings) > 0 {
			got = warnings[0].String()
		}
		if !strings.HasPrefix(got, "overlay.yaml:2: ") || !strings.Contains(got, want) {
			t.Errorf("%s: got\n%s\nwant line 2 and %q", in, got, want)
		}
	}
}

// A conflict is a mistake in the document of the limit, so that a push refuses that document alone.
func TestAWordThatDoesNotFitALimitIsAMistakeOfItsDocument(t *testing.T) {
	_, _, err := withOverlay("overlay:\n- for: {domain: \"*\"}\n  set: {align: {to: calendar, zone: UTC, day: 15}}\n",
		strings.ReplaceAll(gateway, "HOUR", "MONTH"), Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "xds:http: ") || !strings.Contains(err.Error(), ", as overlay.yaml:2 sets it") {
		t.Errorf("got %v, want a mistake of xds:http that names overlay.yaml:2", err)
	}
}

// A word of an overlay can be wrong beside values of the document, also far from the limit.
func TestEachMistakeBesideAWordNamesTheOverlay(t *testing.T) {
	const document = `domain: d
descriptors:
- key: a
  rate_limit: {requests_per_unit: 50000, unit: hour}
  descriptors:
  - {key: request, match: {prefix: x}}
`
	for set, want := range map[string]string{
		"{algorithm: sliding_window_log}":                   "4: descriptors[0].rate_limit.requests_per_unit: is 50000, must be at most 10000 for sliding_window_log, which remembers every hit: use sliding_window_counter; the limit has words of overlay.yaml:2",
		"{group: plans}":                                    "4: descriptors[0].rate_limit.group: is for quotas: the descriptor must have quota_mode: true, too, as overlay.yaml:2 sets it",
		"{hold: {begin: request, end: done, at_most: 60s}}": `4: descriptors[0].rate_limit.hold.begin: is "request", which is the key of a descriptor below, in line 6: the two must differ, as overlay.yaml:2 sets it`,
	} {
		_, _, err := Load([]Source{
			{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {unit: hour}\n  set: " + set + "\n")}, {Name: "a.yaml", Data: []byte(document)},
		}, Options{})
		if got := fmt.Sprint(err); got != "a.yaml:"+want {
			t.Errorf("%s: got\n%s\nwant\na.yaml:%s", set, got, want)
		}
	}
}

func TestAnOverlayMatchesNamesAndUnitsThatAnAliasBrings(t *testing.T) {
	rules, warnings, err := Load([]Source{
		{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {name: n, unit: hour}\n  set: {algorithm: token_bucket, burst: 9, group: plans}\n")},
		{Name: "a.yaml", Data: []byte(`domain: d
descriptors:
- {key: a, quota_mode: true, rate_limit: &limit {requests_per_unit: 5, unit: &unit hour, name: &name n}}
- {key: b, quota_mode: true, rate_limit: {requests_per_unit: 6, unit: *unit, name: *name}}
- {key: c, quota_mode: true, rate_limit: {<<: *limit, requests_per_unit: 7}}
`)},
	}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	for _, r := range rules.All() {
		if l := &r.Limits[0]; l.Burst != 9 || r.Group.Name != "plans" {
			t.Errorf("%s: got the burst %d and the group %q, want 9 and plans", r.Path, l.Burst, r.Group.Name)
		}
	}
}

func TestAnOverlayThatChangesNothingIsNotShown(t *testing.T) {
	rules, _, err := Load([]Source{
		{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {unit: hour}\n  set: {algorithm: token_bucket}\n")},
		{Name: "a.yaml", Data: []byte("domain: d\ndescriptors:\n- {key: a, rate_limit: {requests_per_unit: 5, unit: hour, algorithm: sliding_window_log}}\n")},
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := limitsOf(rules)[0].Overlay(); got != "" {
		t.Errorf("got the overlay %q of a limit that keeps its own algorithm, want none", got)
	}
}

func TestALimitKeepsItsOwnWords(t *testing.T) {
	rules, warnings, err := Load([]Source{
		{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {domain: d}\n  set: {algorithm: token_bucket, burst: 9}\n")},
		{Name: "a.yaml", Data: []byte(`domain: d
descriptors:
- {key: own, rate_limit: {requests_per_unit: 5, unit: hour, algorithm: token_bucket, burst: 3}}
- {key: banned, rate_limit: {requests_per_unit: 0, unit: hour}}
- {key: free, rate_limit: {unlimited: true}}
default: {requests_per_unit: 1, unit: day}
`)},
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	limits := limitsOf(rules)
	if limits[0].Burst != 3 || limits[1].Burst != 0 || limits[1].Algorithm != algorithms.TokenBucket || limits[2].Burst != 9 {
		t.Errorf("got %+v, %+v, %+v; want the own burst, none for a ban, and 9", limits[0], limits[1], limits[2])
	}
	if !slices.ContainsFunc(warnings, func(w Warning) bool {
		return strings.Contains(w.String(), "a.yaml:3: warning: descriptors[0].rate_limit.burst: stays: overlay.yaml:2 sets it, too")
	}) {
		t.Errorf("warnings: got %v, want one that the own burst stays", warnings)
	}
}

func TestAnOverlaySetsHoldsAndGroups(t *testing.T) {
	rules, warnings, err := withOverlay(`
overlay:
- for: {unit: hour}
  set: {hold: {begin: request, end: request_done, at_most: 60s}}
- for: {name: all}
  set: {group: plans}
`, strings.Replace(gateway, `"rate_limit":{"requests_per_unit":7`, `"quota_mode":true,"rate_limit":{"requests_per_unit":7`, 1), Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	var begins, groups []string
	for _, r := range rules.All() {
		if len(r.Limits) > 0 {
			begins, groups = append(begins, r.Begin), append(groups, r.Group.Name)
		}
	}
	if diff := cmp.Diff([][]string{{"request", ""}, {"", "plans"}}, [][]string{begins, groups}); diff != "" {
		t.Errorf("begins and groups (-want +got):\n%s", diff)
	}
}

func TestAnOverlayWithoutRulesIsQuiet(t *testing.T) {
	rules, warnings, err := Load([]Source{{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {name: a}\n  set: {sharing: exact}\n")}}, Options{Strict: true})
	if err != nil || len(warnings) > 0 || !rules.HasOverlay() {
		t.Errorf("got %v and %v, want an overlay without warnings", warnings, err)
	}
}

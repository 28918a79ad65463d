package descriptors

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// estimated returns a document with a limit and the estimate of its hold.
func estimated(limit, estimate string) string {
	return "domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      " + limit + "\n      hold: {begin: r, end: e, at_most: 1m, " + estimate + "}\n"
}

func TestAnEstimateIsSentOrLearned(t *testing.T) {
	const tokens, money = "requests_per_unit: 9\n      unit: day", "budget: 2\n      unit: day"
	for text, tt := range map[string]struct {
		limit string
		want  Estimate
	}{
		"estimate: sent": {tokens, Estimate{}},
		"estimate: {learned: {quantile: 0.95, ceiling: 4000}}":          {tokens, Estimate{950, 4000}},
		"estimate: {learned: {ceiling: 1}}":                             {tokens, Estimate{950, 1}},
		"estimate: {learned: {quantile: 0.5, ceiling: 4294967295}}":     {tokens, Estimate{500, 4294967295}},
		"estimate: {learned: {quantile: '0.999', ceiling: 0.25}}":       {money, Estimate{999, 250_000}},
		"estimate: {learned: {quantile: 0.950, ceiling: 2}}":            {money, Estimate{950, 2_000_000}},
		"estimate: {learned: {quantile: 0.7500, ceiling: 4294.967295}}": {money, Estimate{750, 4294967295}},
	} {
		rules, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte(estimated(tt.limit, text))}}, Options{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := rules.All()[0].Limits[0].Estimate; got != tt.want || got.Learns() != (tt.want != Estimate{}) {
			t.Errorf("%s: got %+v; want %+v", text, got, tt.want)
		}
	}
}

func TestMistakesInEstimatesHaveALine(t *testing.T) {
	const at = "rules.yaml:7: descriptors[0].rate_limit.hold.estimate"
	const tokens, money = "requests_per_unit: 9\n      unit: day", "budget: 2\n      unit: day"
	for text, tt := range map[string]struct {
		limit string
		want  []string
	}{
		"estimate: best":    {tokens, []string{at + ": is \"best\", must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}"}},
		"estimate: learned": {tokens, []string{at + ": is \"learned\", must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}"}},
		"estimate: ":        {tokens, []string{at + ": is \"\", must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}"}},
		"estimate: {}":      {tokens, []string{at + ": is empty, must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}"}},
		"estimate: [1]":     {tokens, []string{at + ": is a list, must be a map"}},
		"estimate: {sent: 1}": {tokens, []string{
			at + ".sent: is not a key that is known here, must be one of learned",
			at + ": is empty, must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}",
		}},
		"estimate: {learned: {}}": {tokens, []string{
			at + ".learned.ceiling: is missing, must be the largest estimate, such as 4000: it counts also while nothing is learned",
		}},
		"estimate: {learned: {quantile: 1, ceiling: 0, max: 2}}": {tokens, []string{
			at + ".learned.max: is not a key that is known here, must be one of quantile, ceiling",
			at + ".learned.quantile: is \"1\", must be from 0.5 to 0.999 with at most three decimals, such as 0.95: the part of the costs that the estimate covers",
			at + ".learned.ceiling: is 0, must be a whole number from 1 to 4294967295",
		}},
		"estimate: {learned: {quantile: 0.9501, ceiling: 1.5}}": {tokens, []string{
			at + ".learned.quantile: is \"0.9501\", must be from 0.5 to 0.999 with at most three decimals, such as 0.95: the part of the costs that the estimate covers",
			at + ".learned.ceiling: is the floating-point number 1.5, must be a whole number from 1 to 4294967295",
		}},
		"estimate: {learned: {quantile: 95%, ceiling: 0.00}}": {money, []string{
			at + ".learned.quantile: is \"95%\", must be from 0.5 to 0.999 with at most three decimals, such as 0.95: the part of the costs that the estimate covers",
			at + ".learned.ceiling: is 0, must be more: the largest price of a request",
		}},
		"estimate: {learned: {quantile: 0.499, ceiling: 4294.967296}}": {money, []string{
			at + ".learned.quantile: is \"0.499\", must be from 0.5 to 0.999 with at most three decimals, such as 0.95: the part of the costs that the estimate covers",
			at + ".learned.ceiling: is \"4294.967296\", must be at most 4294.967295",
		}},
		"estimate: {learned: {ceiling: 4}}": {"algorithm: concurrency\n      max_in_flight: 3", []string{
			at + ": has no meaning for concurrency, must be left out: a request says how many slots it takes",
		}},
	} {
		_, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte(estimated(tt.limit, text))}}, Options{})
		all, _ := errors.AsType[Errors](err)
		var got []string
		for _, e := range all {
			got = append(got, e.Error())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: mistakes (-want +got):\n%s", text, diff)
		}
	}
}

func TestAChangeOfAnEstimateIsAChangeOfTheRule(t *testing.T) {
	hashes := map[string]string{}
	for _, text := range []string{
		"estimate: sent", "estimate: {learned: {quantile: 0.95, ceiling: 4000}}", "estimate: {learned: {quantile: 0.96, ceiling: 4000}}",
		"estimate: {learned: {quantile: 0.95, ceiling: 4001}}",
	} {
		rules := load(t, estimated("requests_per_unit: 9\n      unit: day", text))
		if was, again := hashes[rules.Hash()]; again {
			t.Errorf("%s has the hash of %s", text, was)
		}
		hashes[rules.Hash()] = text
	}
}

func TestTheModelOfADescriptorIsTheLastPartOfItsUsage(t *testing.T) {
	rule := load(t, estimated("requests_per_unit: 9\n      unit: day", "estimate: sent")).All()[0]
	for usage, want := range map[string]string{"1/0/0/2/openai/gpt-5": "openai/gpt-5", "0/0/0/0/": "", "1/2/m": "", "m": ""} {
		if got := rule.Model([]Entry{{"a", "x"}, {UsageKey, usage}, {"r", "1"}}, Usage{}); got != want {
			t.Errorf("%s: got %q; want %q", usage, got, want)
		}
	}
	if got := rule.Model([]Entry{{"a", "x"}, {"r", "1"}}, Usage{}); got != "" {
		t.Errorf("without a usage: got %q", got)
	}
}

// Each model of a key is a state for weeks, and clients choose models.
func TestAClientChoosesNoEndlessModels(t *testing.T) {
	tokens := load(t, estimated("requests_per_unit: 9\n      unit: day", "estimate: sent")).All()[0]
	rules, _, err := Load([]Source{withTables("domain: a\ndescriptors:\n  - key: a\n    rate_limits:\n"+
		"      - {requests_per_unit: 9, unit: day, hold: &h {begin: r, end: d, at_most: 1m}}\n"+
		"      - {budget: 9, unit: month, prices: {table: p.csv, unknown: default}, hold: *h}\n",
		map[string]string{"p.csv": "model,input,cached_input,cache_write,output\nm,1,1,1,1\n*,9,9,9,9\n"})}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	priced := rules.All()[0]
	for _, c := range []struct {
		rule        *Rule
		model, want string
	}{
		{tokens, strings.Repeat("m", 128), strings.Repeat("m", 128)},
		{tokens, strings.Repeat("m", 129), "*"},
		{priced, "m", "m"},
		{priced, "n", "*"},
	} {
		if got := c.rule.Model([]Entry{{"a", "x"}, {UsageKey, "1/0/0/2/" + c.model}, {"r", "1"}}, Usage{Input: 1, Output: 2, Model: c.model}); got != c.want {
			t.Errorf("%s: got %q; want %q", c.model, got, c.want)
		}
	}
}

func TestAQuantileIsWrittenInPercent(t *testing.T) {
	for q, want := range map[uint32]string{500: "50", 950: "95", 999: "99.9", 905: "90.5"} {
		if got := (Estimate{Quantile: q}).Percent(); got != want {
			t.Errorf("%d: got %s; want %s", q, got, want)
		}
	}
}

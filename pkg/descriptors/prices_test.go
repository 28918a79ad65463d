package descriptors

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

const (
	pricedRules = `
domain: d
descriptors:
  - key: team
    rate_limits:
      - {budget: 0.50, unit: month, align: {to: calendar}, prices: {table: p.csv, unknown: deny}, hold: {begin: r, end: e, at_most: 10m}}
      - {algorithm: token_bucket, requests_per_unit: 1000, unit: minute, hold: {begin: r, end: e, at_most: 10m}}
    descriptors:
      - key: project
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: other
    rate_limit: {budget: "25", unit: day, prices: {table: others.csv, unknown: default}, hold: {begin: r, end: e, at_most: 10m}}
  - key: plain
    rate_limit: {budget: 4294.967295, unit: day}
  - key: burst
    rate_limit: {algorithm: token_bucket, budget: 5, burst: 2.50, unit: day}
  - key: tokens
    rate_limit: {requests_per_unit: 5, unit: day, hold: {begin: r, end: e, at_most: 10m}}
`
	pricesCSV = "model,input,cached_input,cache_write,output\ngpt-5,1.25,0.125,0,10\nopenai/o3, 2 ,0.5,2.5, 8.000001\n"
)

func pricedTables() map[string]string {
	return map[string]string{"p.csv": pricesCSV, "others.csv": pricesCSV + "*,100,100,100,1000000\n"}
}

func usageOf(tb testing.TB, text string) *Usage {
	tb.Helper()
	u := must.Get(ParseUsage(text))(tb)
	return &u
}

func TestARequestCostsItsTokens(t *testing.T) {
	rules, warnings, err := Load([]Source{withTables(pricedRules, pricedTables())}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	limitOf := func(key string) *Limit {
		return &rules.Domains()[0].Match([]Entry{{key, "a"}, {UsageKey, NoUsage}, {"r", "1"}}).Limits[0]
	}
	team, other := limitOf("team"), limitOf("other")
	for _, tt := range []struct {
		l      *Limit
		usage  string
		micros int64
		known  bool
	}{
		{team, "0/0/0/0/gpt-5", 0, true},
		{team, "0/0/0/0/nobody", 0, true},
		{team, "1000000/0/0/0/gpt-5", 1_250_000, true},
		{team, "1000/1000/0/0/gpt-5", 125, true}, // a tenth
		{team, "1/0/0/0/gpt-5", 2, true},         // 1.25, rounded up once
		{team, "1/0/0/1/gpt-5", 12, true},        // 11.25
		{team, "100/64/0/23/gpt-5", 283, true},   // 45 + 8 + 230
		{team, "9/4/5/1/openai/o3", 23, true},    // 0 + 2 + 12.5 + 8.000001
		{team, "1/0/0/0/openai", 0, false},
		{team, "1/0/0/0/", 0, false},
		{team, "9007199254740991/0/0/9007199254740991/gpt-5", algorithms.MaxHits, true},
		{other, "1/0/0/0/nobody", 100, true},
		{other, "0/0/0/4294/nobody", 4_294_000_000, true},
		{other, "0/0/0/4295/nobody", algorithms.MaxHits, true},
	} {
		if got, known := tt.l.Cost(usageOf(t, tt.usage)); got != tt.micros || known != tt.known {
			t.Errorf("%s: costs %d, known %t; want %d, %t", tt.usage, got, known, tt.micros, tt.known)
		}
	}
	if l := limitOf("team"); l.Requests != 500_000 || !l.Money || !l.Prices() {
		t.Errorf("got %+v", l)
	}
	if l := rules.Domains()[0].Match([]Entry{{"burst", "a"}}).Limits[0]; l.Burst != 2_500_000 {
		t.Errorf("got %+v", l)
	}
	if l := rules.Domains()[0].Match([]Entry{{"plain", "a"}}).Limits[0]; l.Requests != 1<<32-1 || !l.Money || l.Prices() {
		t.Errorf("got %+v", l)
	}
}

// The cost is computed again, in rational numbers.
func TestTheCostIsTheSumOfThePricesRoundedUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p price
		for i := range p {
			p[i] = rapid.Uint64Max(maxPrice*Micros).Draw(t, "price")
		}
		tokens := rapid.Uint64Max([]uint64{10, 1e6, 1 << 53}[rapid.IntRange(0, 2).Draw(t, "size")] / 4)
		u := Usage{Cached: tokens.Draw(t, "cached"), Written: tokens.Draw(t, "written"), Output: tokens.Draw(t, "output")}
		u.Input = u.Cached + u.Written + tokens.Draw(t, "input")
		sum := new(big.Int)
		for i, n := range []uint64{u.Input - u.Cached - u.Written, u.Cached, u.Written, u.Output} {
			sum.Add(sum, new(big.Int).Mul(new(big.Int).SetUint64(n), new(big.Int).SetUint64(p[i])))
		}
		sum.Add(sum, big.NewInt(Micros-1)).Div(sum, big.NewInt(Micros))
		want := int64(algorithms.MaxHits)
		if sum.Cmp(big.NewInt(want)) < 0 {
			want = sum.Int64()
		}
		if got := p.cost(&u); got != want {
			t.Fatalf("%+v at %v costs %d; want %d", u, p, got, want)
		}
	})
}

func TestAUsageThatIsNotOneIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "input tokens: must be a whole number",
		"1":                            "input tokens: must be",
		"1/2/3":                        "cache write tokens: must be",
		"1/0/0/x/m":                    "output tokens: must be",
		"1/0/0/-1/m":                   "output tokens: must be",
		"NaN/0/0/0/m":                  "input tokens: must be",
		"1.5/0/0/0/m":                  "input tokens: must be",
		"1e3/0/0/0/m":                  "input tokens: must be",
		" 1/0/0/0/m":                   "input tokens: must be",
		"9007199254740992/0/0/0/m":     "input tokens: must be a whole number below 2^53",
		"99999999999999999999/0/0/0/m": "input tokens: must be",
		"10/6/5/0/m":                   "input tokens: 10, must be at least the cached input and the cache write together, which are 11",
	} {
		if _, err := ParseUsage(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v; want %s", text, err, want)
		}
	}
	if u := usageOf(t, "10/6/4/7/a/b//c"); *u != (Usage{10, 6, 4, 7, "a/b//c"}) {
		t.Errorf("got %+v", u)
	}
}

func TestADescriptorOfAPricedRuleHasAUsageBeforeItsHolder(t *testing.T) {
	rules := must.Get(func() (*Rules, error) {
		r, _, err := Load([]Source{withTables(pricedRules, pricedTables())}, Options{})
		return r, err
	}())(t)
	d := rules.Domains()[0]
	for text, want := range map[string]string{
		"team=a usage=0/0/0/0/ r=1":        "team",
		"team=a usage=x e=1":               "team",
		"team=a r=1":                       "",
		"team=a usage=x":                   "",
		"team=a":                           "",
		"team=a usage=x r=1 e=1":           "",
		"team=a usages=x r=1":              "",
		"team=a r=1 usage=x":               "",
		"team=a project=p":                 "team,project",
		"team=a project=p usage=x r=1":     "",
		"other=a usage=0/0/0/0/m e=":       "other",
		"plain=a":                          "plain",
		"tokens=a r=1":                     "tokens",
		"tokens=a usage=x e=1":             "tokens",
		"tokens=a usage=x":                 "",
		"tokens=a other=x r=1":             "",
		"tokens=a usage=x usage=x r=1":     "",
		"plain=a usage=0/0/0/0/m r=nobody": "",
	} {
		var entries []Entry
		for pair := range strings.FieldsSeq(text) {
			key, value, _ := strings.Cut(pair, "=")
			entries = append(entries, Entry{key, value})
		}
		got := ""
		rule := d.Match(entries)
		if rule != nil {
			got = rule.Path
		}
		if got != want {
			t.Errorf("%s: matches %q; want %q", text, got, want)
		}
		if steps := d.Trace(entries); (steps[len(steps)-1].Reason == NoMatch || steps[len(steps)-1].Reason == NoHolder) != (rule == nil) {
			t.Errorf("%s: the trace is %v", text, steps)
		}
		if rule != nil && rule.Priced {
			key := string(rule.AppendKey(nil, "d", entries, &rule.Limits[0]))
			if strings.Contains(key, "usage") || !strings.HasPrefix(key, "1:d|") {
				t.Errorf("%s: the key is %s", text, key)
			}
			if again := rule.WithHolder(entries, rule.End); d.Match(again) != rule || len(again) != 3 {
				t.Errorf("%s: with another holder: %v", text, again)
			}
		}
	}
	if got := d.Nearest([]Entry{{"team", "a"}, {"r", "1"}}).String(); got != "entries are missing for the tokens and a holder: usage,r or usage,e" {
		t.Errorf("nearest: %s", got)
	}
}

func TestMistakesInPricesHaveALine(t *testing.T) {
	rule := func(limit string) string {
		return "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {" + limit + ", unit: day}\n"
	}
	const hold = ", hold: {begin: r, end: e, at_most: 1m}"
	const line = "model,input,cached_input,cache_write,output\n"
	for name, tt := range map[string]struct {
		limit, table string
		want         []string
	}{
		"a hole": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, line + "m,1,,0,2\n", []string{
			"p.csv:2: cached_input: is empty, must be the price of a million tokens, such as 1.25; 0 is free",
		}},
		"no numbers": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, line + "m,NaN,-1,1e3,1.0000001\nn,1000000.000001,99999999999999999999,0,.5\n", []string{
			"p.csv:2: input: is \"NaN\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
			"p.csv:2: cached_input: is \"-1\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
			"p.csv:2: cache_write: is \"1e3\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
			"p.csv:2: output: is \"1.0000001\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
			"p.csv:3: input: is \"1000000.000001\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
			"p.csv:3: cached_input: is \"99999999999999999999\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
			"p.csv:3: output: is \".5\", must be a price from 0 to 1000000 with at most six decimals, such as 1.25",
		}},
		"columns and models": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, line + "m,1,0,2\nn,1,1,1,1\nn,2,2,2,2\n,1,1,1,1\n", []string{
			"p.csv:2: has 4 columns, must be model,input,cached_input,cache_write,output",
			"p.csv:4: model: \"n\" is given twice, first in line 3",
			"p.csv:5: model: is empty, must be the value of an entry, as Envoy sends it",
		}},
		"no lines": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, line, []string{
			"p.csv:1: has no prices, must have a line for at least one model",
		}},
		"other names": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, "model,input,output\nm,1,2\n", []string{
			"p.csv:1: is the line of names of a table of prices, must be model,input,cached_input,cache_write,output",
			"p.csv:2: has 3 columns, must be model,input,cached_input,cache_write,output",
		}},
		"a table of values": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, "value,requests_per_unit\nm,1\n", []string{
			"rules.yaml:4: descriptors[0].rate_limit.prices.table: p.csv is no table of prices: the first line must be model,input,cached_input,cache_write,output",
		}},
		"as a table of values": {"requests_per_unit: 1, table: p.csv", line + "m,1,1,1,1\n", []string{
			"rules.yaml:4: descriptors[0].rate_limit.table: p.csv is a table of prices, must stand under prices",
		}},
		"unknown": {"budget: 1, prices: {table: p.csv, unknown: free}" + hold, line + "m,1,1,1,1\n", []string{
			"rules.yaml:4: descriptors[0].rate_limit.prices.unknown: is \"free\", must be deny or default: the price of a model without a line",
		}},
		"no default": {"budget: 1, prices: {table: p.csv, unknown: default}" + hold, line + "m,1,1,1,1\n", []string{
			"rules.yaml:4: descriptors[0].rate_limit.prices.unknown: is default, and p.csv has no line for the model *: must have one, or unknown must be deny",
		}},
		"a default that is not used": {"budget: 1, prices: {table: p.csv, unknown: deny}" + hold, line + "*,1,1,1,1\n", []string{
			"rules.yaml:4: descriptors[0].rate_limit.prices.unknown: is deny, and p.csv has a line for the model *: must be default, or the table must not have that line",
		}},
		"nothing beside": {"requests_per_unit: 1, prices: {table: q.csv}", "", []string{
			"rules.yaml:4: descriptors[0].rate_limit.prices: is for a limit with a budget: must stand beside budget",
			"rules.yaml:4: descriptors[0].rate_limit.prices: is for a limit with a hold, as the price is known at the end: must stand beside hold",
			"rules.yaml:4: descriptors[0].rate_limit.prices.unknown: is \"\", must be deny or default: the price of a model without a line",
			"rules.yaml:4: descriptors[0].rate_limit.prices.table: q.csv: no such file",
		}},
		"budgets": {"requests_per_unit: 1, budget: 9007199254.740992", "", []string{
			"rules.yaml:4: descriptors[0].rate_limit.requests_per_unit: stands beside budget: must be one of the two",
			"rules.yaml:4: descriptors[0].rate_limit.budget: is \"9007199254.740992\", must be at most 9007199254.740991",
		}},
		"a large budget of a bucket": {"budget: 4294.967296, algorithm: token_bucket", "", []string{
			"rules.yaml:4: descriptors[0].rate_limit.budget: is \"4294.967296\", must be at most 4294.967295 for token_bucket: more needs fixed_window",
		}},
		"a large budget of a sliding count": {"budget: 25000.00, algorithm: sliding_window_counter", "", []string{
			"rules.yaml:4: descriptors[0].rate_limit.budget: is \"25000.00\", must be at most 4294.967295 for sliding_window_counter: more needs fixed_window",
		}},
		"a descriptor with the key usage": {"requests_per_unit: 1, unit: day" + hold + "}\n    descriptors: [{key: usage}]\n  - key: b\n    rate_limit: {requests_per_unit: 1", "", []string{
			"rules.yaml:4: descriptors[0].rate_limit.hold.begin: stands above a descriptor with the key usage, in line 5: " +
				"that entry has the tokens of a request with a holder",
		}},
		"no amount": {"budget: .inf", "", []string{
			"rules.yaml:4: descriptors[0].rate_limit.budget: is \".inf\", must be an amount of money with at most six decimals, such as 25 or 0.50",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Load([]Source{withTables(rule(tt.limit), map[string]string{"p.csv": tt.table})}, Options{})
			all, _ := errors.AsType[Errors](err)
			var got []string
			for _, e := range all {
				got = append(got, e.Error())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// A table of values may have a value model.
func TestATableOfPricesBeginsWithItsNames(t *testing.T) {
	if table := NewTable("t.csv", []byte("model,100\nother,5\n")); table.Err() != nil || table.prices != nil || table.Len() != 2 {
		t.Errorf("got %+v, %v", table, table.Err())
	}
}

func TestMoneyIsADecimalNumber(t *testing.T) {
	for micros, want := range map[uint64]string{0: "0.00", 1: "0.000001", 500_000: "0.50", 25_000_000: "25.00", 1_234_500: "1.2345", 1<<32 - 1: "4294.967295"} {
		if got := Money(micros); got != want {
			t.Errorf("Money(%d) = %s; want %s", micros, got, want)
		}
	}
}

func TestAChangeOfPricesIsAChangeOfTheRule(t *testing.T) {
	hash := func(document string, edit func(map[string]string)) string {
		tables := pricedTables()
		edit(tables)
		rules, _, err := Load([]Source{withTables(document, tables)}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return rules.Hash()
	}
	same := func(map[string]string) {}
	was := hash(pricedRules, same)
	lines := strings.Split(pricesCSV, "\n")
	if got := hash(pricedRules, func(m map[string]string) { m["p.csv"] = strings.Join([]string{lines[0], lines[2], lines[1]}, "\n") }); got != was {
		t.Error("another order of lines is another hash")
	}
	for name, got := range map[string]string{
		"a price":  hash(pricedRules, func(m map[string]string) { m["p.csv"] = strings.Replace(pricesCSV, "0.125", "0.126", 1) }),
		"a model":  hash(pricedRules, func(m map[string]string) { m["p.csv"] = pricesCSV + "new,1,1,1,1\n" }),
		"a budget": hash(strings.Replace(pricedRules, "0.50", "0.51", 1), same),
		"no money": hash(strings.Replace(pricedRules, "budget: 4294.967295", "requests_per_unit: 4294967295", 1), same),
	} {
		if got == was {
			t.Errorf("%s: the hash is the same", name)
		}
	}
}

package cases_test

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/conformance/cases"
)

func TestEachDocumentLoads(t *testing.T) {
	t.Parallel()
	documents, err := cases.Load()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, d := range documents {
		n += len(d.Cases)
	}
	if n < 300 {
		t.Errorf("got %d cases, want several hundred", n)
	}
}

func TestABadDocumentNamesEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := cases.Parse("bad", []byte(`
domains: [{domain: d}]
cases:
  - {name: a, from: x, claim: y, domain: other, needs: [wings], steps: [{ask: "k", is: OK}]}
  - {name: a, claim: y, profile: best, steps: [{ask: "k=v", is: MAYBE, wait: 1s}, {race: {ask: "k=v"}}]}
`))
	if err == nil {
		t.Fatal("a bad document loads")
	}
	for _, part := range []string{
		"about is missing", `no domain "other"`, `needs "wings"`, "has no =", "given twice", "claim or from", `profile "best"`,
		"one action", "a race needs",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
}

func TestARequestHasItsWords(t *testing.T) {
	t.Parallel()
	r, err := cases.ParseRequest("a=$%2C,b= +3 limit:5/week {c=# *2} - -4 hits:7 domain:other timeout:20ms", "d", "fresh")
	if err == nil {
		t.Fatalf("a unit that the protocol lacks is taken: %v", r.Message)
	}
	r, err = cases.ParseRequest("a=$%2C,b= +3 limit:5/day {c=# *2} -4 hits:7 domain:other timeout:20ms", "d", "fresh")
	if err != nil {
		t.Fatal(err)
	}
	all := r.Message.GetDescriptors()
	if len(all) != 3 || all[0].GetEntries()[0].GetValue() != "fresh," || all[0].GetHitsAddend().GetValue() != 3 ||
		all[0].GetLimit().GetRequestsPerUnit() != 5 || all[2].GetEntries()[0].GetValue() != "1" || !all[2].GetIsNegativeHits() ||
		r.Message.GetHitsAddend() != 7 || r.Message.GetDomain() != "other" || r.Timeout.Milliseconds() != 20 {
		t.Errorf("got %v, timeout %s", r.Message, r.Timeout)
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add("a=$,b=c +3 -4 limit:5/day hits:7 {x=# *3} -")
	f.Fuzz(func(_ *testing.T, text string) {
		// Errors are right, as long as nothing panics.
		_, _ = cases.ParseRequest(text, "d", "fresh")
	})
}

func FuzzParseAnswer(f *testing.F) {
	f.Add("OK|OVER [OK 3..4 5/hour name=x reset=hour] [none]")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = cases.ParseAnswer(text)
	})
}

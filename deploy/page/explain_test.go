package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/weirproxy/weir/test/parts"
)

func TestExplainAsksAboutAnyNumberOfHits(t *testing.T) {
	w := serve(t, shop)
	b := watch(t, w)
	b.awaitText("#live", "live")
	const field, answer = "#explain-form [name=hits]", "#explain-answer"
	// hits types a number in the place of the one in the field.
	hits := func(number string) {
		b.t.Helper()
		b.do(script("(e => { e.focus(); e.select(); })(document.querySelector(%q))", field))
		b.keys(kb.Backspace + number)
	}
	b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "path=/search,client_id=zoe\nplan=silver,user=zoe"))

	for _, test := range []struct{ name, hits, beside, want string }{
		{"as many as the burst", "10", "client_id=zoe × 10", "allowed, 0 left after that"},
		{"more than the limit ever has", "11", "client_id=zoe × 11", "denied, always: the limit never has so many hits"},
		{"none, which asks for the hits that are left", "0", "client_id=zoe × 0", "allowed, 10 left after that"},
		{"the most", "4294967295", "client_id=zoe × 4294967295", "denied, always"},
		{"one", "1", "client_id=zoe\n", "allowed, 9 left after that"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.t = t
			hits(test.hits)
			b.keys(kb.Enter)
			b.awaitText(answer, test.beside)
			b.awaitText(answer, test.want)
			b.awaitText(answer, "is not limited plan=silver,user=zoe")
		})
	}
	t.Run("hits that are used up", func(t *testing.T) {
		b.t = t
		url := throughEnvoy(t, w)
		for range 20 { // of 1000, which an hour gives back
			if code, err := ask(parts.Soon(t), url+"/", "X-Plan", "free_trial", "X-User", "zoe"); err != nil || code != 200 {
				t.Fatalf("got %d, %v", code, err)
			}
		}
		b.do(fill("#explain-form [name=descriptors]", "plan=free_trial,user=zoe"))
		hits("1000")
		b.keys(kb.Enter)
		b.awaitText(answer, "would be denied plan=free_trial,user=zoe × 1000")
		b.await("/denied, the same hits pass in \\d[\\d.]* s/.test(document.querySelector('" + answer + "').innerText)")
	})

	const asked = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/api/Explain')).length"
	before := eval[float64](b, asked)
	for _, test := range []struct{ name, hits, mistake string }{
		{"a number below 0", "-1", "rangeUnderflow"},
		{"a number above the most", "4294967296", "rangeOverflow"},
		{"a part of a hit", "1.5", "stepMismatch"},
		{"nothing", "", "valueMissing"},
		{"no number", "e", "badInput"},
	} {
		t.Run(test.name+" is a mistake that the field names", func(t *testing.T) {
			b.t = t
			hits(test.hits)
			b.do(script("document.querySelector('#explain-form button').focus()"))
			b.keys(kb.Enter)
			b.await("document.activeElement === document.querySelector('" + field + "')")
			if !eval[bool](b, "(e => e.validity."+test.mistake+" && e.validationMessage.length > 10)(document.activeElement)") {
				t.Errorf("the field has %q", eval[string](b, "document.activeElement.validationMessage"))
			}
		})
	}
	t.Run("a mistake of the descriptors comes from the service", func(t *testing.T) {
		b.t = t
		hits("7")
		b.allow("/api/Explain")
		b.do(fill("#explain-form [name=descriptors]", "path=/checkout\n=x"))
		b.keys(kb.Enter)
		b.await("document.querySelector('" + answer + " .bad') !== null")
		b.awaitText(answer, "descriptors[1].entries[0].key: must not be empty")
		if now := eval[float64](b, asked); now != before+1 {
			t.Errorf("the service was asked %v times more, want once: a mistake in the field must not reach it", now-before)
		}
	})
	b.t = t
}

func TestExplainShowsTheLearnedEstimate(t *testing.T) {
	w := serve(t, `domain: llm
descriptors:
  - key: user
    rate_limit: {budget: 5, unit: hour, hold: {begin: request, end: done, at_most: 1h, estimate: {learned: {quantile: 0.95, ceiling: 0.5}}}}
`)
	b := watch(t, w)
	b.awaitText("#live", "live")
	b.do(fill("#explain-form [name=domain]", "llm"), fill("#explain-form [name=descriptors]", "user=ann,request=1"))
	b.do(script("document.querySelector('#explain-form button').focus()"))
	b.keys(kb.Enter)
	b.awaitText("#explain-answer", "nothing yet, so the estimate is as sent; to cover 95 %, at most 0.50")
	for i := range 20 {
		body := fmt.Sprintf(`{"domain": "llm", "descriptors": [{"entries": [{"key": "user", "value": "ann"}, {"key": "done", "value": "%d"}], "hitsAddend": "%d"}]}`, i, 1000*i+1000)
		answer, err := http.Post("http://"+w.HTTP+"/json", "application/json", strings.NewReader(body)) //nolint:noctx // a test
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer, err)
		}
		_ = answer.Body.Close()
	}
	b.do(script("document.querySelector('#explain-form button').focus()"))
	b.keys(kb.Enter)
	b.awaitText("#explain-answer", "a begin holds 0.02; to cover 95 %, at most 0.50")
}

func TestExplainShowsTheSchedule(t *testing.T) {
	w := serve(t, `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5, schedule: [{until: 2001-01-01, factor: 3}, {days: mon-sun, requests_per_unit: 9}]}
`)
	b := watch(t, w)
	b.awaitText("#live", "live")
	b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "user=ann"))
	b.do(script("document.querySelector('#explain-form button').focus()"))
	b.keys(kb.Enter)
	b.awaitText("#explain-answer", "9 per hour")
	b.awaitText("#explain-answer", "until 2001-01-01 UTC: 3 times; mon-sun UTC: 9 (now); no change is known")
}

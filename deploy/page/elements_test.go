// Package page holds tests of the admin page in a real Chromium, with traffic through a real Envoy.
// The tests are in the module of the manifests, so that the driver of the browser stays out of the
// module of Weir.
package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// TestAnEngineerSeesWhatIsWrong goes through the page from the top to the bottom.
func TestAnEngineerSeesWhatIsWrong(t *testing.T) {
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	b := watch(t, w)

	t.Run("first whether requests are denied, by which rule, for whom, and the store", func(t *testing.T) {
		b.t = t
		b.awaitText("#verdict", "of the requests are denied")
		b.awaitText("#verdict", "shop: path=/search,client_id (shop.yaml:6)")
		b.awaitText("#verdict", "most of these for path=/search,client_id=alice")
		b.awaitText("#verdict", "match no rule")
		b.awaitText("#verdict", "Counts are in memory")
		if first := eval[string](b, "document.querySelector('#verdict li').innerText"); !strings.Contains(first, "are denied") {
			t.Errorf("the first line is %q", first)
		}
		if bottom := eval[float64](b, "document.querySelector('#verdict').getBoundingClientRect().bottom"); bottom > 300 {
			t.Errorf("the verdict ends %v pixels from the top; want it in sight at once", bottom)
		}
		b.await("document.body.dataset.level === 'warn' && document.title.includes('% denied')")
	})
	t.Run("rates, times and the store with units", func(t *testing.T) {
		b.t = t
		for tile, want := range map[string]string{"all": "/s", "denied": "%", "time": "p99", "store": "of 1M places"} {
			b.awaitText("#tile-"+tile, want)
		}
	})
	t.Run("charts with denied and passed requests, and times", func(t *testing.T) {
		b.t = t
		for _, path := range []string{"#chart-requests path.denied", "#chart-requests path.passed", "#chart-time path.p99", "#chart-time path.p50"} {
			b.await(fmt.Sprintf("(document.querySelector(%q)?.getAttribute('d') ?? '').includes('L')", path))
		}
		b.await("document.querySelector('#chart-requests .plot').getAttribute('aria-label').includes('denied')")
	})
	t.Run("a new second comes each second", func(t *testing.T) {
		b.t = t
		b.await("recent.length > 3 && recent.at(-1).point.t - recent.at(-3).point.t < 2500 && Date.now() - state.point.t < 1500")
		b.await(fmt.Sprintf("state.point.t >= %f + 2000", eval[float64](b, "state.point.t")))
	})
	t.Run("rules with their file, limit, rates and curve", func(t *testing.T) {
		b.t = t
		row := "#rules-rows > tr"
		b.awaitText(row, "path=/search,client_id")
		b.awaitText(row, "5 per 1s, token_bucket, burst 10")
		b.await("document.querySelector('#rules-rows > tr td[data-label=Denied]').innerText.includes('%')")
		b.awaitText("#rules-rows", "shadow")
		b.await("(document.querySelector('#rules-rows > tr .spark path.denied')?.getAttribute('d') ?? '').includes('L')") // after 15 s
	})
	t.Run("a rule opens to its keys", func(t *testing.T) {
		b.t = t
		b.click("#rules-rows > tr .open")
		b.awaitText("#rules-rows .detail", "client_id=alice")
		b.awaitText("#rules-rows .detail", "of 5 per second, burst 10")
		if all := eval[string](b, "document.querySelector('#rules-rows .detail').innerText"); strings.Contains(all, "/export") {
			t.Errorf("the keys of another rule are among them: %s", all)
		}
	})
	t.Run("the keys of all rules, by other orders", func(t *testing.T) {
		b.t = t
		b.awaitText("#keys-all tbody tr", "client_id=alice")
		b.do(choose("#keys-all select", "TOP_ORDER_HITS"))
		b.awaitText("#keys-all", "path=/checkout")
		b.await("document.querySelector('#keys-all .bar i').style.width.endsWith('%')")
	})
	t.Run("requests as they happen, with filters and a pause", func(t *testing.T) {
		b.t = t
		b.do(scroll("#tail"))
		b.awaitText("#tail-rows", "path=/checkout")
		b.do(choose("#tail-form [name=outcome]", "over_limit"))
		b.await("document.querySelectorAll('#tail-rows tr').length > 3 && [...document.querySelectorAll('#tail-rows .tag')].every(e => e.innerText === 'denied')")
		b.awaitText("#tail-rows", "passes in")
		for end := time.Now().Add(parts.Within); !strings.Contains(eval[string](b, "document.querySelector('#tail-rows').innerText"), "never passes, by 5 per second"); {
			if time.Now().After(end) {
				t.Fatal("the page does not say that hits above the burst never pass")
			}
			moreThanTheBurst(t, w) // again: other requests push a row out soon
		}
		b.do(choose("#tail-form [name=outcome]", "unmatched"))
		b.awaitText("#tail-rows", "plan=silver,user=erin")
		b.awaitText("#tail-rows", "this level has")
		b.click("#tail-pause")
		b.awaitText("#tail-state", "Paused")
		n := eval[string](b, "document.querySelector('#tail-rows').innerText")
		time.Sleep(1500 * time.Millisecond) // three requests match the filter in that time
		if now := eval[string](b, "document.querySelector('#tail-rows').innerText"); now != n {
			t.Error("requests came while the tail was paused")
		}
		b.click("#tail-pause")
		b.await(fmt.Sprintf("document.querySelector('#tail-rows').innerText !== %q", n))
	})
	t.Run("a request is explained", func(t *testing.T) {
		b.t = t
		b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "path=/search,client_id=carol\nplan=silver,user=x"))
		b.click("#explain-form button")
		b.awaitText("#explain-answer", "would pass")
		b.awaitText("#explain-answer", "5 per second, burst 10, token_bucket")
		b.awaitText("#explain-answer", "is not limited")
		b.do(fill("#explain-form [name=domain]", "shopp"))
		b.click("#explain-form button")
		b.awaitText("#explain-answer", "The domain has no rules, so nothing is limited. There are: shop.")
	})
	t.Run("a key is reset", func(t *testing.T) {
		b.t = t
		b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "plan=free_trial,user=dave"))
		b.click("#explain-form button")
		b.awaitText("#explain-answer", "1,000 per hour")
		b.click("#explain-answer .panel button")
		b.awaitText("#ask-dialog", "Forget the count of plan=free_trial,user=dave in shop?")
		b.click("#ask-ok")
		b.awaitText("#message", "The count of plan=free_trial,user=dave is forgotten.")
	})
	t.Run("rules that are refused, and their mistakes", func(t *testing.T) {
		b.t = t
		b.awaitText("#loaded-state", "succeeded")
		parts.Write(t, w.rules, "domain: shop\ndescriptors:\n  - key: path\n    rate_limitt: {}\n")
		b.click("#reload")
		b.awaitText("#reload-answer", "Refused")
		b.awaitText("#loaded-state", "shop.yaml:4")
		b.awaitText("#verdict", "The last load of rules was refused")
		b.await("document.body.dataset.level === 'bad'")
		parts.Write(t, w.rules, shop)
		b.click("#reload")
		b.awaitText("#reload-answer", "Loaded: 5 rules.")
		b.await("!document.querySelector('#verdict').innerText.includes('refused')")
	})
}

func TestTheStoreIsSeenToGoAndToComeBack(t *testing.T) {
	r := parts.RedisFor(t, parts.RedisOptions{})
	w := serve(t, shop, "--store=redis", "--redis-url=redis://"+r.Address())
	traffic(t, throughEnvoy(t, w))
	b := watch(t, w)
	b.awaitText("#verdict", "Redis answers")
	b.awaitText("#tile-store", "p99")
	if err := r.Stop(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	b.awaitText("#verdict", "Redis does not answer")
	b.awaitText("#verdict", "were decided without it")
	b.await("document.body.dataset.level === 'bad' && document.querySelector('#verdict li').innerText.includes('Redis')")
	b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "path=/search,client_id=zoe"))
	b.click("#explain-form button")
	b.await("/left after that; reset after [\\d.]+ m?s, without redis/.test(document.querySelector('#explain-answer').innerText)")
	if err := r.Restart(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	b.awaitText("#verdict", "Redis answers")
}

// moreThanTheBurst asks for more hits than a limit ever has.
func moreThanTheBurst(t *testing.T, w *weir) {
	t.Helper()
	_, _, err := parts.Page(parts.Soon(t), http.MethodPost, "http://"+w.HTTP+"/json", `{"domain": "shop", "hitsAddend": 11,
		"descriptors": [{"entries": [{"key": "path", "value": "/search"}, {"key": "client_id", "value": "zoe"}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
}

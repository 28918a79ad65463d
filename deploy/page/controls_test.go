package page

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Each filter, order and button does its work, while requests come through Envoy.
func TestEveryControlWorksUnderTraffic(t *testing.T) {
	w := serve(t, shop)
	url := throughEnvoy(t, w)
	traffic(t, url)
	b := watch(t, w)
	b.awaitText("#live", "live")
	b.awaitText("#verdict", "match no rule")

	t.Run("a sentence leads to its requests", func(t *testing.T) {
		b.t = t
		b.click("#verdict a[href='#tail']")
		b.await("document.querySelector('#tail-form [name=outcome]').value === 'unmatched'")
		b.awaitText("#tail-rows", "plan=silver,user=erin")
	})
	t.Run("requests are filtered by rule, entry and domain", func(t *testing.T) {
		b.t = t
		b.do(choose("#tail-form [name=outcome]", ""))
		for _, filter := range []struct{ field, value, column, all string }{
			{"rule", "path=/checkout", "td:nth-child(4)", "path=/checkout"},
			{"entry", "client_id=alice", "th", "client_id=alice"},
			{"entry", "user", "th", "user="},
			{"domain", "shop", "th small", "shop"},
		} {
			b.do(fill("#tail-form [name="+filter.field+"]", filter.value))
			b.click("#tail-form button[type=submit]")
			b.await(fmt.Sprintf("document.querySelectorAll('#tail-rows tr').length > 1 && [...document.querySelectorAll('#tail-rows tr %s')].every(e => e.innerText.includes(%q))", filter.column, filter.all))
			b.do(fill("#tail-form [name="+filter.field+"]", ""))
		}
		b.do(fill("#tail-form [name=domain]", "nothing"))
		b.click("#tail-form button[type=submit]")
		b.awaitText("#tail-state", "Waiting for requests that fit the filter.")
		before := eval[float64](b, "state.point.t")
		b.await(fmt.Sprintf("state.point.t >= %f + 2000", before))
		if n := eval[float64](b, "document.querySelectorAll('#tail-rows tr').length"); n > 0 {
			t.Errorf("%v requests of a domain without requests", n)
		}
	})
	t.Run("keys by their use, over ten minutes, with limit, used part and reset", func(t *testing.T) {
		b.t = t
		b.do(choose("#keys-all select[id$=window]", "600s"), choose("#keys-all select[id$=order]", "TOP_ORDER_USED"))
		b.await("document.querySelector('#keys-all tbody td[data-label=Used]')?.innerText.startsWith('100') && document.querySelector('#keys-all .note').innerText.startsWith('of the last')")
		b.await("/^\\d[\\d.]* (µs|ms|s|min|h)$/.test(document.querySelector('#keys-all tbody td[data-label=\"Reset after\"]').innerText)")
		b.await("/ of \\d+ per \\w+.*, \\d+ left$/.test(document.querySelector('#keys-all tbody td[data-label=Used]').innerText)")
	})
	t.Run("the curve of a rule that denies nobody has no denials", func(t *testing.T) {
		b.t = t
		const checkout = "[...document.querySelectorAll('#rules-rows > tr')].find(e => e.innerText.includes('path=/checkout'))"
		b.await("(" + checkout + ".querySelector('path.passed').getAttribute('d') ?? '').includes('L')") // after 15 s
		if height := eval[float64](b, checkout+".querySelector('path.denied').getBBox().height"); height > 0 {
			t.Errorf("the curve of denials is %v high", height)
		}
	})
	t.Run("a rule in shadow mode denies nobody", func(t *testing.T) {
		b.t = t
		b.awaitText("#rules-rows", "100\u00a0% in shadow")
		b.do(choose("#keys-all select[id$=order]", "TOP_ORDER_DENIED"))
		b.await("[...document.querySelectorAll('#keys-all tbody tr')].some(e => e.innerText.includes('path=/export') && e.innerText.includes('in shadow') && e.className === '')")
		if verdict := eval[string](b, "document.querySelector('#verdict').innerText"); strings.Contains(verdict, "/export") {
			t.Errorf("the sentences: %s", verdict)
		}
	})

	key := func(user string) string {
		return "[...document.querySelectorAll('#keys-all tbody tr')].find(e => e.innerText.includes('user=" + user + "'))"
	}
	press := func(user, text string) {
		b.t.Helper()
		b.await("(e => { e?.click(); return e })(" + key(user) + "?.querySelector(\"button[aria-label^='" + text + "']\"))")
	}
	t.Run("the button of a key resets it", func(t *testing.T) {
		b.t = t
		end := repeat(t, 10*time.Millisecond, url+"/", "X-Plan", "free_trial", "X-User", "fred")
		b.do(choose("#keys-all select[id$=order]", "TOP_ORDER_HITS"))
		left := "Number(" + key("fred") + "?.innerText.match(/([\\d,]+) left/)?.[1].replace(',', ''))"
		b.await(left + " < 900") // an hour gives back 1000
		end()
		press("fred", "Reset")
		b.awaitText("#ask-dialog", "user=fred")
		b.click("#ask-ok")
		b.awaitText("#message", "is forgotten")
		b.await(left + " === 1000")
	})
	t.Run("the buttons of a key grant a number and no limit, and block", func(t *testing.T) {
		b.t = t
		for _, gives := range []struct{ button, radio, want string }{
			{"Grant", "number", "70 per period"}, {"Grant", "unlimited", "no limit"}, {"Block", "block", "blocked"},
		} {
			press("dave", gives.button)
			b.await("document.querySelector('#grant-dialog').open")
			if gives.button == "Grant" {
				b.click("#grant-form [value=" + gives.radio + "]")
			}
			b.do(fill("#grant-form [name=number]", "70"), fill("#grant-form [name=reason]", "ticket 43"))
			b.click("#grant-form button.main")
			b.awaitText("#grants-rows", gives.want)
			b.await("!document.querySelector('#grant-dialog').open")
		}
		b.await(key("dave") + "?.className === 'warn'") // denied
	})
	t.Run("a service that goes is seen to go", func(t *testing.T) {
		b.t = t
		b.allow("net::ERR_")
		w.Kill()
		b.await("document.querySelector('#live').className === 'live bad' && document.querySelector('#live').innerText === 'not connected'")
	})
}

package page

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

const budgets = `domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 10, align: {to: calendar}, warn_at: 80%}
  - key: plain
    rate_limit: {unit: day, requests_per_unit: 10}
`

// A rule with warn_at shows how much its keys have used. A key there gets more for its window.
func TestARuleShowsTheUseOfItsKeysWhichAreToppedUp(t *testing.T) {
	w := serve(t, budgets)
	conn := dial(t, w.GRPC)
	for range 9 {
		must.Do(t, send(t.Context(), conn, "shop", "tenant=acme"))
	}
	must.Do(t, send(t.Context(), conn, "shop", "tenant=globex", "plain=x"))
	b := watch(t, w)
	open := func(path string) {
		t.Helper()
		b.await("[...document.querySelectorAll('#rules-rows [aria-expanded=false]')].some(e => e.innerText.includes('" + path + "'))")
		b.do(script("[...document.querySelectorAll('#rules-rows [aria-expanded=false]')].find(e => e.innerText.includes('%s')).click()", path))
	}
	open("plain")
	open("tenant")
	b.awaitText("#rules-rows .usage", "9 of 10, 90")
	b.awaitText("#rules-rows .usage", "tenant=globex")
	if n := eval[float64](b, "document.querySelectorAll('#rules-rows .usage').length"); n != 1 {
		t.Errorf("%v rules show the use of keys; want the one with warn_at", n)
	}

	b.click("#rules-rows .usage button[aria-label='Top up tenant=acme']")
	b.awaitText("#grant-title", "More for one key in this window")
	b.awaitText("#grant-preview", "10 per day → 110 in this window")
	b.do(fill("#grant-form [name=add]", "5"), fill("#grant-form [name=reason]", "ticket 44"))
	b.awaitText("#grant-preview", "10 per day → 15 in this window")
	if !eval[bool](b, "document.querySelector('#grant-for').hidden") {
		t.Error("a grant for this window asks for its end")
	}
	b.click("#grant-form button.main")
	b.awaitText("#message", "Granted until")
	b.awaitText("#grants-rows", "5 more in one window")
	b.awaitText("#rules-rows .usage", "9 of 15, 60")

	b.do(choose("#rules-rows .usage select", "last"))
	b.awaitText("#rules-rows .usage", "No key has used any.")
}

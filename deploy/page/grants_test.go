package page

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAKeyIsGrantedMoreBlockedAndRevoked(t *testing.T) {
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	b := watch(t, w)
	b.awaitText("#grants-rows", "No key has a grant.")
	b.awaitText("#keys-all tbody tr", "client_id=alice")
	dialog := func(want string) {
		t.Helper()
		b.await("document.querySelector('#grant-dialog').open")
		b.awaitText("#grant-title", want)
	}

	// More for the key that is denied most.
	b.click("#keys-all tbody tr button[aria-label^='Grant']")
	dialog("Another limit")
	if got := eval[string](b, "document.querySelector('#grant-form').elements.entries.value"); got != "path=/search,client_id=alice" {
		t.Errorf("the form is about %q", got)
	}
	b.click("#grant-form button.main")
	b.await("document.querySelector('#grant-dialog').open && !document.querySelector('#grant-form').checkValidity()") // without a reason
	b.do(fill("#grant-form [name=factor]", "20"), fill("#grant-form [name=reason]", "ticket 42"), fill("#grant-form [name=by]", "ops"))
	b.click("#grant-form button.main")
	b.awaitText("#message", "Granted until")
	b.awaitText("#grants-rows", "20 times its limit")
	b.awaitText("#grants-rows", "by ops")
	b.awaitText("#rules-rows", "path=/search,client_id")
	b.await("!document.querySelector('#verdict').innerText.includes('client_id=alice') || lately().no < 5") // alice passes

	// The form of a request shows the grant.
	b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "path=/search,client_id=alice"))
	b.click("#explain-form button")
	b.awaitText("#explain-answer", "ticket 42")

	// A block takes effect at once, and shows.
	b.do(fill("#explain-form [name=descriptors]", "path=/checkout"))
	b.click("#explain-form button")
	b.await("document.querySelector('#explain-answer .panel button:last-child')?.innerText === 'Block' && document.querySelector('#explain-answer').innerText.includes('100,000 per minute')")
	b.click("#explain-answer .panel button:last-child")
	dialog("Block one key")
	b.do(fill("#grant-form [name=reason]", "attack"))
	b.click("#grant-form button.main")
	b.awaitText("#grants-rows", "blocked")
	b.awaitText("#verdict", "shop: path=/checkout")

	// Both end.
	for range 2 {
		b.click("#grants-rows button")
		b.awaitText("#ask-dialog", "End the grant of")
		n := eval[float64](b, "document.querySelectorAll('#grants-rows tbody tr').length")
		b.click("#ask-ok")
		if n == 2 {
			b.await("document.querySelectorAll('#grants-rows tbody tr').length === 1 && !document.querySelector('#ask-dialog').open")
		}
	}
	b.awaitText("#grants-rows", "No key has a grant.")

	// A mistake stays in the form, with the reason.
	b.allow("/api/Grant")
	b.click("#grant-new")
	dialog("Another limit")
	b.do(fill("#grant-form [name=domain]", "shop"), fill("#grant-form [name=entries]", "nothing=here"), fill("#grant-form [name=reason]", "x"))
	b.click("#grant-form button.main")
	b.await("!document.querySelector('#grant-error').hidden && document.querySelector('#grant-error').innerText.length > 10 && document.querySelector('#grant-dialog').open")
	b.click("#grant-form .cancel")
	b.await("!document.querySelector('#grant-dialog').open")
}

// Without the state directory a revoke counts at once, and a restart undoes it. The page says so.
func TestARevokeThatIsNotKeptSaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := serve(t, shop, "--state-dir="+dir)
	b := watch(t, w)
	b.awaitText("#grants-rows", "No key has a grant.")
	give := func(entries string) {
		t.Helper()
		b.click("#grant-new")
		b.await("document.querySelector('#grant-dialog').open")
		b.do(fill("#grant-form [name=domain]", "shop"), fill("#grant-form [name=entries]", entries), fill("#grant-form [name=reason]", "x"))
		b.click("#grant-form button.main")
		b.awaitText("#message", "kept in the state directory")
		b.awaitText("#grants-rows", entries)
	}
	end := func() {
		t.Helper()
		b.click("#grants-rows button")
		b.awaitText("#ask-dialog", "End the grant of")
		b.click("#ask-ok")
		b.awaitText("#message", "has ended")
	}
	give("plan=free_a,user=erin")
	end()
	if text := eval[string](b, "document.querySelector('#message').innerText"); text != "The grant of plan=free_a,user=erin has ended." {
		t.Errorf("with the directory the page says %q", text)
	}
	give("plan=free_a,user=dave")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end()
	b.awaitText("#message", "has ended, but a restart may bring it back, as the state directory cannot be written: ")
	b.awaitText("#grants-rows", "No key has a grant.")
	b.awaitText("#grants-kept", "Kept in memory: a restart goes back to the saved grants")
}

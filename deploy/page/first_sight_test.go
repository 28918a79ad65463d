package page

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// examples runs a sidecar with the example rules, and sends the requests of two clients to it. Of
// the three descriptors of a request the last one is denied soon.
func examples(t *testing.T) *weir {
	t.Helper()
	// The page shows the path, which can be long.
	temp, err := os.MkdirTemp("", "of-somebody") //nolint:usetesting // TempDir has a word that is too long for the page
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(temp) })
		err = os.Symlink(parts.RootFor(t)+"/deploy/rules", temp+"/directory-with-a-long-name")
	}
	if err != nil {
		t.Fatal(err)
	}
	w := serveFiles(t, temp+"/directory-with-a-long-name")
	conn := dial(t, w.GRPC)
	again(t, 50*time.Millisecond, func(ctx context.Context) {
		_ = send(ctx, conn, "edge", "remote_address=192.0.2.7", "api_key=alice", "path=/hello,api_key=alice") // a stop may come first
	})
	again(t, 300*time.Millisecond, func(ctx context.Context) {
		_ = send(ctx, conn, "edge", "path=/files/report-of-a-customer-with-a-long-name.pdf/download,api_key=bob", "api_key=bob,path=/cart")
	})
	return w
}

// A page that shows old figures as if they were of now is worse than no page.
func TestOldFiguresAreSeenToBeOld(t *testing.T) {
	w := examples(t)
	b := watch(t, w)
	b.awaitText("#verdict", "are denied")
	const (
		state = "document.querySelector('#live')"
		color = "getComputedStyle(document.querySelector('#tile-denied')).color"
	)
	b.await("document.querySelector('#stale').hidden && (window.live = " + color + ")")
	live := eval[string](b, "window.live")
	old := func() {
		t.Helper()
		b.await(state + ".classList.contains('bad') && document.body.dataset.level === 'bad' && document.title.startsWith('✕')")
		b.awaitText("#stale", "the figures are of ")
		if dimmed := eval[string](b, color); dimmed == live {
			t.Errorf("the figures have the color %s as before", dimmed)
		}
		if bad := eval[string](b, contrast); bad != "" {
			t.Errorf("texts with too little contrast:\n%s", bad)
		}
	}
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(w.PID(), s); err != nil {
			t.Fatal(err)
		}
	}

	signal(syscall.SIGSTOP)
	b.await("/^no news for \\d+ s$/.test(" + state + ".innerText)")
	old()
	if since := eval[float64](b, "Number("+state+".innerText.match(/\\d+/)[0])"); since < 5 {
		t.Errorf("no news for %v s: a second that is late says nothing", since)
	}
	signal(syscall.SIGCONT)
	b.await(state + ".innerText === 'live' && document.querySelector('#stale').hidden && " + fmt.Sprintf("%s === %q", color, live))

	b.allow("net::ERR_")
	w.Kill()
	b.awaitText("#live", "not connected")
	old()
}

// A few denials of each of many clients are more than many denials of one. The first sentence names
// the rule, and a client of the same rule.
func TestTheFirstSentenceNamesARuleAndAClientOfIt(t *testing.T) {
	w := serve(t, `domain: shop
descriptors:
  - {key: client, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: plan, value: free, rate_limit: {unit: hour, requests_per_unit: 0}}
`)
	conn, n := dial(t, w.GRPC), 0
	again(t, 10*time.Millisecond, func(ctx context.Context) {
		n++
		_ = charge(ctx, conn, "shop", "client", fmt.Sprintf("c%d", n%50)) // a stop may come first
	})
	again(t, 50*time.Millisecond, func(ctx context.Context) { _ = charge(ctx, conn, "shop", "plan", "free") })
	b := watch(t, w)
	b.awaitText("#keys-all tbody tr", "plan=free") // the key with the most denials of all
	b.await("/Most by shop: client \\(shop.yaml:3\\), [\\d.]+\\/s, most of these for client=c\\d+\\.$/.test(document.querySelector('#verdict li').innerText)")
	b.click("#verdict li a:last-child")
	b.await("document.querySelector('#rules-rows .detail')?.innerText.includes('client=c')")
}

func TestAPersonWithAPhoneReachesKeysAndRequests(t *testing.T) {
	w := examples(t)
	b := open(t)
	b.size(390, 844)
	b.show("http://" + w.Admin + "/")
	b.awaitText("#verdict", "are denied")
	b.awaitText("#keys-all tbody tr", "api_key=alice")
	const top = "(document.getElementById(%q).getBoundingClientRect().top + scrollY)"

	t.Run("rules without requests are folded away", func(t *testing.T) {
		b.t = t
		b.await("/^Show \\d+ more rules without requests in 15 minutes$/.test(document.querySelector('#rules-more').innerText)")
		if all := eval[string](b, "document.querySelector('#rules-rows').innerText"); strings.Contains(all, "contract=acme") {
			t.Errorf("a rule without requests shows: %s", all)
		}
		if screens := eval[float64](b, fmt.Sprintf("("+top+" - "+top+") / 844", "keys", "rules")); screens > 1.5 {
			t.Errorf("the rules take %.1f screens before the keys", screens)
		}
		if height := eval[float64](b, "document.documentElement.scrollHeight"); height > 5000 {
			t.Errorf("the page is %v pixels high", height)
		}
		b.click("#rules-more")
		b.awaitText("#rules-rows", "contract=acme")
		b.click("#rules-more")
		b.await("!document.querySelector('#rules-rows').innerText.includes('contract=acme')")
	})
	t.Run("a filter finds each rule", func(t *testing.T) {
		b.t = t
		b.do(fill("#rules-filter", "ACME plans.yaml"))
		b.awaitText("#rules-rows", "contract=acme")
		b.await("/^1 of \\d+ rules fit\\.$/.test(document.querySelector('#rules-help').innerText)")
		if all := eval[string](b, "document.querySelector('#rules-rows').innerText"); strings.Contains(all, "api_key") {
			t.Errorf("a rule that does not fit shows: %s", all)
		}
		b.do(fill("#rules-filter", ""))
		b.awaitText("#rules-rows", "api_key")
	})
	t.Run("the sections are one tap away from everywhere", func(t *testing.T) {
		b.t = t
		b.do(script("scrollTo({top: document.documentElement.scrollHeight, behavior: 'instant'})"))
		for _, section := range []string{"keys", "tail"} {
			b.click("nav a[href='#" + section + "']")
			b.await(fmt.Sprintf("(e => { const r = e.getBoundingClientRect(); return r.top >= 0 && r.top < 200 })(document.getElementById(%q))", section))
			b.await("(r => r.top >= 0 && r.bottom <= 120)(document.querySelector('nav').getBoundingClientRect())")
		}
	})
	t.Run("a request is one block, and the descriptor that denies comes first", func(t *testing.T) {
		b.t = t
		b.do(choose("#tail-form [name=outcome]", "over_limit"))
		b.await("document.querySelectorAll('#tail-rows tr.more').length > 4")
		first := eval[string](b, "[...document.querySelectorAll('#tail-rows tr:not(.more)')].map(e => e.innerText).join('\\n')")
		if strings.Contains(first, "remote_address") || strings.Contains(first, "passed") || !strings.Contains(first, "path=/hello,api_key=alice") {
			t.Errorf("the first lines of the requests: %s", first)
		}
		if n := eval[float64](b, "[...document.querySelectorAll('#tail-rows tr.more time')].length"); n > 0 {
			t.Errorf("%v lines of a request have a time of their own", n)
		}
		b.do(choose("#tail-form [name=outcome]", ""))
	})
	t.Run("where the default limit matched, its decision shows, and no other order is advised", func(t *testing.T) {
		b.t = t
		b.do(fill("#tail-form [name=entry]", "path=/cart"))
		b.click("#tail-form button[type=submit]")
		b.awaitText("#tail-rows", "of 600 per minute")
		if all := eval[string](b, "document.querySelector('#tail-rows').innerText"); strings.Contains(all, "another order") {
			t.Errorf("the requests: %s", all)
		}
		b.do(fill("#tail-form [name=entry]", ""))
		b.click("#tail-form button[type=submit]")
		b.awaitText("#tail-rows", "alice")
	})
	for _, width := range []int64{360, 390, 768, 1024, 1440} {
		t.Run(fmt.Sprintf("no word is broken at %d pixels", width), func(t *testing.T) {
			b.t = t
			b.size(width, 844)
			b.await("document.querySelector('#tail-rows tr')")
			if broken := eval[string](b, brokenWords); broken != "" {
				t.Errorf("broken words: %s", broken)
			}
		})
	}
}

// brokenWords lists the words that stand on two lines.
const brokenWords = `(() => {
  const broken = new Set(), range = document.createRange();
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = all.nextNode());) {
    if (!n.parentElement.checkVisibility() || n.parentElement.closest('.unseen, .skip, datalist, option, script')) continue;
    for (const word of n.data.matchAll(/[\p{L}\p{N}]{2,30}/gu)) {
      range.setStart(n, word.index);
      range.setEnd(n, word.index + word[0].length);
      if (new Set([...range.getClientRects()].filter(r => r.width > 0).map(r => Math.round(r.top))).size > 1) broken.add(n.data.slice(0, 60));
    }
  }
  return [...broken].join('; ');
})()`

func TestTheScalesOfTheChartsAreRoundAndStay(t *testing.T) {
	w := examples(t)
	b := watch(t, w)
	b.await("points.length > 1 && recent.length > 3")
	// with returns an expression of the page after 15 minutes of such requests per second, before
	// the next figures of the service.
	with := func(most int, expression string) string {
		t.Helper()
		return eval[string](b, fmt.Sprintf(`(takeHistory({points: Array.from({length: 180}, (_, i) => ({t: Date.now() - 5000 * (180 - i), ok: %d, no: 0, bad: 0, p50: 31e-6, p99: 0.0173}))}), %s)`, most, expression))
	}
	const (
		from  = "[...document.querySelectorAll('#chart-requests .axis span')].map(e => e.innerText).join(', ')"
		marks = "[...document.querySelectorAll('%s .plot span')].map(e => e.innerText).join(', ')"
	)
	if got, want := eval[string](b, from), "3 min ago, 2 min ago, 1 min ago, now"; got != want {
		t.Errorf("the axis has %q, want %q", got, want)
	}
	if got, want := with(24, from), "3 min ago, 2 min ago, 1 min ago, now"; got != want {
		t.Errorf("with more history the axis has %q, want %q as before", got, want)
	}
	for _, test := range []struct {
		most int
		want string
	}{{1234, "500/s, 1,000/s, 1,500/s"}, {24, "10/s, 20/s, 30/s"}, {21, "10/s, 20/s, 30/s"}, {31, "20/s, 40/s"}, {7, "5/s, 10/s"}} {
		if got := with(test.most, fmt.Sprintf(marks, "#chart-requests")); got != test.want {
			t.Errorf("%d/s: the scale has %q, want %q", test.most, got, test.want)
		}
	}
	if got, want := with(24, fmt.Sprintf(marks, "#chart-time")), "100 µs, 1 ms, 10 ms, 100 ms"; got != want {
		t.Errorf("the scale of times has %q, want %q", got, want)
	}
	b.do(choose("#span", "15"))
	if got, want := eval[string](b, from), "15 min ago, 10 min ago, 5 min ago, now"; got != want {
		t.Errorf("the axis has %q, want %q", got, want)
	}
	b.await("points.every((p, i) => !i || p.t - points[i-1].t > 4000 && p.t - points[i-1].t < 16000)") // five seconds each, on a slow machine more
}

// Before the first request the page names the next step.
func TestAnEmptyPageSaysTheNextStep(t *testing.T) {
	w := serve(t, shop)
	b := watch(t, w)
	b.awaitText("#verdict", "No requests have come since the start. The next step is in Envoy")
	b.awaitText("#verdict", "a domain of the rules (shop).")
	b.awaitText("#keys-all", "Choose “most hits”")
	b.do(choose("#keys-all select", "TOP_ORDER_HITS"))
	b.awaitText("#keys-all", "Keys come with the first requests")
	b.awaitText("#rules-rows", "path=/search,client_id")
	b.do(scroll("#tail"))
	b.awaitText("#tail-state", "They show here as Envoy asks about them.")
	b.do(choose("#tail-form [name=outcome]", "failed"))
	b.awaitText("#tail-state", "Waiting for requests that fit the filter.")
	b.awaitText("#grants-rows", "A grant gives one key another limit, until a time.")
}

func TestExplainShowsTheNearestMiss(t *testing.T) {
	w := serve(t, shop)
	b := watch(t, w)
	b.awaitText("#live", "live")
	b.do(fill("#explain-form [name=domain]", "shop"), fill("#explain-form [name=descriptors]", "path=/serach,client_id=c1\nplan=free_a,usr=dave"))
	b.click("#explain-form button")
	b.awaitText("#explain-answer .panel:nth-child(1)", `The nearest miss: value "/serach" of key "path": this level has path=/search`)
	b.awaitText("#explain-answer .panel:nth-child(2)", `The nearest miss: key "usr": this level has user`)
	b.awaitText("#explain-answer .panel:nth-child(2)", "shop.yaml:11")
}

// A grant that lands on another limit than was meant helps nobody.
func TestTheFormOfAGrantShowsTheLimitAndTheResult(t *testing.T) {
	w := examples(t)
	b := watch(t, w)
	b.awaitText("#verdict", "are denied")
	const preview = "#grant-preview"
	about := func(domain, entries string) {
		t.Helper()
		b.do(fill("#grant-form [name=domain]", domain), fill("#grant-form [name=entries]", entries))
	}
	b.click("#grant-new")
	b.awaitText(preview, "The rule of the key shows here.")
	about("edge", "path=/hello,api_key=alice")
	b.awaitText(preview, "Rule path=/hello,api_key (edge.yaml:24).")
	b.awaitText(preview, "10 per minute → 20 per minute")
	b.do(fill("#grant-form [name=factor]", "5"))
	b.awaitText(preview, "10 per minute → 50 per minute")
	b.do(script("document.querySelector('#grant-form [value=number]').click()"), fill("#grant-form [name=number]", "70"))
	b.awaitText(preview, "10 per minute → 70 per minute")
	b.do(script("document.querySelector('#grant-form [value=block]').click()"))
	b.awaitText(preview, "10 per minute → blocked")
	about("edge", "path=/hello,api_key=alcie")
	b.awaitText(preview, "No hits are counted for this key now. Is it spelled as Envoy sends it?")
	about("edge", "path=/helo,api_key=alice")
	b.awaitText(preview, "No rule matches this key: it has the default limit (edge.yaml:11)")
	about("plans", "plann=free,user=u")
	b.awaitText(preview, "No rule matches, so there is no limit to change.")
	about("plan", "plan=free,user=u")
	b.awaitText(preview, "The domain has no rules. There are: ")
	about("edge", "api_key=alice")
	b.do(script("document.querySelector('#grant-form [value=factor]').click()"), fill("#grant-form [name=factor]", "3"))
	b.awaitText(preview, "50 per 10 seconds → 150 per 10 seconds")
	b.awaitText(preview, "100,000 per day → 300,000 per day")
	b.do(choose("#grant-form [name=limit]", "fixed_window/1d"), fill("#grant-form [name=reason]", "ticket 4711"))
	b.awaitText(preview, "50 per 10 seconds → the same")
	b.awaitText(preview, "100,000 per day → 300,000 per day")
	b.click("#grant-form button.main")
	b.awaitText("#message", "Rule api_key (edge.yaml:72), api_key=alice: 100,000 per day → 300,000 per day.")
	b.await("document.querySelector('#message').className === 'message'")

	// The answer warns of a key that only the default limit counts, and of one without hits.
	b.click("#grant-new")
	about("edge", "path=/helo,api_key=carol")
	b.do(fill("#grant-form [name=reason]", "ticket 4712"))
	b.click("#grant-form button.main")
	b.awaitText("#message", `The default limit (edge.yaml:11), path=/helo,api_key=carol: 600 per minute → 1,800 per minute. No rule but the default matches: value "/helo" of key "path"`)
	b.awaitText("#message", "The key has no hits now, so the entries may be wrong.")
	b.await("document.querySelector('#message').className === 'message bad'")
}

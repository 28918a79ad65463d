package page

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Envoy lets a request pass when Weir fails to decide it, so the page alone tells of the failures.
func TestRequestsThatFailAreSeenAndCounted(t *testing.T) {
	w := serve(t, shop)
	url := throughEnvoy(t, w)
	traffic(t, url)
	b := watch(t, w)
	b.awaitText("#verdict", "are denied")
	const tile = "document.querySelector('#tile-failed')"
	const label = "document.querySelector('#chart-requests .plot').getAttribute('aria-label')"

	t.Run("none at first", func(t *testing.T) {
		b.t = t
		b.await(tile + ".innerText === '0/s' && " + tile + ".parentElement.className === ''")
		b.await(label + ".includes('failed 0/s')")
		if verdict := eval[string](b, "document.querySelector('#verdict').innerText"); regexp.MustCompile(`\bfail`).MatchString(verdict) {
			t.Errorf("the sentences: %s", verdict)
		}
		b.await(drawn + " === 0")
	})

	conn := dial(t, w.GRPC)
	weir := ratelimitv3.NewRateLimitServiceClient(conn)
	wrong := &ratelimitv3.RateLimitRequest{Domain: "shop", Descriptors: []*rlsv3.RateLimitDescriptor{
		{Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: "path", Value: "/"}, {Key: "client_id", Value: "eve"}}},
		{Entries: []*rlsv3.RateLimitDescriptor_Entry{{Value: "a key is missing"}}},
	}}
	end := again(t, 50*time.Millisecond, func(ctx context.Context) { _, _ = weir.ShouldRateLimit(ctx, wrong) }) // fails
	t.Run("the tile, the chart and the title show them", func(t *testing.T) {
		b.t = t
		b.await("parseFloat(" + tile + ".innerText) > 0 && " + tile + ".innerText.endsWith('/s') && " + tile + ".parentElement.className === 'bad'")
		b.await(drawn + " > 0 && !" + label + ".includes('failed 0/s')")
		b.await("document.title.startsWith('✕ Weir') && document.body.dataset.level === 'bad'")
		b.do(script("document.querySelector('#chart-requests .plot').focus()"))
		b.keys(kb.ArrowLeft)
		b.await("/failed (?!0\\/s)[\\d.,]+\\/s$/.test(document.querySelector('#chart-requests output').innerText)")
	})
	t.Run("the first sentence says how many, and leads to them", func(t *testing.T) {
		b.t = t
		b.await("/^[\\d.,]+\\/s fail, [\\d.]+\u00a0% of the requests\\. See them$/.test(document.querySelector('#verdict li').innerText)")
		b.click("#verdict li a[href='#tail']")
		b.await("document.querySelector('#tail-form [name=outcome]').value === 'failed'")
		b.await("document.querySelectorAll('#tail-rows tr').length > 1 && [...document.querySelectorAll('#tail-rows .tag')].every(e => e.innerText === 'failed' && e.className === 'tag bad')")
		b.awaitText("#tail-rows", "path=/,client_id=eve")
		b.awaitText("#tail-rows", "must not be empty")
	})
	t.Run("they end, and the chart has each of them", func(t *testing.T) {
		b.t = t
		end()
		b.await(tile + ".innerText === '0/s' && " + tile + ".parentElement.className === ''")
		b.await("!/\\bfail/.test(document.querySelector('#verdict').innerText) && document.body.dataset.level === 'warn'")
		counted := failures(t, w)
		b.await(fmt.Sprintf("Math.abs(points.reduce((sum, p, i) => sum + (i ? p.bad * (p.t - points[i-1].t) / 1000 : 0), 0) - %v) <= 1", counted))
	})
}

// drawn is the area of the part of failures in the chart, by the shoelace formula over the corners
// of its path.
const drawn = `Math.abs((document.querySelector('#chart-requests path.failed').getAttribute('d') ?? '').split('M').slice(1)
	.map(part => part.match(/[\d.]+ [\d.]+/g).map(corner => corner.split(' ').map(Number)))
	.flatMap(all => all.map(([x, y], i) => { const [u, v] = all[(i + 1) % all.length]; return x * v - u * y; }))
	.reduce((sum, part) => sum + part, 0).toFixed(6))`

// failures returns the requests that failed, as the metrics count them.
func failures(t *testing.T, w *weir) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^weir_requests_total\{code="error"\} (\S+)$`).FindStringSubmatch(metrics(t, w))
	if found == nil {
		t.Fatal("no failures in the metrics")
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(fmt.Errorf("failures in the metrics: %w", err))
	}
	return n
}

// A few requests a minute are no reason for a sentence that comes and goes.
func TestASentenceAboutRareRequestsStays(t *testing.T) {
	w := serve(t, shop)
	repeat(t, 1500*time.Millisecond, throughEnvoy(t, w)+"/", "X-Plan", "silver", "X-User", "erin")
	b := watch(t, w)
	const sentence = "document.querySelector('#verdict').innerText.includes('match no rule')"
	b.await(sentence)
	b.do(script("window.seen = window.gone = 0, events.addEventListener('state', () => { seen++; gone += %s ? 0 : 1; })", sentence))
	b.await("seen > 5")
	if gone := eval[float64](b, "gone"); gone > 0 {
		t.Errorf("the sentence was away in %v of six seconds", gone)
	}
}

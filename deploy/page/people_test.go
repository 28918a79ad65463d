package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// focused names the element with the focus.
const focused = `(e => e.id || e.getAttribute('name') || e.className || e.getAttribute('href') || e.tagName)(document.activeElement)`

func TestThePageIsUsedByKeysAlone(t *testing.T) {
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	b := watch(t, w)
	b.awaitText("#verdict", "Most by")
	b.awaitText("#rules-rows > tr", "path=/search,client_id")

	b.keys(kb.Tab)
	if got := eval[string](b, focused); got != "skip" {
		t.Errorf("the first stop is %q, want the link to the content", got)
	}
	// tab goes on until an expression holds. The element with the focus must be visible, and drawn
	// with an outline.
	tab := func(until string) {
		t.Helper()
		var stops []string
		for range 80 {
			b.keys(kb.Tab)
			stops = append(stops, eval[string](b, focused))
			if !eval[bool](b, `(e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 && (e.tagName === 'IFRAME' || getComputedStyle(e).outlineStyle !== 'none') })(document.activeElement)`) {
				t.Errorf("%s has the focus, and nobody sees it", stops[len(stops)-1])
			}
			if eval[bool](b, until) {
				return
			}
		}
		t.Fatalf("no stop where %s: %s", until, strings.Join(stops, ", "))
	}
	tab("document.activeElement.closest('#chart-requests') !== null")
	b.keys(kb.ArrowLeft)
	b.await("document.querySelector('#chart-requests output').innerText.includes('denied')")
	tab("document.activeElement.classList.contains('open')")
	b.keys(kb.Enter)
	b.await("document.activeElement.getAttribute('aria-expanded') === 'true'")
	b.awaitText("#rules-rows .detail", "client_id=alice")
	if !eval[bool](b, "document.activeElement.classList.contains('open')") {
		t.Error("the focus has moved while the page went on")
	}
	tab("document.activeElement.innerText === 'Reset'")
	b.keys(kb.Enter)
	b.await("document.querySelector('#ask-dialog').open")
	b.keys(kb.Escape)
	b.await("!document.querySelector('#ask-dialog').open")
	tab("document.activeElement.name === 'domain' && document.activeElement.closest('#explain-form') !== null")
	b.keys("shop")
	b.keys(kb.Escape) // the list of domains
	b.keys(kb.Tab)
	b.keys("path=/search,client_id=carol")
	b.keys(kb.Tab)
	b.keys(kb.Tab)
	b.keys(kb.Enter)
	b.awaitText("#explain-answer", "would pass")
}

// Every part of the page must fit into narrow windows, in both colors, and every text must be
// readable (WCAG 2.2, 1.4.3: 4.5 to 1).
func TestThePageIsReadableNarrowAndWideDarkAndLight(t *testing.T) {
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	b := watch(t, w)
	b.awaitText("#verdict", "most of these for")
	b.click("#rules-rows > tr .open")
	b.awaitText("#rules-rows .detail", "client_id=alice")
	b.do(scroll("#tail"))
	b.awaitText("#tail-rows", "path=/checkout")
	for _, dark := range []bool{false, true} {
		for _, width := range []int64{360, 768, 1280, 1920} {
			t.Run(fmt.Sprintf("%d pixels, dark %t", width, dark), func(t *testing.T) {
				b.t = t
				b.dark(dark)
				b.size(width, 900)
				if over := eval[float64](b, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
					t.Errorf("the page is %v pixels too wide: %s", over, eval[string](b, tooWide))
				}
				if bad := eval[string](b, contrast); bad != "" {
					t.Errorf("texts with too little contrast:\n%s", bad)
				}
			})
		}
	}
}

// tooWide names the elements beyond the right edge.
const tooWide = `[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')).slice(0, 5).map(e => e.tagName + '.' + e.className + ' ' + e.innerText).join('; ')`

// contrast names the texts whose color is too near to the one behind it.
const contrast = `(() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = color => { context.clearRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1); const d = context.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 0.7) return c; } return [255, 255, 255, 1]; };
  const bad = new Set();
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest('.unseen, .skip, [disabled]')) continue;
    const a = light(rgba(getComputedStyle(e).color).slice(0, 3)), b = light(behind(e).slice(0, 3));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2) + ': ' + e.innerText.slice(0, 40));
  }
  return [...bad].join('\n');
})()`

package page

import (
	"context"
	"fmt"

	"github.com/chromedp/chromedp"
)

// script runs JavaScript as an action.
func script(format string, args ...any) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Evaluate[bool]("("+fmt.Sprintf(format, args...)+", true)")(ctx, target)
		return chromedp.Void{}, err
	}
}

// choose chooses a value of a list, as a person does: the page sees a change.
func choose(selector, value string) chromedp.Action[chromedp.Void] {
	return script("(e => { e.value = %q; e.dispatchEvent(new Event('change', {bubbles: true})); })(document.querySelector(%q))", value, selector)
}

// fill writes a value into a field.
func fill(selector, value string) chromedp.Action[chromedp.Void] {
	return script("(e => { e.value = %q; e.dispatchEvent(new Event('input', {bubbles: true})); })(document.querySelector(%q))", value, selector)
}

// scroll brings an element into view.
func scroll(selector string) chromedp.Action[chromedp.Void] {
	return script("document.querySelector(%q).scrollIntoView({behavior: 'instant'})", selector)
}

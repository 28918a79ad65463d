package page

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/weirproxy/weir/test/parts"
)

// A browser is a Chromium with one page. The errors and warnings on the console of the page are
// kept.
type browser struct {
	context.Context
	t *testing.T

	mu      sync.Mutex      // guards the fields below
	errors  []string        // without the allowed ones
	allowed map[string]bool // by text: such an error has come
}

// watch opens the page of a service in a Chromium of its own.
func watch(t *testing.T, w *weir) *browser {
	t.Helper()
	b := open(t)
	b.size(1280, 900)
	b.show("http://" + w.Admin + "/")
	return b
}

// open starts a Chromium. At the end of the test the console must have no errors and warnings but
// allowed ones, and of these each.
func open(t *testing.T) *browser {
	t.Helper()
	path := parts.NeedChromium(t, parts.RootFor(t))
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("no-proxy-server", true), chromedp.Flag("disable-dev-shm-usage", true))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	b := &browser{Context: ctx, t: t, allowed: make(map[string]bool)}
	t.Cleanup(func() {
		for end := time.Now().Add(parts.Within); b.missing() != "" && !t.Failed() && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond) // an error may come late
		}
		cancel()
		stop()
		if text := b.missing(); text != "" {
			t.Errorf("the console has no error with %q", text)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.errors {
			t.Errorf("console: %s", e)
		}
	})
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // without a deadline, which would end the browser
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, log.Enable, cdp.Empty{})
		return err
	}))
	return b
}

func (b *browser) listen(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.note(fmt.Sprintf("%+v", e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			b.note(fmt.Sprintf("%+v", e.Args))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			b.note(e.Entry.Text + " " + e.Entry.URL)
		}
	}
}

// note keeps an error of the console.
func (b *browser) note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for part := range b.allowed {
		if strings.Contains(text, part) {
			b.allowed[part] = true
			return
		}
	}
	b.errors = append(b.errors, text)
}

// allow allows errors of the console that contain a text, from now on. One must come before the end
// of the test.
func (b *browser) allow(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allowed[text] = false
}

// missing returns an allowed error that has not come, "" without one.
func (b *browser) missing() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for text, came := range b.allowed {
		if !came {
			return text
		}
	}
	return ""
}

// do runs actions, all within a bound.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, parts.Within)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// show opens a page.
func (b *browser) show(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// eval returns a JavaScript expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, parts.Within)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// await waits until a JavaScript expression is true. The policy of the page forbids the waiting
// inside the page.
func (b *browser) await(expression string) {
	b.t.Helper()
	for end := time.Now().Add(parts.Within); !eval[bool](b, "!!("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not true: %s\nthe page has:\n%s", expression, eval[string](b, "document.body.innerText"))
		}
	}
}

// awaitText waits until an element has a text.
func (b *browser) awaitText(selector, text string) {
	b.t.Helper()
	b.await(fmt.Sprintf("(document.querySelector(%q)?.innerText ?? '').includes(%q)", selector, text))
}

// size sets the size of the window.
func (b *browser) size(width, height int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height))
}

// dark chooses the dark or the light colors.
func (b *browser) dark(yes bool) {
	b.t.Helper()
	scheme := "light"
	if yes {
		scheme = "dark"
	}
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

// shot writes a picture of the window, or of the whole page.
func (b *browser) shot(path string, whole bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, parts.Within)
	defer cancel()
	take := chromedp.CaptureScreenshot()
	if whole {
		take = chromedp.FullScreenshot(100)
	}
	png, err := chromedp.Run(ctx, take)
	if err == nil {
		err = os.WriteFile(path, png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// click clicks the element with a selector, once there is one. The place of a mouse would be wrong
// when the page moves, as it does while figures come.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.await(fmt.Sprintf("(e => { e?.focus(); e?.click(); return e })(document.querySelector(%q))", selector))
}

// keys sends keys to the element that has the focus.
func (b *browser) keys(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

package page

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/weirproxy/weir/test/parts"
)

// A browser without scripts gets the commands that show the same, and each does.
func TestWithoutScriptsThePageNamesCommandsThatWork(t *testing.T) {
	withToken := withToken(t)
	_, file, _ := strings.Cut(withToken, "=")
	w := serve(t, shop, withToken)
	traffic(t, throughEnvoy(t, w))
	b := open(t)
	b.size(360, 800)
	b.do(chromedp.Func(func(ctx context.Context, of *chromedp.Target) error {
		_, err := cdp.Call(ctx, of, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	b.show("http://" + w.Admin + "/")
	b.await("location.pathname === '/login' && document.readyState === 'complete' && document.activeElement.id === 'token'")
	b.keys(token + "\r")
	b.await("location.pathname === '/' && document.readyState === 'complete'")
	if seen := eval[string](b, "document.querySelector('main').innerText"); !strings.HasPrefix(seen, "This page needs JavaScript") {
		t.Errorf("the page begins with %q", seen)
	}
	if seen := eval[string](b, "[...document.querySelectorAll('section, nav, #live, dialog')].filter(e => e.checkVisibility()).map(e => e.id || e.tagName).join()"); seen != "" {
		t.Errorf("parts that need scripts show: %s", seen)
	}
	if over := eval[float64](b, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
		t.Errorf("the page is %v pixels too wide", over)
	}

	want := map[string]string{ // by command, a part of its output
		"watch": "path=/checkout", "top": "client_id=alice", "match": "left after that", "grants": "2 times the limit",
	}
	run(t, "grant", "--server", w.Admin, "--token-file", file, "--for", "1h", "--reason", "test", "--factor", "2", "shop", "path=/checkout").await(t, "until")
	for line := range strings.Lines(eval[string](b, "[...document.querySelectorAll('noscript dt')].map(e => e.innerText).join('\\n')")) {
		text := strings.TrimSpace(line)
		name, ok := strings.CutPrefix(text, "sidecar ")
		if !ok {
			t.Fatalf("not a command: %s", text)
		}
		name, _, _ = strings.Cut(name, " ")
		if want[name] == "" {
			t.Fatalf("an unknown command, or one that comes twice: %s", text)
		}
		t.Run("sidecar "+name, func(t *testing.T) {
			args := strings.Fields(strings.NewReplacer("FILE", file, "DOMAIN", "shop", "KEY=VALUE", "path=/checkout").Replace(text))[1:]
			run(t, args...).await(t, want[name])
		})
		delete(want, name)
	}
	for name := range want {
		t.Errorf("the page does not name sidecar %s", name)
	}
	if text := eval[string](b, "document.querySelector('noscript').innerText"); !strings.Contains(text, "at /metrics of the HTTP address") || !strings.Contains(metrics(t, w), "weir_requests_total{") {
		t.Errorf("the page leads to no metrics: %s", text)
	}

	b.click("header form button")
	b.await("location.pathname === '/login'")
}

// command is a run of the program.
type command struct{ *parts.Process }

// run starts the program.
func run(t *testing.T, args ...string) command {
	t.Helper()
	binary, err := sidecar()
	if err != nil {
		t.Fatal(err)
	}
	process, err := parts.Start("sidecar "+args[0], binary, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return command{process}
}

// await waits until the output has a text.
func (c command) await(t *testing.T, text string) {
	t.Helper()
	if _, _, err := c.Await(parts.Soon(t), 0, func(line string) bool { return strings.Contains(line, text) }); err != nil {
		t.Fatalf("no %q: %v", text, err)
	}
}

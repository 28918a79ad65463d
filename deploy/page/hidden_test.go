package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/weirproxy/weir/test/parts"
)

// A page that nobody sees costs the service nothing: the browser hides a page behind another tab of
// its window.
func TestAPageBehindAnotherTabLetsGoOfItsStreams(t *testing.T) {
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	b := watch(t, w)
	b.awaitText("#live", "live")
	b.do(scroll("#tail"))
	b.awaitText("#tail-rows", "path=/checkout")
	awaitFree(t, w, "/events", places-1)
	awaitFree(t, w, "/tail", places-1)
	other := b.tab()
	b.activate()

	t.Run("not at once", func(t *testing.T) {
		b.t = t
		for short := false; !short; { // a slow machine may need several turns
			b.await("!document.hidden && tail && document.querySelector('#live').innerText === 'live'")
			b.do(script("window.streams = [events, tail]"))
			begun := time.Now()
			other.activate()
			b.await("document.hidden")
			b.activate()
			b.await("!document.hidden")
			short = time.Since(begun) < 4*time.Second
		}
		if !eval[bool](b, "events === streams[0] && tail === streams[1] && document.querySelector('#live').innerText === 'live'") {
			t.Error("a short look at another tab ended the streams")
		}
	})
	t.Run("after a while, and the service has their places back", func(t *testing.T) {
		b.t = t
		other.activate()
		b.await("document.hidden && document.querySelector('#live').innerText === 'paused while hidden'")
		awaitFree(t, w, "/events", places)
		awaitFree(t, w, "/tail", places)
	})
	t.Run("and goes on when it is seen again, with the time between", func(t *testing.T) {
		b.t = t
		newest := eval[string](b, "document.querySelector('#tail-rows time').dateTime")
		missed := awaitPoint(t, w, eval[float64](b, "points[points.length-1].t"))
		b.activate()
		b.awaitText("#live", "live")
		b.await(fmt.Sprintf("document.querySelector('#tail-rows time').dateTime > %q && document.querySelector('#tail-state').innerText.startsWith('The newest first')", newest))
		b.await(fmt.Sprintf("points.some(p => p.t === %f) && Date.now() - state.point.t < 1500", missed))
		awaitFree(t, w, "/events", places-1)
		awaitFree(t, w, "/tail", places-1)
	})
	b.t = t
}

// A link may open the page behind the tab with the link.
func TestAPageThatOpensBehindAnotherTabWaits(t *testing.T) {
	w := serve(t, shop)
	b := open(t)
	b.tab()
	b.await("document.hidden")
	b.show("http://" + w.Admin + "/")
	b.awaitText("#live", "paused while hidden")
	awaitFree(t, w, "/events", places)
	b.activate()
	b.awaitText("#live", "live")
	b.awaitText("#verdict", "No requests")
	awaitFree(t, w, "/events", places-1)
}

// places is the most streams of one kind that the service serves.
const places = 16

// awaitFree waits until a service has so many places for streams, and no more. The places are free
// again afterwards.
func awaitFree(t *testing.T, w *weir, path string, want int) {
	t.Helper()
	got := -1
	for end := time.Now().Add(parts.Within); got != want; {
		if time.Now().After(end) {
			t.Fatalf("%s has %d free places, want %d", path, got, want)
		}
		got = free(t, w, path)
	}
}

// free takes all free places for streams, gives them back, and returns their number.
func free(t *testing.T, w *weir, path string) int {
	t.Helper()
	taken := 0
	for range places + 1 {
		conn, err := net.Dial("tcp", w.Admin)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(parts.Within))
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
		answer := bufio.NewReader(conn)
		line, err := answer.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, " 200 ") {
			taken++
		}
		defer func() {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			if _, err := io.Copy(io.Discard, answer); err != nil { // the service gives a place back before it closes the connection
				t.Errorf("the end of a stream: %v", err)
			}
		}()
	}
	return taken
}

// awaitPoint waits for a point of the history after an instant, and for one more. The result is the
// instant of the first. Both are milliseconds since 1970.
func awaitPoint(t *testing.T, w *weir, after float64) float64 {
	t.Helper()
	for end := time.Now().Add(parts.Within); ; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no point after %f", after)
		}
		r, err := http.NewRequestWithContext(parts.Soon(t), http.MethodGet, "http://"+w.Admin+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		var history struct{ Points []struct{ T float64 } }
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				err = json.Unmarshal([]byte(data), &history)
				break
			}
		}
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range history.Points {
			if p.T > after && i < len(history.Points)-1 { // the state of now brings the last point anyway
				return p.T
			}
		}
	}
}

// tab opens an empty tab in the same window, which hides the page of b.
func (b *browser) tab() *browser {
	b.t.Helper()
	ctx, cancel := chromedp.NewContext(b.Context, chromedp.WithNewWindow(false))
	b.t.Cleanup(cancel)
	other := &browser{Context: ctx, t: b.t}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // without a deadline, which would end the tab
		b.t.Fatal(err)
	}
	other.activate()
	return other
}

// activate brings the page of b before the other tabs of its window.
func (b *browser) activate() {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, of *chromedp.Target) error {
		_, err := cdp.Call(ctx, of, target.ActivateTarget, target.ActivateTargetParams{TargetID: of.TargetID})
		return err
	}))
}

package page

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
	"github.com/weirproxy/weir/test/parts"
)

const token = "the-token-of-these-tests"

// withToken returns the setting of a token.
func withToken(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	parts.Write(t, path, token)
	return "--admin-token-file=" + path
}

// evil is texts that would do something if they were markup.
const evil = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'"&{{.}}`

func TestNothingThatClientsAndRulesSayIsMarkup(t *testing.T) {
	w := serve(t, `domain: "`+strings.ReplaceAll(evil, `"`, `\"`)+`"
descriptors:
  - key: "`+strings.ReplaceAll(evil, `"`, `\"`)+`"
    rate_limit: {unit: hour, requests_per_unit: 1, name: "`+strings.ReplaceAll(evil, `"`, `\"`)+`"}
`)
	b := watch(t, w)
	b.do(scroll("#tail"))
	b.await("document.querySelector('#tail-state').innerText.startsWith('Waiting') || document.querySelectorAll('#tail-rows tr').length > 0")
	conn := dial(t, w.GRPC)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			for _, key := range []string{evil, evil + evil} {
				_ = charge(t.Context(), conn, evil, key, evil)
			}
			_ = charge(t.Context(), conn, evil+"x", evil, evil)
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	defer asking.Wait()
	defer close(stop)
	for _, place := range []string{"#verdict", "#rules-rows", "#tail-rows", "#keys-all"} {
		b.awaitText(place, `<img src=x onerror=`)
	}
	b.do(fill("#explain-form [name=domain]", evil), fill("#explain-form [name=descriptors]", evil))
	b.click("#explain-form button")
	b.await("document.querySelector('#explain-answer').innerText.length > 10")
	b.do(scroll("#rules"))
	b.click("#rules-rows .open")
	b.awaitText("#rules-rows .detail", `<img src=x`)
	parts.Write(t, w.rules, evil)
	b.click("#reload")
	b.awaitText("#loaded-state", "Mistakes")
	if n := eval[float64](b, "document.querySelectorAll('main img, main script, header img:not([src=\"/assets/icon.svg\"])').length"); n > 0 || eval[bool](b, "window.hacked === 1") {
		t.Errorf("a text became markup: %v elements", n)
	}
}

// The policy makes a mistake of ours fail in the browser.
func TestThePolicyForbidsInlineScripts(t *testing.T) {
	w := serve(t, shop)
	b := watch(t, w)
	b.awaitText("#verdict", "No requests")
	b.allow("TrustedHTML")
	b.allow("TrustedScript")
	for name, code := range map[string]string{
		"markup":        `document.body.innerHTML = '<b>x</b>'`,
		"an evaluation": `document.body.append((() => { const s = document.createElement('script'); s.textContent = 'window.hacked=1'; return s; })())`,
	} {
		got := eval[string](b, "(() => { try { "+code+"; return 'done' } catch (e) { return String(e) } })()")
		if !strings.Contains(got, "TrustedHTML") && !strings.Contains(got, "TrustedScript") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if eval[bool](b, "window.hacked === 1") {
		t.Error("an inline script has run")
	}
}

func TestAPageOfAnotherSiteCanDoNothing(t *testing.T) {
	w := serve(t, shop)
	other := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/html")
		fmt.Fprint(out, "<!doctype html><title>other</title><body><form method=post enctype='text/plain' action='http://"+w.Admin+"/api/Reload'><button>x</button></form>")
	}))
	defer other.Close()
	b := open(t)
	b.show(other.URL)
	b.allow(w.Admin) // the browser reports each refusal
	ask := func(code string) string {
		return eval[string](b, "(() => { window.got = undefined; "+code+".then(r => { window.got = 'answer ' + r.status + ' ' + r.type }, e => { window.got = 'refused' }); return '' })()")
	}
	url := "'http://" + w.Admin + "/api/Reload'"
	for name, code := range map[string]string{
		"JSON, which the browser asks about first": "fetch(" + url + ", {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'})",
		"text, which it does not":                  "fetch(" + url + ", {method: 'POST', body: '{}'})",
		"the state":                                "fetch('http://" + w.Admin + "/events')",
		"the page":                                 "fetch('http://" + w.Admin + "/')",
	} {
		ask(code)
		b.await("window.got !== undefined")
		if got := eval[string](b, "window.got"); got != "refused" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	mark := w.Mark()
	b.click("button")
	b.await("document.body.innerText.includes('other sites')")
	for _, line := range w.Lines()[mark:] {
		if strings.Contains(line, "rules") {
			t.Errorf("the log: %s", line)
		}
	}
}

// A page of an attacker whose name turns into a loopback address sends its own name in Host.
func TestANameThatTurnsIntoThisMachineIsRefused(t *testing.T) {
	w := serve(t, shop)
	for _, path := range []string{"/", "/events", "/tail", "/login", "/assets/page.js"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.Admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "rebound.example:8082"
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s: got %d, want 421", path, answer.StatusCode)
		}
	}
}

func TestThePageIsBehindItsToken(t *testing.T) {
	w := serve(t, shop, withToken(t))
	b := open(t)
	b.show("http://" + w.Admin + "/#loaded")
	b.await("location.pathname === '/login' && document.readyState === 'complete' && document.activeElement.id === 'token'")
	b.allow("403 (Forbidden) http://" + w.Admin + "/login")
	b.keys("not the token\r")
	b.awaitText("main", "The token is wrong.")
	b.await("document.readyState === 'complete' && document.activeElement.id === 'token' && document.activeElement.value === ''")
	b.keys(token + "\r")
	b.await("location.pathname === '/' && document.querySelector('#verdict') !== null")
	b.awaitText("#verdict", "No requests")
	if cookies := eval[string](b, "document.cookie"); cookies != "" {
		t.Errorf("a script can read the cookie %q", cookies)
	}
	b.click("header form button")
	b.await("location.pathname === '/login'")
	b.show("http://" + w.Admin + "/")
	b.await("location.pathname === '/login'")
}

func TestAThousandOpenPagesAreBounded(t *testing.T) {
	w := serve(t, shop)
	var mu sync.Mutex
	codes := make(map[string]int)
	var opening sync.WaitGroup
	for range 1000 {
		opening.Go(func() {
			conn, err := net.Dial("tcp", w.Admin)
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(parts.Within))
			fmt.Fprintf(conn, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
			line, err := bufio.NewReader(conn).ReadString('\n')
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				line = "closed"
			}
			codes[strings.TrimSpace(line)]++
		})
	}
	opening.Wait()
	if codes["HTTP/1.1 200 OK"] > 16 || codes["HTTP/1.1 200 OK"] == 0 || codes["HTTP/1.1 503 Service Unavailable"]+codes["closed"] < 984 {
		t.Errorf("answers: %v; want at most 16 pages and 984 refusals", codes)
	}
	t.Logf("answers: %v", codes)
	conn := dial(t, w.Admin)
	if _, err := adminv1.NewAdminServiceClient(conn).ListRules(parts.Soon(t), new(adminv1.ListRulesRequest), grpc.WaitForReady(true)); err != nil {
		t.Errorf("a call beside the open pages: %v", err)
	}
}

func TestAViewerWhoNeverReadsSlowsNobodyAndIsLeft(t *testing.T) {
	w := serve(t, shop)
	viewer, err := net.Dial("tcp", w.Admin)
	if err != nil {
		t.Fatal(err)
	}
	defer viewer.Close()
	if tcp, ok := viewer.(*net.TCPConn); ok {
		if err := tcp.SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(viewer, "GET /tail?max=200 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	for end := time.Now().Add(parts.Within); !strings.Contains(metrics(t, w), `weir_connections{server="admin"} 1`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the service has no connection of the viewer")
		}
	}
	conn := dial(t, w.GRPC)
	long := strings.Repeat("x", 2000)
	for end := time.Now().Add(parts.Within); !strings.Contains(metrics(t, w), `weir_connections{server="admin"} 0`); {
		for range 20 {
			if err := charge(t.Context(), conn, "shop", "plan", long); err != nil {
				t.Fatalf("a request beside the viewer: %v", err)
			}
		}
		time.Sleep(20 * time.Millisecond)
		if time.Now().After(end) {
			t.Fatal("the viewer keeps the connection")
		}
	}
}

func metrics(t *testing.T, w *weir) string {
	t.Helper()
	_, text, err := parts.Page(t.Context(), http.MethodGet, "http://"+w.HTTP+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

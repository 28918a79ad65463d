package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/wire/web"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// jsonOf returns the page /json as a server of pages has it.
func jsonOf(s *Server) http.Handler {
	handle := s.JSON()
	if handle == nil {
		return http.NotFoundHandler()
	}
	return web.Handler(func(value any) { _ = s.Panicked(value) }, web.At("POST /json", "", handle))
}

// fetch asks /json, from this machine.
func (f *fixture) fetch(t *testing.T, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	f.json.ServeHTTP(w, fromHere(t, method, path, body))
	return w
}

// fromHere returns a request of JSON by a program on this machine.
func fromHere(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "localhost:8080"
	r.Header.Set("Content-Type", "application/json")
	return r
}

func TestJSONIsShouldRateLimit(t *testing.T) {
	const ask = `{"domain": "edge", "hitsAddend": 2, "descriptors": [{"entries": [{"key": "minute", "value": "a"}]}]}`
	limit := `current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } duration_until_reset { seconds: 60 }`
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.Headers.RetryAfter = true })
		for _, want := range []struct {
			code     int
			response *ratelimitv3.RateLimitResponse
		}{
			{200, want(t, `overall_code: OK statuses { code: OK `+limit+`}`)},
			{429, want(t, `overall_code: OVER_LIMIT statuses { code: OVER_LIMIT `+limit+`}
				response_headers_to_add { key: "retry-after" value: "60" }`)},
		} {
			got := f.fetch(t, "POST", "/json", ask)
			if got.Code != want.code || got.Header().Get("Content-Type") != "application/json" {
				t.Errorf("/json: got %d %q; want %d, application/json", got.Code, got.Header(), want.code)
			}
			response := new(ratelimitv3.RateLimitResponse)
			must.Do(t, protojson.Unmarshal(got.Body.Bytes(), response))
			if diff := cmp.Diff(want.response, response, protocmp.Transform()); diff != "" {
				t.Errorf("/json (-want +got):\n%s", diff)
			}
		}
	})
}

func TestJSONShowsThatNoneAreLeft(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		const ask = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}], "hitsAddend": "2"}, {"entries": [{"key": "nothing"}]}]}`
		for i, original := range []bool{false, true} {
			w := start(t, everything, func(o *Options) { o.Original = original }).fetch(t, "POST", "/json", ask)
			var got struct{ Statuses []map[string]any }
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Statuses) != 2 {
				t.Fatalf("/json: got %v of %s", err, w.Body)
			}
			// envoyproxy/ratelimit leaves the 0 out, and a descriptor without a limit has no number.
			if left, shown := got.Statuses[0]["limitRemaining"]; shown != (i == 0) || shown && left != 0.0 {
				t.Errorf("original %t: limitRemaining: got %v, shown %t", original, left, shown)
			}
			if _, shown := got.Statuses[1]["limitRemaining"]; shown {
				t.Errorf("original %t: limitRemaining without a limit", original)
			}
		}
	})
}

func TestJSONErrors(t *testing.T) {
	const ask = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}]}]}`
	tests := []struct {
		name  string
		store failing
		body  string
		code  int
		text  string
	}{
		{"no_json", failing{}, "hello", 400, "not a RateLimitRequest"},
		{"unknown_field", failing{}, `{"domian": "edge"}`, 400, "domian"},
		{"invalid", failing{}, `{"domain": "edge"}`, 400, "rate limit descriptor list must not be empty"},
		{"too_large", failing{}, `{"domain": "` + strings.Repeat("d", 1000) + `"}`, 413, "too large"},
		{"store", failing{err: errors.New("secret")}, ask, 503, textStore},
		{"panic", failing{bug: "secret"}, ask, 500, textPanic},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startOn(t, storetest.Of(&test.store), everything, func(o *Options) { o.MaxRequestBytes = 1000 })
				got := f.fetch(t, "POST", "/json", test.body)
				if got.Code != test.code || !strings.Contains(got.Body.String(), test.text) || strings.Contains(got.Body.String(), "secret") {
					t.Errorf("/json: got %d %q; want %d with %q", got.Code, got.Body, test.code, test.text)
				}
			})
		})
	}
}

const (
	askMinute    = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}]}]}`
	refundMinute = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}], "hitsAddend": "2", "isNegativeHits": true}]}`
	raiseMinute  = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}], "limit": {"requestsPerUnit": 9, "unit": "MINUTE"}}]}`
)

func TestJSONTakesRequestsOfThisMachineOnly(t *testing.T) {
	once(t)
	tests := []struct {
		name string
		json JSON
		from string
		set  map[string]string // headers; Host too
		code int
		text string // part of the answer
	}{
		{"usual", JSON{}, "127.0.0.1:1", nil, 200, "overallCode"},
		{"loopback_of_version_6", JSON{}, "[::1]:1", nil, 200, ""},
		{"version_4_in_version_6", JSON{}, "[::ffff:127.0.0.1]:1", nil, 200, ""},
		{"another_machine", JSON{}, "192.0.2.1:1", nil, 403, "from loopback to loopback: it comes from 192.0.2.1:1"},
		{"no_address", JSON{}, "@", nil, 403, "loopback"},
		{"another_machine_allowed", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", nil, 200, ""},
		{"forwarded", JSON{}, "127.0.0.1:1", map[string]string{"X-Forwarded-For": "192.0.2.1"}, 403, "X-Forwarded-For"},
		{"forwarded_by_Envoy", JSON{}, "127.0.0.6:1", map[string]string{"X-Forwarded-Proto": "http"}, 403, "X-Forwarded-Proto"},
		{"forwarded_by_Envoy_to_its_own_address", JSON{}, "127.0.0.1:1", map[string]string{"X-Envoy-Internal": "true"}, 403, "X-Envoy-Internal"},
		{"forwarded_by_the_standard", JSON{}, "127.0.0.1:1", map[string]string{"Forwarded": "for=192.0.2.1"}, 403, "Forwarded"},
		{"via", JSON{}, "127.0.0.1:1", map[string]string{"Via": "1.1 proxy"}, 403, "Via"},
		{"forwarded_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Via": "1.1 proxy"}, 200, ""},
		{"off", JSON{From: JSONOff}, "127.0.0.1:1", nil, 404, ""},

		{"type_with_parameters", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "Application/JSON; charset=utf-8"}, 200, ""},
		{"no_type", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": ""}, 415, "must be application/json"},
		{"text", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "text/plain"}, 415, "text/plain"},
		{"form", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415, ""},
		{"two_types", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "text/plain, application/json"}, 415, ""},
		{"text_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Content-Type": "text/plain"}, 415, ""},

		{"its_own_page", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "http://localhost:8080"}, 200, ""},
		{"a_foreign_page", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "https://evil.example"}, 403, "other sites"},
		{"another_port", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "http://localhost:3000"}, 403, ""},
		{"a_page_of_nowhere", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "null"}, 403, ""},
		{"a_browser_says_so", JSON{}, "127.0.0.1:1", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, ""},
		{"a_foreign_page_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Origin": "https://evil.example"}, 403, ""},

		{"localhost_without_port", JSON{}, "127.0.0.1:1", map[string]string{"Host": "LOCALHOST."}, 200, ""},
		{"an_address", JSON{}, "127.0.0.1:1", map[string]string{"Host": "127.0.0.1:8080"}, 200, ""},
		{"an_address_of_version_6", JSON{}, "[::1]:1", map[string]string{"Host": "[::1]:8080"}, 200, ""},
		{"version_6_without_port", JSON{}, "[::1]:1", map[string]string{"Host": "[::1]"}, 200, ""},
		{"a_name_that_turned", JSON{}, "127.0.0.1:1", map[string]string{"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}, 421, "evil.example"},
		{"no_host", JSON{}, "127.0.0.1:1", map[string]string{"Host": ""}, 421, ""},
		{"a_longer_name", JSON{}, "127.0.0.1:1", map[string]string{"Host": "localhost.evil.example"}, 421, ""},
		{"a_listed_name", JSON{Hosts: []string{"Weir.Example"}}, "127.0.0.1:1", map[string]string{"Host": "weir.example.:8080"}, 200, ""},
		{"an_unlisted_name_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Host": "evil.example"}, 421, ""},

		{
			"as_the_original",
			JSON{From: JSONFromAnywhere, AnyClient: true},
			"192.0.2.1:1",
			map[string]string{"Host": "evil.example", "Origin": "https://evil.example", "Content-Type": "text/plain"},
			200, "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, original := range []bool{false, true} {
					f := start(t, everything, func(o *Options) { o.JSON, o.Original = test.json, original })
					r, w := fromHere(t, "POST", "/json", askMinute), httptest.NewRecorder()
					r.RemoteAddr = test.from
					for header, value := range test.set {
						if header == "Host" {
							r.Host = value
							continue
						}
						r.Header.Set(header, value)
					}
					f.json.ServeHTTP(w, r)
					if w.Code != test.code || !strings.Contains(w.Body.String(), test.text) {
						t.Errorf("original %t: got %d %q; want %d with %q", original, w.Code, w.Body, test.code, test.text)
					}
				}
			})
		})
	}
}

// A refund of a key that is exhausted would let its client go on, and an override would raise its
// limit.
func TestJSONRefundsAndOverridesWhereAllowedOnly(t *testing.T) {
	once(t)
	for _, test := range []struct {
		name  string
		json  JSON
		body  string
		code  int // of the body, when the key is exhausted
		text  string
		after int // of a request of one hit behind it
	}{
		{"refund", JSON{}, refundMinute, 403, "descriptors[0].is_negative_hits: /json does not take refunds here", 429},
		{"refund_where_overrides_are", JSON{Overrides: true}, refundMinute, 403, "", 429},
		{"refund_allowed", JSON{Refunds: true}, refundMinute, 200, "", 200},
		{"override", JSON{}, raiseMinute, 403, "descriptors[0].limit: /json does not take overrides here", 429},
		{"override_where_refunds_are", JSON{Refunds: true}, raiseMinute, 403, "", 429},
		{"override_allowed", JSON{Overrides: true}, raiseMinute, 200, "", 429},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.JSON = test.json })
				for i, want := range []int{200, 200, 429} {
					if got := f.fetch(t, "POST", "/json", askMinute).Code; got != want {
						t.Fatalf("request %d: got %d, want %d", i+1, got, want)
					}
				}
				got := f.fetch(t, "POST", "/json", test.body)
				if got.Code != test.code || !strings.Contains(got.Body.String(), test.text) {
					t.Errorf("got %d %q; want %d with %q", got.Code, got.Body, test.code, test.text)
				}
				if got := f.fetch(t, "POST", "/json", askMinute).Code; got != test.after {
					t.Errorf("one hit behind it: got %d, want %d", got, test.after)
				}
			})
		})
	}
}

func TestNewRefusesAnUnknownSetOfClientsOfJSON(t *testing.T) {
	once(t)
	_, err := New(Options{JSON: JSON{From: 3}})
	if err == nil || !strings.Contains(err.Error(), "json: from 3: must be JSONFromLoopback") {
		t.Errorf("New: got %v; want a mistake in it", err)
	}
}

// emptyEntries is a body of so many bytes, of entries that take three bytes each.
func emptyEntries(size int) string {
	const begin, end = `{"descriptors":[{"entries":[{}`, `]}]}`
	body := begin + strings.Repeat(",{}", (size-len(begin)-len(end))/3)
	return body + strings.Repeat(" ", size-len(body)-len(end)) + end
}

// defaults is a body of 1000 descriptors that all have a limit, and so long statuses.
func defaults() string {
	return `{"domain":"edge","descriptors":[{"entries":[{"key":"minute"}]}` + strings.Repeat(`,{"entries":[{"key":"minute"}]}`, 999) + `]}`
}

func TestMemoryOfARequestOfJSONIsBoundedByItsBody(t *testing.T) {
	once(t)
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	for _, test := range []struct {
		name    string
		bound   int
		body    string
		perByte uint64 // largest memory for a byte of the body
		code    int
	}{
		{"700000_empty_entries", 4 << 20, emptyEntries(4 << 20), 3, 400},
		{"as_many_empty_entries_as_may_be", 64 << 10, emptyEntries(64 << 10), 130, 400},
		{"1000_descriptors_with_limits", 64 << 10, defaults(), 200, 429},
		{"one_long_value", 64 << 10, `{"domain":"` + strings.Repeat("d", 60<<10) + `","descriptors":[{"entries":[{"key":"a"}]}]}`, 8, 200},
		{"above_the_bound", 64 << 10, emptyEntries(4 << 20), 1, 413},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.MaxRequestBytes, o.MaxBytesInFlight = test.bound, 64<<20 })
				handler := f.json
				request, w := fromHere(t, "POST", "/json", test.body), httptest.NewRecorder()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				handler.ServeHTTP(w, request)
				runtime.ReadMemStats(&after)
				got := after.TotalAlloc - before.TotalAlloc
				t.Logf("%d bytes took %d bytes of memory: %.1f each", len(test.body), got, float64(got)/float64(len(test.body)))
				if got > test.perByte*uint64(len(test.body))+16<<10 {
					t.Errorf("a body of %d bytes took %d bytes of memory; want at most %d times as many", len(test.body), got, test.perByte)
				}
				if w.Code != test.code || w.Body.Len() > 512<<10 {
					t.Errorf("got %d with %d bytes, want %d with less than half a megabyte", w.Code, w.Body.Len(), test.code)
				}
			})
		})
	}
}

func TestTenLargeBodiesAtOnceTakeLittleMoreThanTheirBytes(t *testing.T) {
	once(t)
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	f := start(t, everything, func(o *Options) { o.MaxRequestBytes, o.MaxBytesInFlight = 4<<20, 64<<20 })
	body := emptyEntries(4 << 20)
	var asking sync.WaitGroup
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		asking.Go(func() {
			if got := f.fetch(t, "POST", "/json", body).Code; got != 400 && got != 503 {
				t.Errorf("got %d; want 400, or 503 as too many are under way", got)
			}
		})
	}
	asking.Wait()
	runtime.ReadMemStats(&after)
	got := after.TotalAlloc - before.TotalAlloc
	t.Logf("ten bodies of %d bytes took %d bytes of memory", len(body), got)
	if got > 10*3*uint64(len(body)) {
		t.Errorf("ten bodies of %d bytes took %d bytes of memory; want at most three times their size", len(body), got)
	}
}

// held is a store that answers when the test says so.
type held struct {
	failing
	free chan struct{}
}

func (h *held) Take(_ context.Context, charges []store.Charge, into []algorithms.Decision) (bool, error) {
	<-h.free
	for i := range charges {
		into[i] = algorithms.Decision{Allowed: true}
	}
	return true, nil
}

func TestRequestsOfJSONTogetherAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &held{free: make(chan struct{})}
		f := startOn(t, storetest.Of(s), everything, nil)
		const callers = 20 // of 2001 objects each
		codes := make(chan int, callers)
		var asking sync.WaitGroup
		began := time.Now()
		for range callers {
			asking.Go(func() {
				got := f.fetch(t, "POST", "/json", defaults())
				if got.Code == 503 && got.Header().Get("Retry-After") != "1" {
					t.Error("503 without Retry-After")
				}
				codes <- got.Code
			})
		}
		synctest.Wait()
		time.Sleep(2 * wire.BudgetWait) // for the body, and for the objects
		synctest.Wait()
		counts := make(map[int]int)
		for range len(codes) {
			counts[<-codes]++
		}
		if under := jsonObjects / 2001; counts[503] != callers-under {
			t.Errorf("after %v: got %v, want 503 for all but the %d whose objects fit", time.Since(began), counts, under)
		}
		// Small requests go on: those under way leave a rest.
		small := make(chan int, 1)
		asking.Go(func() {
			small <- f.fetch(t, "POST", "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"minute"}]}]}`).Code
		})
		synctest.Wait()
		close(s.free)
		asking.Wait()
		if got := <-small; got != 200 {
			t.Errorf("a small request beside them: got %d", got)
		}
		if got := f.fetch(t, "POST", "/json", defaults()).Code; got != 200 {
			t.Errorf("afterwards: got %d, want 200", got)
		}
	})
}

// beginBodies serves the pages through memory. The returned function sends the head of a request of
// JSON and a part of its body, which has length bytes.
func (f *fixture) beginBodies(t *testing.T) (begin func(length int, part string)) {
	t.Helper()
	f.json = fromLocal(f.json)
	listener := bufconn.Listen(64 << 10)
	pages := &http.Server{Handler: f.json, ReadHeaderTimeout: time.Hour}
	go func() { _ = pages.Serve(listener) }()
	t.Cleanup(func() { _ = pages.Close() })
	return func(length int, part string) {
		t.Helper()
		conn := must.Get(listener.DialContext(t.Context()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		if _, err := fmt.Fprintf(conn, "POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, part); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBodiesThatDoNotArriveKeepNobodyOut(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.MaxRequestBytes = 64 << 10 })
		begin := f.beginBodies(t)
		for range jsonRequests {
			begin(64<<10, "{")                           // nearly nothing
			begin(64<<10, strings.Repeat(" ", 64<<10-1)) // nearly all
		}
		synctest.Wait()
		const ask = `{"domain":"edge","descriptors":[{"entries":[{"key":"minute"}]}]}`
		began := time.Now()
		for _, body := range []string{ask, ask + strings.Repeat(" ", 64<<10-len(ask))} {
			if got := f.fetch(t, "POST", "/json", body).Code; got != 200 || time.Since(began) != 0 {
				t.Errorf("a body of %d bytes beside bodies that do not arrive: got %d after %v; want 200 at once", len(body), got, time.Since(began))
			}
		}
	})
}

// Bodies beyond jsonFree bytes share a budget. Bodies of usual sizes do not.
func TestLargeBodiesThatDoNotArriveKeepOtherLargeOnesOutForAMoment(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.MaxRequestBytes, o.MaxBytesInFlight = 4<<20, 64<<20 })
		f.beginBodies(t)(4<<20, strings.Repeat(" ", 100<<10))
		synctest.Wait()
		const ask = `{"domain":"edge","descriptors":[{"entries":[{"key":"minute"}]}]}`
		time.Sleep(time.Second)
		began := time.Now()
		if got := f.fetch(t, "POST", "/json", ask).Code; got != 200 || time.Since(began) != 0 {
			t.Errorf("a small body: got %d after %v; want 200 at once", got, time.Since(began))
		}
		if got := f.fetch(t, "POST", "/json", ask+strings.Repeat(" ", 300<<10)).Code; got != 200 || time.Since(began) != jsonArrival-time.Second {
			t.Errorf("a large body: got %d after %v; want 200 after %v", got, time.Since(began), jsonArrival-time.Second)
		}
		time.Sleep(time.Second) // net/http gives the slow client a moment to read the answer
	})
}

// fromLocal gives requests through memory a loopback address.
func fromLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = net.JoinHostPort("127.0.0.1", "1")
		next.ServeHTTP(w, r)
	})
}

// messagesIn counts the messages that a body was made into.
func messagesIn(r *ratelimitv3.RateLimitRequest) int {
	n := 1
	for _, d := range r.GetDescriptors() {
		n += 1 + len(d.GetEntries())
		if d.GetLimit() != nil {
			n++
		}
	}
	return n
}

// bodies are bodies that are right, wrong, and nearly either.
func bodies() []string {
	return []string{
		`{}`, ``, ` {"domain":"a"} `, `{"domain":"{\"{"}`, `{"domain":"\\"}`, `{"domain":"\\","descriptors":[{},{"entries":[{},{"key":"k","value":"v"}]}]}`,
		`{"descriptors":[{"limit":{"requestsPerUnit":1,"unit":"DAY","unitMultiplier":2},"hitsAddend":"7","isNegativeHits":true}],"hits_addend":3}`,
		`{"descriptors":null}`, `{"descriptors":[null]}`, `{"descriptors":[{"limit":null,"entries":[]}]}`, `{"descriptors":[{"limit":{}}]}`,
		`{"what":{}}`, `{"descriptors":[{"entries":[{},{},{}`, `{{{{{{`, `\"{"`, `{"domain":"` + "\xff" + `"}`, `[{},{}]`, `{} {}`, `{"domain":"\u007b\ud83d\ude00"}`,
	}
}

// agreeJSON compares parse with protojson, and the count of objects with the messages.
func agreeJSON(t *testing.T, body string) {
	t.Helper()
	want := new(ratelimitv3.RateLimitRequest)
	wantErr := protojson.Unmarshal([]byte(body), want)
	n := countObjects([]byte(body))
	got, err := parse([]byte(body), n)
	made := messagesIn(want) // after a mistake, the part before
	switch {
	case (err == nil) != (wantErr == nil):
		t.Fatalf("%q: got %v; protojson says %v", body, err, wantErr)
	case err == nil && (!proto.Equal(got, want) || n != made):
		t.Fatalf("%q: got %v with %d objects; protojson makes %v with %d", body, got, n, want, made)
	case made > max(n, 1):
		t.Fatalf("%q: counted %d objects; protojson makes %d before the mistake", body, n, made)
	}
}

func TestObjectsAreCountedAsProtojsonMakesMessages(t *testing.T) {
	once(t)
	for _, body := range bodies() {
		agreeJSON(t, body)
	}
	for _, n := range []int{MaxItems, MaxItems + 1} {
		body := []byte(`{"descriptors":[{}` + strings.Repeat(",{}", n-1) + `]}`)
		_, err := parse(body, countObjects(body))
		if got := fmt.Sprint(err); (err != nil) != (n > MaxItems) || err != nil && !strings.Contains(got, "more than 65536") {
			t.Errorf("%d descriptors: got %v; want an error above %d", n, err, MaxItems)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, body := range bodies() {
		f.Add(body)
	}
	f.Fuzz(agreeJSON)
}

package server

import (
	"context"
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
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

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
	listener := bufconn.Listen(16)
	pages := &http.Server{Handler: f.json, ReadHeaderTimeout: time.Hour}
	go func() { _ = pages.Serve(listener) }()
	t.Cleanup(func() { _ = pages.Close() })
	return func(length int, part string) {
		t.Helper()
		conn, err := listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		if _, err := fmt.Fprintf(conn, "POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, part); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBodiesThatDoNotArriveKeepNobodyOut(t *testing.T) {
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

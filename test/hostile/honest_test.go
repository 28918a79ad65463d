package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	askEvery     = 5 * time.Millisecond   // on the old connection
	connectEvery = 100 * time.Millisecond // of the newcomer

	// answerTimeout is the longest wait of the honest client for an answer. An answer after that is
	// lost. Envoy waits 20 ms by default, but here the attacker and the honest client share the
	// processors with the program.
	answerTimeout = 10 * time.Second
)

const (
	pass = ratelimitv3.RateLimitResponse_OK
	deny = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// A question is a request of the honest client, and the right answer.
type question struct {
	request *ratelimitv3.RateLimitRequest
	want    ratelimitv3.RateLimitResponse_Code
}

// An honest client asks as Envoy does, beside an attack. All of its results count from the first
// question to the last.
type honest struct {
	address   string // as grpc.NewClient takes it
	questions []question
	old       *client // opened before the attack

	mu        sync.Mutex // guards the fields below
	latencies []time.Duration
	joined    int      // answers to the newcomer
	wrong     []string // at most a few
	failures  int
}

// newHonest connects to address, which is host:port or unix:path, and spends the limits that must
// stay spent. Without denials it asks only for keys that are never denied: some attacks take the
// store away, and the store in memory then starts afresh.
func newHonest(t *testing.T, address string, denials bool) *honest {
	t.Helper()
	h := &honest{address: address, old: connect(address)}
	t.Cleanup(h.old.close)
	h.questions = []question{{request(1, entry{"far", "honest"}), pass}}
	if !denials {
		return h
	}
	small, weighted := request(1, entry{"small", "honest"}), request(7, entry{"weighted", "honest"})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for of, allowed := range map[*ratelimitv3.RateLimitRequest]int{small: 50, weighted: 14} {
		for i := range allowed + 1 {
			want := pass
			if i == allowed {
				want = deny
			}
			if got, err := h.old.ask(ctx, of); err != nil || got != want {
				t.Fatalf("request %d for %v before the attack: %v, %v; want %v", i+1, of, got, err, want)
			}
		}
	}
	h.questions = append(h.questions, question{small, deny}, question{weighted, deny})
	return h
}

// run asks until ctx ends, and returns when each request has an answer or has waited for
// answerTimeout.
func (h *honest) run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	asks, connects := time.NewTicker(askEvery), time.NewTicker(connectEvery)
	defer asks.Stop()
	defer connects.Stop()
	for i := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-asks.C:
			q := h.questions[i%len(h.questions)]
			i++
			asking.Go(func() { h.ask(h.old, q, "the old connection") })
		case <-connects.C:
			q := h.questions[i%len(h.questions)]
			asking.Go(func() {
				c := connect(h.address)
				defer c.close()
				h.ask(c, q, "a new connection")
				if dials := c.dials.Load(); dials != 1 {
					h.fail(fmt.Sprintf("a new connection took %d attempts", dials))
				}
			})
		}
	}
}

// ask asks once and judges the answer.
func (h *honest) ask(c *client, q question, where string) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout) // also after the end of the attack
	defer cancel()
	begin := time.Now()
	got, err := c.ask(ctx, q.request)
	took := time.Since(begin)
	switch {
	case err != nil:
		h.fail(fmt.Sprintf("on %s, after %v: %v", where, took.Round(time.Millisecond), err))
	case got != q.want:
		h.fail(fmt.Sprintf("on %s: %v for %v; want %v", where, got, q.request, q.want))
	default:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.latencies = append(h.latencies, took)
		if c != h.old {
			h.joined++
		}
	}
}

// fail counts a request without a right answer.
func (h *honest) fail(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	if len(h.wrong) < 5 {
		h.wrong = append(h.wrong, reason)
	}
}

// judge fails the test when an answer was lost or wrong, and returns the figures.
func (h *honest) judge(t *testing.T) string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures > 0 {
		t.Errorf("the honest client lost %d of %d answers:\n%s", h.failures, h.failures+len(h.latencies), strings.Join(h.wrong, "\n"))
	}
	if dials := h.old.dials.Load(); dials != 1 {
		t.Errorf("the old connection of the honest client was made %d times", dials)
	}
	if h.joined == 0 || len(h.latencies) == h.joined {
		t.Errorf("answers: %d, %d of them on new connections: the honest client has not asked", len(h.latencies), h.joined)
	}
	slices.Sort(h.latencies)
	at := func(share float64) time.Duration {
		if len(h.latencies) == 0 {
			return 0
		}
		return h.latencies[int(share*float64(len(h.latencies)-1))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d answers (%d on new connections), %d lost, p50 %v, p99 %v, longest %v",
		len(h.latencies), h.joined, h.failures, at(0.5), at(0.99), at(1))
}

// A client is a connection of grpc-go. The methods are safe for concurrent use.
type client struct {
	connection *grpc.ClientConn
	service    ratelimitv3.RateLimitServiceClient
	dials      atomic.Int32
}

// connect returns a client whose connection is made by its first request.
func connect(address string) *client {
	c := new(client)
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c.dials.Add(1)
			return dialTo(ctx, address)
		}))
	if err != nil {
		// No option and no address is wrong here.
		return c
	}
	c.connection, c.service = connection, ratelimitv3.NewRateLimitServiceClient(connection)
	return c
}

// ask returns the verdict on a request.
func (c *client) ask(ctx context.Context, r *ratelimitv3.RateLimitRequest) (ratelimitv3.RateLimitResponse_Code, error) {
	if c.service == nil {
		return 0, errors.New("no client")
	}
	response, err := c.service.ShouldRateLimit(ctx, r)
	return response.GetOverallCode(), err
}

func (c *client) close() {
	if c.connection != nil {
		_ = c.connection.Close()
	}
}

// dialTo connects to host:port or unix:path.
func dialTo(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, found := strings.CutPrefix(address, "unix:"); found {
		network, address = "unix", path
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

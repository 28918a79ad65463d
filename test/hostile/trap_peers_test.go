package hostile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// peerTraps are peers that Weir connects to, and programs on the same machine.
func peerTraps() []trap {
	return []trap{
		{
			name:  "changing_xds_responses",
			how:   "a control plane sends 300 other sets of rules, as fast as Weir answers",
			bound: "10 lines at once, then one each 5 seconds",
			run:   changingResponses,
		},
		{
			name:  "many_grants_in_redis",
			how:   "Redis has 101 000 grants",
			bound: "100 000 grants, one line",
			run:   manyGrants,
		},
		{
			name:  "wrong_tokens",
			how:   "programs on this machine show 50 wrong tokens to the admin address, beside a client with the right one",
			bound: "10 a minute; a connection that has shown the right token goes on",
			run:   wrongTokens,
		},
		{
			name:  "hosts_with_a_zone",
			how:   "a web page elsewhere asks the admin address for the Host `[::1%25evil.example]`",
			bound: "IP addresses without a zone, localhost, `--hosts`",
			run: func(t *testing.T) {
				t.Helper()
				s := start(t)
				for host, want := range map[string]int{
					"[::1%25evil.example]": http.StatusMisdirectedRequest, "evil.example": http.StatusMisdirectedRequest, "[::1]": http.StatusOK,
				} {
					if got := visitAs(t, s.Admin, host); got != want {
						t.Errorf("Host %s: got %d, want %d", host, got, want)
					}
				}
			},
		},
	}
}

// visit asks for a page, and returns the status.
func visit(t *testing.T, by *http.Client, url, host, token string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := by.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body) // else the connection is not used again
	return answer.StatusCode
}

// visitAs asks for the first page with a Host that Go's client would change.
func visitAs(t *testing.T, address, host string) int {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

func wrongTokens(t *testing.T) {
	t.Helper()
	const right = "the-right-token-of-the-operator"
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, right, 0o600)
	s := start(t, "--admin-token-file="+file)
	url := "http://" + s.Admin + "/"
	operator := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer operator.CloseIdleConnections()
	if got := visit(t, operator, url, "", right); got != http.StatusOK {
		t.Fatalf("the operator: got %d", got)
	}
	stranger := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var refused []int
	for i := range 50 {
		refused = append(refused, visit(t, stranger, url, "", fmt.Sprint("a-wrong-token-of-a-stranger-", i)))
	}
	if !slices.Contains(refused, http.StatusTooManyRequests) || slices.Contains(refused, http.StatusOK) {
		t.Errorf("wrong tokens: got %v, want that they are refused, in the end uncompared", refused)
	}
	if got := visit(t, operator, url, "", right); got != http.StatusOK {
		t.Errorf("the operator after them: got %d", got)
	}
	if got := visit(t, stranger, url, "", right); got != http.StatusTooManyRequests {
		t.Errorf("a new connection with the right token: got %d, want that guesses have a bound", got)
	}
}

func changingResponses(t *testing.T) {
	t.Helper()
	const all = 300
	plane := parts.ControlPlaneFor(t)
	answered := make(chan struct{}, all)
	plane.Heard = func(r parts.XDSRequest) {
		if r.Nonce != "" {
			answered <- struct{}{}
		}
	}
	set := func(i int) {
		if err := plane.Set("trap", fmt.Sprint(i), &ratelimitv3.RateLimitConfig{
			Name: "pushed", Domain: "pushed",
			Descriptors: []*ratelimitv3.RateLimitDescriptor{{
				Key: "a", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: uint32(i + 1)},
			}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	s := start(t, "--xds-address="+plane.Address, "--xds-node-id=trap")
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for i := 1; i <= all; i++ {
		select {
		case <-answered:
			set(i)
		case <-ctx.Done():
			t.Fatalf("set %d has no answer; the last lines:\n%s", i, last(s, 10))
		}
	}
	if lines := s.Mark(); lines > 150 {
		t.Errorf("%d lines about %d responses; the last ones:\n%s", lines, all, last(s, 10))
	}
	answers(t, s)
}

// grantsOf fills Redis with copies of its first grant, for the clients from ARGV[1] to ARGV[2].
const grantsOf = `
local slot = ARGV[3]
local value = redis.call('HGET', 'weir:{grants}', slot)
local seed = 'client0000'
local ends = redis.call('ZSCORE', 'weir:{grants}:ends', slot)
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local name = string.format('%010d', i)
  local at = slot .. name
  redis.call('HSET', 'weir:{grants}', at, (string.gsub(value, seed, name)))
  redis.call('ZADD', 'weir:{grants}:ends', ends, at)
  redis.call('ZADD', 'weir:{grants}:changes', i, at)
end
return redis.call('HLEN', 'weir:{grants}')`

func manyGrants(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	redis := parts.RedisFor(t, parts.RedisOptions{})
	args := []string{"--store=redis", "--redis-url=redis://" + redis.Address()}
	s := start(t, args...)
	block(t, s, "client0000")
	stops(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	keys := must.Get(redis.Do(ctx, "HKEYS", "weir:{grants}"))(t)
	slots := must.Get(keys.AsStrSlice())(t)
	if len(slots) != 1 {
		t.Fatalf("Redis has the grants %q, want one", slots)
	}
	const all, each = 101_000, 1000 // on a busy machine one script for all lasts longer than the client waits
	var have int64
	for n := 1; n <= all; n += each {
		filled := must.Get(redis.Do(ctx, "EVAL", grantsOf, "1", "weir:{grants}", strconv.Itoa(n), strconv.Itoa(n+each-1), slots[0]))(t)
		have = must.Get(filled.AsInt64())(t)
	}
	if have <= all {
		t.Fatalf("Redis has %d grants", have)
	}
	s = start(t, args...)
	const said = "there are more grants in Redis than there may be here"
	if _, _, err := s.Await(ctx, 0, func(line string) bool { return strings.Contains(line, said) }); err != nil {
		t.Fatal(err)
	}
	answers(t, s)
	within200(t, s)
	if got := strings.Count(strings.Join(s.Lines(), "\n"), said); got != 1 || s.Mark() > 100 {
		t.Errorf("%d lines say so, and %d lines in all; want 1 of at most 100", got, s.Mark())
	}
}

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	codeOK        = ratelimitv3.RateLimitResponse_OK
	codeOverLimit = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// ruleFile has two rules that never deny, the bucket of which is never full either, and one that denies from the second request
// on.
const ruleFile = `domain: bench
descriptors:
  - key: path
    value: /search
    descriptors:
      - key: client_id
        rate_limit: {unit: second, requests_per_unit: 4294967295}
  - key: path
    value: /bucket
    descriptors:
      - key: client_id
        rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4294967295}
  - key: path
    value: /login
    descriptors:
      - key: client_id
        rate_limit: {unit: year, requests_per_unit: 1}
`

// message returns a request of one client.
func message(path string, client int) ([]byte, error) {
	return drive.Request("bench", []drive.Entry{{Key: "path", Value: path}, {Key: "client_id", Value: fmt.Sprintf("c-%d", client)}})
}

// body returns a request as gRPC sends it: five bytes (not compressed, length) and the message.
func body(path string) ([]byte, error) {
	m, err := message(path, 4711)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...), err
}

// load is the request that h2load sends. With several keys, a client in this process sends requests for those keys instead.
type load struct {
	path                                 string
	requests, connections, streams, keys int
	timeout                              time.Duration // grpc-timeout
}

// contender is a server with the requests that it gets.
type contender struct {
	name   string
	server *server
	redis  int    // the process of the Redis that it asks; 0: none
	body   string // a file
	path   string // in the body
	want   ratelimitv3.RateLimitResponse_Code
	costs  []cost // CPU of each turn, per request
	late   int    // requests that did not get an answer within grpc-timeout, of all turns
	alone  int    // requests decided without the Redis that it should have asked, of all turns
}

// cost is CPU time for one request: of the server that was asked, and of Redis.
type cost struct{ server, redis time.Duration }

func (c cost) sum() time.Duration { return c.server + c.redis }

// turn asks and returns the CPU time of the servers for each request. measure fails when an answer is wrong: measure reads one more
// answer, and h2load counts the HTTP status of all. A server resets a request that it cannot answer within grpc-timeout, which on a
// busy machine happens to a few; many are a failure.
func (c *contender) turn(ctx context.Context, l load) (cost, error) {
	var before, after cost
	if err := c.used(&before); err != nil {
		return cost{}, err
	}
	alone, err := c.decidedAlone(ctx)
	if err != nil {
		return cost{}, err
	}
	ask := c.h2load
	if l.keys > 1 {
		ask = c.clients
	}
	late, err := ask(ctx, l)
	if err != nil {
		return cost{}, err
	}
	if err := c.used(&after); err != nil {
		return cost{}, err
	}
	if late > l.requests/20 {
		return cost{}, fmt.Errorf("%s did not answer %d of %d requests", c.name, late, l.requests)
	}
	c.late += late
	since, err := c.decidedAlone(ctx)
	if err != nil {
		return cost{}, err
	}
	if alone = since - alone; alone > l.requests/20 {
		return cost{}, fmt.Errorf("%s decided %d of %d requests without Redis: the machine is too busy", c.name, alone, l.requests)
	}
	c.alone += alone
	if err := c.check(ctx); err != nil {
		return cost{}, fmt.Errorf("%s: %w", c.name, err)
	}
	n := time.Duration(l.requests)
	return cost{(after.server - before.server) / n, (after.redis - before.redis) / n}, nil
}

// used reads the CPU time that the servers have used.
func (c *contender) used(to *cost) (err error) {
	if to.server, err = drive.CPU(c.server.PID()); err != nil {
		return err
	}
	to.redis, err = drive.CPU(c.redis)
	return err
}

// decidedAlone returns how many requests the server has decided without its Redis.
func (c *contender) decidedAlone(ctx context.Context) (int, error) {
	if c.redis == 0 {
		return 0, nil
	}
	m, err := drive.ReadMetrics(ctx, c.server.http)
	return int(m.Sum("weir_store_fallback_decisions_total")), err
}

// h2load lets h2load ask, the same each time, and returns how many requests were not answered.
func (c *contender) h2load(ctx context.Context, l load) (late int, err error) {
	out, err := exec.CommandContext(ctx, l.path,
		"-n", strconv.Itoa(l.requests), "-c", strconv.Itoa(l.connections), "-m", strconv.Itoa(l.streams),
		"-d", c.body, "-H", "te: trailers", "-H", "content-type: application/grpc", "-H", "grpc-timeout: "+strconv.FormatInt(l.timeout.Milliseconds(), 10)+"m",
		"http://"+c.server.grpc+ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("h2load against %s: %w: %s", c.name, err, out)
	}
	return l.requests - succeeded(string(out)), nil
}

// clients asks as h2load would, for another key each time, and returns how many requests were not answered.
func (c *contender) clients(ctx context.Context, l load) (late int, err error) {
	requests := make([][]byte, l.keys)
	for i := range requests {
		if requests[i], err = message(c.path, i); err != nil {
			return 0, err
		}
	}
	var left, unanswered atomic.Int64
	left.Store(int64(l.requests))
	var asking sync.WaitGroup
	for range l.connections {
		conn, err := drive.Dial(c.server.grpc)
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		for range l.streams {
			asking.Go(func() {
				for left.Add(-1) >= 0 {
					ctx, cancel := context.WithTimeout(ctx, l.timeout)
					if _, err := conn.Ask(ctx, requests[rand.IntN(len(requests))]); err != nil {
						unanswered.Add(1)
					}
					cancel()
				}
			})
		}
	}
	asking.Wait()
	return int(unanswered.Load()), ctx.Err()
}

// succeeded returns how many requests h2load says were answered with a 2xx, 0 when it says nothing.
func succeeded(output string) int {
	found := regexp.MustCompile(`(?m)^status codes: (\d+) 2xx`).FindStringSubmatch(output)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		return 0
	}
	return n
}

// check sends the request of h2load once, and reads the answer.
func (c *contender) check(ctx context.Context) error {
	frame, err := os.ReadFile(c.body)
	if err != nil {
		return err
	}
	request := new(ratelimitv3.RateLimitRequest)
	if err := proto.Unmarshal(frame[5:], request); err != nil {
		return err
	}
	conn, err := grpc.NewClient(c.server.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	response, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request)
	if err != nil {
		return err
	}
	if response.GetOverallCode() != c.want {
		return fmt.Errorf("it answers %v; want %v", response.GetOverallCode(), c.want)
	}
	return nil
}

// median returns the middle of some durations, at least one.
func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// medians returns the middle costs: of the server, of Redis, and of both together.
func (c *contender) medians() (server, redis, sum time.Duration) {
	var all [3][]time.Duration
	for _, cost := range c.costs {
		all[0], all[1], all[2] = append(all[0], cost.server), append(all[1], cost.redis), append(all[2], cost.sum())
	}
	return median(all[0]), median(all[1]), median(all[2])
}

// report prints the cost of every turn, and the medians with their ratio to the first contender's. The last ratio compares a key over
// its limit in Redis and in memory.
func report(w io.Writer, o options, all []contender) {
	who := fmt.Sprintf("h2load -c %d -m %d", o.load.connections, o.load.streams)
	if o.load.keys > 1 {
		who = fmt.Sprintf("%d clients on %d connections, %d keys at random", o.load.connections*o.load.streams, o.load.connections, o.load.keys)
	}
	fmt.Fprintf(w, "server CPU per ShouldRateLimit in microseconds; %d requests a turn, %s\n\n", o.requests, who)
	row := func(name, format string, value func(c *contender) any) {
		fmt.Fprintf(w, "%-8s", name)
		for i := range all {
			fmt.Fprintf(w, format, value(&all[i]))
		}
		fmt.Fprintln(w)
	}
	row("round", "%18s", func(c *contender) any { return c.name })
	for round := range o.rounds {
		row(strconv.Itoa(round+1), "%18.2f", func(c *contender) any { return microseconds(c.costs[round].sum()) })
	}
	_, _, first := all[0].medians()
	if o.redis {
		row("server", "%18.2f", func(c *contender) any { server, _, _ := c.medians(); return microseconds(server) })
		row("redis", "%18.2f", func(c *contender) any { _, redis, _ := c.medians(); return microseconds(redis) })
	}
	row("median", "%18.2f", func(c *contender) any { _, _, sum := c.medians(); return microseconds(sum) })
	row("ratio", "%17.2fx", func(c *contender) any { _, _, sum := c.medians(); return float64(sum) / float64(first) })
	row("late", "%18d", func(c *contender) any { return c.late })
	if o.redis {
		row("alone", "%18d", func(c *contender) any { return c.alone })
	}
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

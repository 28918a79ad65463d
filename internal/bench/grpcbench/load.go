package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	codeOK        = ratelimitv3.RateLimitResponse_OK
	codeOverLimit = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// ruleFile has one rule that never denies, the other denies from the second request on.
const ruleFile = `domain: bench
descriptors:
  - key: path
    value: /search
    descriptors:
      - key: client_id
        rate_limit: {unit: second, requests_per_unit: 4294967295}
  - key: path
    value: /login
    descriptors:
      - key: client_id
        rate_limit: {unit: year, requests_per_unit: 1}
`

// body returns a request as gRPC sends it: five bytes (not compressed, length) and the message.
func body(path string) []byte {
	message, err := proto.Marshal(&ratelimitv3.RateLimitRequest{
		Domain: "bench",
		Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{
			{Key: "path", Value: path},
			{Key: "client_id", Value: "c-4711"},
		}}},
	})
	if err != nil {
		return nil // it holds nothing that could fail
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// load is what h2load is told.
type load struct {
	path                           string
	requests, connections, streams int
}

// contender is a server with what it is asked.
type contender struct {
	name   string
	server *server
	body   string // a file
	want   ratelimitv3.RateLimitResponse_Code
	costs  []time.Duration // CPU of each turn, per request
	late   int             // requests that did not get an answer within grpc-timeout, of all turns
}

// turn lets h2load ask and returns the CPU time of the server for each request. It fails when an answer is not what it should
// be: one more is looked at, and of all of them the HTTP status. A server resets a request that it cannot answer within the
// 20 ms that Envoy waits, which on a busy machine happens to a few; many are a failure.
func (c *contender) turn(ctx context.Context, l load) (time.Duration, error) {
	before, err := c.server.cpu()
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, l.path,
		"-n", strconv.Itoa(l.requests), "-c", strconv.Itoa(l.connections), "-m", strconv.Itoa(l.streams),
		"-d", c.body, "-H", "te: trailers", "-H", "content-type: application/grpc", "-H", "grpc-timeout: 20m",
		"http://"+c.server.address+ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("h2load against %s: %w: %s", c.name, err, out)
	}
	after, err := c.server.cpu()
	if err != nil {
		return 0, err
	}
	late := l.requests - succeeded(string(out))
	if late > l.requests/20 {
		return 0, fmt.Errorf("%s did not answer %d of %d requests: %s", c.name, late, l.requests, out)
	}
	c.late += late
	if err := c.check(ctx); err != nil {
		return 0, fmt.Errorf("%s: %w", c.name, err)
	}
	return (after - before) / time.Duration(l.requests), nil
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

// check asks what h2load asks, and looks at the answer.
func (c *contender) check(ctx context.Context) error {
	frame, err := os.ReadFile(c.body)
	if err != nil {
		return err
	}
	request := new(ratelimitv3.RateLimitRequest)
	if err := proto.Unmarshal(frame[5:], request); err != nil {
		return err
	}
	conn, err := grpc.NewClient(c.server.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
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

// report prints the cost of every turn, the medians, and how they compare to those of the first contender.
func report(w io.Writer, o options, all []contender) {
	fmt.Fprintf(w, "server CPU per ShouldRateLimit in microseconds; %d requests a turn, h2load -c %d -m %d\n\n",
		o.requests, o.load.connections, o.load.streams)
	fmt.Fprintf(w, "%-8s", "round")
	for i := range all {
		fmt.Fprintf(w, "%18s", all[i].name)
	}
	for round := range o.rounds {
		fmt.Fprintf(w, "\n%-8d", round+1)
		for i := range all {
			fmt.Fprintf(w, "%18.2f", microseconds(all[i].costs[round]))
		}
	}
	fmt.Fprintf(w, "\n%-8s", "median")
	for i := range all {
		fmt.Fprintf(w, "%18.2f", microseconds(median(all[i].costs)))
	}
	fmt.Fprintf(w, "\n%-8s", "ratio")
	for i := range all {
		fmt.Fprintf(w, "%17.2fx", float64(median(all[i].costs))/float64(median(all[0].costs)))
	}
	fmt.Fprintf(w, "\n%-8s", "late")
	for i := range all {
		fmt.Fprintf(w, "%18d", all[i].late)
	}
	fmt.Fprintln(w)
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

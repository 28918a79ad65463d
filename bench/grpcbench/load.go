package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// turn is the outcome of the requests of one turn.
type turn struct {
	server, redis time.Duration // CPU time for one request
	p50, p99      time.Duration // of answers; 0: not measured
	late          int           // requests that did not get an answer within grpc-timeout
	alone         int           // requests decided without the Redis that the server should have asked
}

func (t turn) both() time.Duration { return t.server + t.redis }
func (t turn) half() time.Duration { return t.p50 }
func (t turn) most() time.Duration { return t.p99 }

// turn asks and returns the CPU time of the servers for each request. turn fails when an answer is
// wrong: turn reads one more answer. h2load counts the HTTP status of all, and the client of this
// process the verdicts. A server resets a
// request that it cannot answer within grpc-timeout, which on a busy machine happens to a few; many
// are a failure.
func (b *bench) turn(ctx context.Context, c *contender, s shape, requests int) (t turn, err error) {
	before, err := b.used(ctx, c)
	if err != nil {
		return t, err
	}
	ask := b.clients
	if b.o.h2load {
		ask = b.run
	}
	if err := ask(ctx, c, s, requests, &t); err != nil {
		return t, err
	}
	after, err := b.used(ctx, c)
	if err != nil {
		return t, err
	}
	if t.late > requests/20 {
		return t, fmt.Errorf("%s did not answer %d of %d requests", c.name, t.late, requests)
	}
	n := time.Duration(requests)
	t.server, t.redis, t.alone = (after.server-before.server)/n, (after.redis-before.redis)/n, after.alone-before.alone
	if t.alone > requests/20 {
		return t, fmt.Errorf("%s decided %d of %d requests without Redis: the machine is too busy", c.name, t.alone, requests)
	}
	if err := b.check(ctx, c); err != nil {
		return t, fmt.Errorf("%s: %w", c.name, err)
	}
	return t, nil
}

// used returns the totals of a server until now.
func (b *bench) used(ctx context.Context, c *contender) (t turn, err error) {
	if c.server == nil {
		return t, nil
	}
	if t.server, err = drive.CPU(c.server.PID()); err != nil || !c.redis {
		return t, err
	}
	if t.redis, err = drive.CPU(b.redisPID); err != nil {
		return t, err
	}
	m, err := drive.ReadMetrics(ctx, c.server.http)
	t.alone = int(m.Sum("weir_store_fallback_decisions_total"))
	return t, err
}

// run lets h2load ask, the same each time. Where answers take long, h2load also writes how long
// each took.
func (b *bench) run(ctx context.Context, c *contender, s shape, requests int, t *turn) error {
	args := []string{"-n", strconv.Itoa(requests), "-c", strconv.Itoa(s.connections), "-m", strconv.Itoa(s.streams)}
	log := ""
	if b.o.envoy || s.connections*s.streams == 1 {
		log = filepath.Join(b.dir, "log")
		args = append(args, "--log-file="+log)
	}
	if c.envoy != "" {
		args = append(args, "http://"+c.envoy+"/")
	} else {
		url := "http://localhost"
		switch {
		case c.server.socket != "":
			args = append(args, "--base-uri=unix:"+c.server.socket)
		case c.server.tls:
			url = "https://" + c.server.grpc
		default:
			url = "http://" + c.server.grpc
		}
		args = append(args, "-d", c.body, "-H", "te: trailers", "-H", "content-type: application/grpc",
			"-H", "grpc-timeout: "+strconv.FormatInt(b.o.grpcTimeout.Milliseconds(), 10)+"m",
			url+ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	}
	out, err := exec.CommandContext(ctx, b.h2load, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("h2load against %s: %w: %s", c.name, err, out)
	}
	t.late = requests - succeeded(string(out))
	if log == "" {
		return nil
	}
	text, err := os.ReadFile(log)
	if err := errors.Join(err, os.Remove(log)); err != nil {
		return err
	}
	t.p50, t.p99, err = percentiles(text)
	return err
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

// percentiles reads the log of h2load: start, status and microseconds of each request.
func percentiles(log []byte) (p50, p99 time.Duration, err error) {
	var all []time.Duration
	lines := bufio.NewScanner(bytes.NewReader(log))
	for lines.Scan() {
		columns := bytes.Split(lines.Bytes(), []byte("\t"))
		if len(columns) < 3 {
			return 0, 0, fmt.Errorf("the log of h2load: no three columns: %q", lines.Bytes())
		}
		n, err := strconv.Atoi(string(columns[2]))
		if err != nil {
			return 0, 0, fmt.Errorf("the log of h2load: %w", err)
		}
		all = append(all, time.Duration(n)*time.Microsecond)
	}
	if len(all) == 0 {
		return 0, 0, errors.New("the log of h2load is empty")
	}
	slices.Sort(all)
	return program.At(all, 0.5), program.At(all, 0.99), nil
}

// clients asks with HEADERS and DATA side by side. With many keys or holders each request has
// another one.
func (b *bench) clients(ctx context.Context, c *contender, s shape, requests int, t *turn) error {
	messages, err := c.messages(max(b.o.keys, b.o.manyKeys()))
	if err != nil {
		return err
	}
	next := func() []byte { return messages[rand.IntN(len(messages))] }
	switch {
	case c.holds():
		next = func() []byte { return messages[int(c.next.Add(1)-1)%len(messages)] }
	case len(messages) == 1:
		next = func() []byte { return messages[0] }
	}
	load := drive.Load{Connections: s.connections, Streams: s.streams, Requests: requests, Timeout: b.o.grpcTimeout}
	address := c.server.grpc
	if c.server.socket != "" {
		address = "unix:" + c.server.socket
	}
	outcome, err := drive.Closed(ctx, address, load, next)
	if t.late = outcome.Failed; c.want == codeOverLimit {
		t.late += requests - outcome.Failed - outcome.Denied
	} else {
		t.late += outcome.Denied
	}
	slices.Sort(outcome.Took)
	t.p50, t.p99 = program.At(outcome.Took, 0.5), program.At(outcome.Took, 0.99)
	return err
}

// check sends the request of a contender once, and reads the answer.
func (b *bench) check(ctx context.Context, c *contender) error {
	if c.path == "" || c.kind == "nghttpd" {
		return nil // h2load knows the status; nghttpd does not speak gRPC
	}
	response, err := c.server.ask(ctx, b.certs, c.path)
	if err != nil {
		return err
	}
	if response.GetOverallCode() != c.want {
		return fmt.Errorf("got the answer %v; want %v", response.GetOverallCode(), c.want)
	}
	return nil
}

// ask sends the request of h2load.
func (s *server) ask(ctx context.Context, certs *parts.Certificates, path string) (*ratelimitv3.RateLimitResponse, error) {
	frame, err := body(path)
	if err != nil {
		return nil, err
	}
	request := new(ratelimitv3.RateLimitRequest)
	if err := proto.Unmarshal(frame[5:], request); err != nil {
		return nil, err
	}
	address, secure := s.grpc, insecure.NewCredentials()
	if s.socket != "" {
		address = "unix:" + s.socket
	}
	if s.tls {
		secure = credentials.NewTLS(certs.ClientConfig())
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(secure), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request)
}

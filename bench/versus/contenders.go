package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// class is a limit that each service has.
type class string

const (
	free   class = "free"   // never denies
	second class = "second" // windows of a second
	day    class = "day"
)

const (
	domain     = "versus"
	freeHits   = 4_000_000_000
	strictHits = 100 // of second and day
)

// of returns the limit of a class.
func (c class) of() limit {
	switch c {
	case second:
		return limit{most: strictHits, period: time.Second}
	case day:
		return limit{most: strictHits, period: 24 * time.Hour}
	default:
		return limit{most: freeHits, period: time.Hour}
	}
}

// contender is a service to measure.
type contender struct {
	name     string
	settings string // for the page
	missing  string // why the service cannot be measured
	redis    bool
	anchored bool // windows begin with their first hit
	own      bool // another call than Envoy's
	batch    int  // hits on different keys in a request that fills its memory
	start    func(ctx context.Context, s *site) error
}

// site is a running contender.
type site struct {
	*contender

	programs *programs
	dir      string
	process  *parts.Process
	store    *parts.Redis // nil: the service counts in memory
	address  string
}

// programs are the paths of all programs.
type programs struct {
	binaries

	sidecar, redis string
}

// contenders returns the bare server and then all services.
func contenders(b *binaries) []contender {
	weir := func(name, settings string, redis bool, args ...string) contender {
		return contender{name: name, settings: settings, redis: redis, batch: 50, start: startSidecar(args)}
	}
	return []contender{
		{name: bareName, settings: "answers a constant", start: startBare},
		{
			name: "envoyproxy/ratelimit", settings: ratelimitVersion + "; `REDIS_PIPELINE_WINDOW=150us`, Prometheus, no local cache, `LOG_LEVEL=error`",
			missing: b.why["ratelimit"], redis: true, batch: 50, start: startRatelimit("0"),
		},
		{
			name: "envoyproxy/ratelimit, local cache", settings: "the same, and `LOCAL_CACHE_SIZE_IN_BYTES=67108864`",
			missing: b.why["ratelimit"], redis: true, batch: 50, start: startRatelimit("67108864"),
		},
		{
			name: "limitador", settings: b.limitadorVersion + "; in memory, with room for 2000000 counters",
			missing: b.why["limitador"], anchored: true, batch: 1, start: startLimitador,
		},
		{
			name: "gubernator", settings: gubernatorVersion + "; one node, `GUBER_CACHE_SIZE=2000000`, no traces, TOKEN_BUCKET, asked by its own call `GetRateLimits`",
			missing: b.why["gubernator"], anchored: true, own: true, batch: 50, start: startGubernator,
		},
		weir("Weir, memory", "`--max-keys 2000000`", false, "--max-keys=2000000"),
		weir("Weir, Redis exact", "`--store redis`", true, "--sharing=exact"),
		weir("Weir, Redis leased", "`--store redis --sharing leased`", true, "--sharing=leased"),
	}
}

// bareName is the contender that ratios refer to.
const bareName = "bare grpc-go"

// open starts a contender in a folder of its own, and waits for its first answer.
func (c *contender) open(ctx context.Context, p *programs) (s *site, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s = &site{contender: c, programs: p}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", c.name, err), s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "versus"); err != nil {
		return s, err
	}
	if c.redis {
		if s.store, err = parts.StartRedis(ctx, p.redis, s.dir, parts.RedisOptions{}); err != nil {
			return s, err
		}
	}
	if err := c.start(ctx, s); err != nil {
		return s, err
	}
	return s, s.answers(ctx)
}

// close ends a contender.
func (s *site) close() error {
	if s.process != nil {
		s.process.Kill()
	}
	if s.store != nil {
		s.store.Kill()
	}
	return os.RemoveAll(s.dir)
}

// answers waits until a contender admits a request.
func (s *site) answers(ctx context.Context) error {
	request := s.request(free, "first")
	for {
		r := drive.NewRecorder(s.address, time.Second, s.call())
		n := 0
		err := r.Closed(ctx, 1, func() (int32, []byte, bool) { n++; return 0, request, n == 1 })
		all, failed := r.Records()
		if err == nil && failed == nil && len(all) == 1 && all[0].Result == drive.Allowed {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-s.process.Exited():
			return fmt.Errorf("ended: %s", s.process.Tail(10))
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w, %w; %s", err, failed, s.process.Tail(10))
		}
	}
}

// call returns the call of a contender.
func (c *contender) call() drive.Call {
	if c.own {
		return drive.Call{Method: "/pb.gubernator.V1/GetRateLimits", Denied: gubernatorDenied}
	}
	return drive.ShouldRateLimit()
}

// request returns a request for one hit on each key.
func (c *contender) request(of class, keys ...string) []byte {
	if c.own {
		return gubernatorRequest(of, keys)
	}
	descriptors := make([][]drive.Entry, len(keys))
	for i, key := range keys {
		descriptors[i] = []drive.Entry{{Key: "class", Value: string(of)}, {Key: "key", Value: key}}
	}
	encoded, err := drive.Request(domain, descriptors...)
	if err != nil {
		return nil // an empty request is an error of the service
	}
	return encoded
}

// gubernatorRequest encodes GetRateLimitsReq.
func gubernatorRequest(of class, keys []string) (all []byte) {
	l := of.of()
	for _, key := range keys {
		var one []byte
		for number, text := range []string{1: string(of), 2: key} {
			if number > 0 {
				one = protowire.AppendString(protowire.AppendTag(one, protowire.Number(number), protowire.BytesType), text)
			}
		}
		for number, value := range map[protowire.Number]uint64{3: 1, 4: uint64(l.most), 5: uint64(l.period.Milliseconds())} {
			one = protowire.AppendVarint(protowire.AppendTag(one, number, protowire.VarintType), value)
		}
		all = protowire.AppendBytes(protowire.AppendTag(all, 1, protowire.BytesType), one)
	}
	return all
}

// gubernatorDenied reads GetRateLimitsResp: whether one of the answers is OVER_LIMIT.
func gubernatorDenied(message []byte) (denied bool, err error) {
	return denied, fields(message, func(number protowire.Number, _ uint64, answer []byte) error {
		if number != 1 {
			return nil
		}
		return fields(answer, func(number protowire.Number, value uint64, text []byte) error {
			switch {
			case number == 1 && value == 1:
				denied = true
			case number == 5 && len(text) > 0:
				return errors.New(string(text))
			}
			return nil
		})
	})
}

// fields calls each with the fields of a message: its number, and a varint or bytes.
func fields(message []byte, each func(number protowire.Number, value uint64, text []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := each(number, value, text); err != nil {
			return err
		}
	}
	return nil
}

func startBare(ctx context.Context, s *site) error {
	b, err := program.StartBare(ctx)
	if err != nil {
		return err
	}
	s.process, s.address = b.Process, b.GRPC
	return nil
}

// rules is the rule file of envoyproxy/ratelimit and of Weir.
func rules() string {
	var text strings.Builder
	text.WriteString("domain: " + domain + "\ndescriptors:\n")
	for c, unit := range map[class]string{free: "hour", second: "second", day: "day"} {
		fmt.Fprintf(&text, "  - key: class\n    value: %s\n    descriptors:\n      - key: key\n        rate_limit: {unit: %s, requests_per_unit: %d}\n",
			c, unit, c.of().most)
	}
	return text.String()
}

// startSidecar returns a start of Weir with arguments.
func startSidecar(args []string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		path := filepath.Join(s.dir, "rules.yaml")
		if err := os.WriteFile(path, []byte(rules()), 0o600); err != nil {
			return err
		}
		args := append([]string{"--rules=" + path, "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address="}, args...)
		if s.store != nil {
			args = append(args, "--store=redis", "--redis-url=redis://"+s.store.Address(), "--redis-timeout=1s")
		}
		sidecar, err := parts.StartSidecar(ctx, s.programs.sidecar, args...)
		if err != nil {
			return err
		}
		s.process, s.address = sidecar.Process, sidecar.GRPC
		if s.store != nil {
			return drive.AwaitRedis(ctx, sidecar.HTTP)
		}
		return nil
	}
}

// ports returns so many free ports of loopback.
func ports(n int) (all []string, err error) {
	for range n {
		address, err := parts.FreeAddress()
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		all = append(all, port)
	}
	return all, nil
}

// startRatelimit returns a start of envoyproxy/ratelimit with a local cache of that many bytes.
func startRatelimit(cache string) func(ctx context.Context, s *site) error {
	return func(_ context.Context, s *site) error {
		folder := filepath.Join(s.dir, "ratelimit", "config")
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, "versus.yaml"), []byte(rules()), 0o600)); err != nil {
			return err
		}
		p, err := ports(4)
		if err != nil {
			return err
		}
		s.address = "127.0.0.1:" + p[0]
		s.process, err = parts.StartIn([]string{
			"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "GRPC_PORT=" + p[0], "PORT=" + p[1], "DEBUG_PORT=" + p[2],
			"USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:" + p[3], "LOG_LEVEL=error",
			"RUNTIME_ROOT=" + s.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
			"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + s.store.Address(), "REDIS_PIPELINE_WINDOW=150us", "LOCAL_CACHE_SIZE_IN_BYTES=" + cache,
		}, "ratelimit", s.programs.ratelimit)
		return err
	}
}

func startLimitador(_ context.Context, s *site) error {
	var text strings.Builder
	for _, c := range []class{free, second, day} {
		l := c.of()
		fmt.Fprintf(&text, "- namespace: %s\n  max_value: %d\n  seconds: %d\n  conditions: [\"descriptors[0]['class'] == '%s'\"]\n  variables: [\"descriptors[0]['key']\"]\n",
			domain, l.most, int(l.period.Seconds()), c)
	}
	path := filepath.Join(s.dir, "limits.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return err
	}
	p, err := ports(2)
	if err != nil {
		return err
	}
	s.address = "127.0.0.1:" + p[0]
	s.process, err = parts.Start("limitador", s.programs.limitador, "-b", "127.0.0.1", "-p", p[0], "-B", "127.0.0.1", "-P", p[1], path, "memory", "--cache", "2000000")
	return err
}

// startGubernator starts a fleet of one node, which finds itself as the documented fleets do.
func startGubernator(_ context.Context, s *site) error {
	p, err := ports(3)
	if err != nil {
		return err
	}
	s.address = "127.0.0.1:" + p[0]
	member := "127.0.0.1:" + p[2]
	s.process, err = parts.StartIn([]string{
		"GUBER_GRPC_ADDRESS=" + s.address, "GUBER_ADVERTISE_ADDRESS=" + s.address, "GUBER_HTTP_ADDRESS=127.0.0.1:" + p[1],
		"GUBER_PEER_DISCOVERY_TYPE=member-list", "GUBER_MEMBERLIST_ADDRESS=" + member, "GUBER_MEMBERLIST_BIND_ADDRESS=" + member, "GUBER_MEMBERLIST_KNOWN_NODES=" + member,
		"GUBER_CACHE_SIZE=2000000", "GUBER_LOG_LEVEL=error", "OTEL_TRACES_EXPORTER=none", "OTEL_TRACES_SAMPLER=always_off",
	}, "gubernator", s.programs.gubernator)
	return err
}

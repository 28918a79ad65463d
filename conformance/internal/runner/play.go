package runner

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/weirproxy/weir/conformance/cases"
)

// A play is one attempt of a case.
type play struct {
	c      *cases.Case
	target *target
	client *client
	fresh  string

	// disturbed says that a request came after the end of the window that it was meant for: this
	// attempt proves nothing.
	disturbed bool
	second    int64 // the second that requests are meant for; 0 where no step waits for one
	minute    int64 // of the first request
}

// run plays the steps of a case until one fails.
func (p *play) run(ctx context.Context) error {
	if p.c.Align == "second" {
		p.nextSecond(ctx)
	}
	p.minute = time.Now().Unix() / 60
	defer func() { p.disturbed = p.disturbed || time.Now().Unix()/60 != p.minute && p.second == 0 }()
	for i := range p.c.Steps {
		s := &p.c.Steps[i]
		if err := p.step(ctx, s); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, describe(s), err)
		}
	}
	return nil
}

// describe is a short text of a step.
func describe(s *cases.Step) string {
	switch {
	case s.Ask != "":
		return short(s.Ask)
	case s.Race != nil:
		return "race of " + short(s.Race.Ask)
	case s.Raw != nil:
		return "raw call " + s.Raw.Method
	case s.Health != nil:
		return fmt.Sprintf("health of %q", *s.Health)
	case s.Redis != "":
		return "redis " + s.Redis
	case s.Wait != "":
		return "wait " + s.Wait
	case s.List:
		return "reflection"
	case s.Drain != nil:
		return "drain"
	default:
		return "reload"
	}
}

func short(text string) string {
	if len(text) > 80 {
		return text[:80] + "…"
	}
	return text
}

func (p *play) step(ctx context.Context, s *cases.Step) error {
	switch {
	case s.Ask != "":
		return p.asks(ctx, s)
	case s.Race != nil:
		return p.race(ctx, s.Race)
	case s.Raw != nil:
		return p.raw(ctx, s)
	case s.Wait != "":
		return p.wait(ctx, s.Wait)
	case s.Health != nil:
		return p.health(ctx, *s.Health, s.Is)
	case s.List:
		return p.reflection(ctx)
	case s.Reload != nil:
		return p.reload(ctx, s.Reload)
	case s.Broken != "":
		return p.breakRules(ctx, s.Broken)
	case s.Drain != nil:
		return p.drain(ctx, s.Drain)
	default:
		if p.target.redis == nil {
			return errors.New("the runner has no Redis")
		}
		return p.target.redis.act(s.Redis)
	}
}

// asks sends the request of a step as often as it says.
func (p *play) asks(ctx context.Context, s *cases.Step) error {
	request, err := cases.ParseRequest(s.Ask, p.c.Domain, p.fresh)
	if err != nil {
		return err
	}
	answer, err := cases.ParseAnswer(s.Is)
	if err != nil {
		return err
	}
	for n := range max(1, s.Times) {
		got := p.client.ask(ctx, request)
		p.meant(got)
		if err := p.compare(s, answer, got); err != nil {
			if s.Times > 1 {
				return fmt.Errorf("request %d: %w", n+1, err)
			}
			return err
		}
	}
	return nil
}

func (p *play) compare(s *cases.Step, answer cases.Answer, got reply) error {
	if err := p.client.check(answer, got); err != nil {
		return err
	}
	if err := p.client.checkHeaders(s.Headers, got); err != nil {
		return err
	}
	if s.Data != nil {
		if err := checkData(s.Data, got.response.GetDynamicMetadata()); err != nil {
			return err
		}
	}
	if s.Within != "" {
		most, err := time.ParseDuration(s.Within)
		if err != nil {
			return err
		}
		if took := got.received.Sub(got.sent); took > most {
			return fmt.Errorf("want an answer within %s, got it after %s", most, took.Round(time.Millisecond))
		}
	}
	return nil
}

// meant notes when a request was answered outside the second it was meant for.
func (p *play) meant(got reply) {
	if p.second != 0 && got.received.Unix() != p.second {
		p.disturbed = true
	}
}

// nextSecond waits until a moment after the beginning of the next second.
func (p *play) nextSecond(ctx context.Context) {
	now := time.Now()
	next := now.Truncate(time.Second).Add(time.Second)
	pause(ctx, next.Add(5*time.Millisecond).Sub(now))
	p.second = time.Now().Unix()
}

func (p *play) wait(ctx context.Context, text string) error {
	if text == "next second" {
		before := p.second
		p.nextSecond(ctx)
		if before != 0 && p.second != before+1 {
			p.disturbed = true
		}
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	pause(ctx, d)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (p *play) health(ctx context.Context, service, is string) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	answer, err := healthpb.NewHealthClient(p.client.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		want, parseErr := cases.ParseAnswer(is)
		if parseErr != nil {
			return parseErr
		}
		if slices.ContainsFunc(want.OneOf, (reply{err: err}).isWord) {
			return nil
		}
		return fmt.Errorf("want %s, got %w", is, err)
	}
	if got := answer.GetStatus().String(); got != is {
		return fmt.Errorf("want %s, got %s", is, got)
	}
	return nil
}

// reflection asks for the names of the services, among which must be the rate limit service.
func (p *play) reflection(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(p.client.conn).ServerReflectionInfo(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if err != nil {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, s := range answer.GetListServicesResponse().GetService() {
		if s.GetName() == "envoy.service.ratelimit.v3.RateLimitService" {
			return nil
		}
	}
	return fmt.Errorf("the rate limit service is not among %v", answer.GetListServicesResponse().GetService())
}

func (p *play) reload(ctx context.Context, rules map[string]any) error {
	delete(p.target.texts, p.c.Domain)
	for i, d := range p.target.domains {
		if d.Domain == p.c.Domain {
			p.target.domains[i].Rules = rules
		}
	}
	return p.target.reload(ctx)
}

// breakRules writes a text that is no rules, and gives the target the time to read it.
func (p *play) breakRules(ctx context.Context, text string) error {
	p.target.texts[p.c.Domain] = text
	if err := p.target.write(); err != nil {
		return err
	}
	p.target.version-- // the rules before stay in force, and so does their marker
	pause(ctx, 1500*time.Millisecond)
	return nil
}

// A bytesCodec sends bytes as they are.
type bytesCodec struct{}

// Marshal returns the bytes.
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal drops the answer.
func (bytesCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// Name is the name of protobuf's codec.
func (bytesCodec) Name() string { return "proto" }

// raw sends bytes in place of a request.
func (p *play) raw(ctx context.Context, s *cases.Step) error {
	if s.Raw.Plain != "" {
		return p.plain(ctx, s.Raw.Plain)
	}
	content, err := hex.DecodeString(strings.ReplaceAll(s.Raw.Hex, " ", ""))
	if err != nil {
		return err
	}
	content = append(content, make([]byte, s.Raw.Size)...)
	method := s.Raw.Method
	if method == "" {
		method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	}
	options := []grpc.CallOption{grpc.ForceCodecV2(bytesCodec{})}
	if s.Raw.Gzip {
		options = append(options, grpc.UseCompressor(gzip.Name))
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var none []byte
	err = p.client.conn.Invoke(ctx, method, content, &none, options...)
	answer, parseErr := cases.ParseAnswer(s.Is)
	if parseErr != nil {
		return parseErr
	}
	for _, word := range answer.OneOf {
		if (err == nil && word == "OK") || (err != nil && (reply{err: err}).isWord(word)) {
			return nil
		}
	}
	if err == nil {
		return fmt.Errorf("want %s, got OK", s.Is)
	}
	return fmt.Errorf("want %s, got %w", s.Is, err)
}

// plain writes bytes to a connection of their own, and closes it.
func (p *play) plain(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", p.target.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The target may close the connection before it has read all: any result is right.
	_, _ = conn.Write([]byte(text))
	pause(ctx, 20*time.Millisecond)
	return nil
}

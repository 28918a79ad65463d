package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/limiter"
)

const laneRules = `
domain: edge
default: {requests_per_unit: 100, unit: minute}
descriptors:
  - key: user
    detailed_metric: true
    rate_limits:
      - {requests_per_unit: 4294967295, unit: year}
      - {requests_per_unit: 100, unit: second, algorithm: token_bucket, burst: 4294967295, count_rejected: true}
    descriptors:
      - {key: user, value: "*", quota_mode: true, rate_limit: {requests_per_unit: 10, unit: hour, algorithm: sliding_window_log}}
  - key: shop
    shadow_mode: true
    value_to_metric: true
    rate_limit: {requests_per_unit: 10, period: 1s, algorithm: sliding_window_counter}
`

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// randomMessage is a request that may be odd in several ways at once.
func randomMessage(t *testing.T, r *rand.Rand) []byte {
	t.Helper()
	in := &ratelimitv3.RateLimitRequest{
		Domain: pick(r, "edge", "edge", "edge", "edge", "elsewhere", ""), HitsAddend: pick[uint32](r, 0, 0, 1, 7, 1<<32-1),
	}
	n := pick(r, 0, 1, 1, 1, 2, 3, 10)
	if r.IntN(50) == 0 {
		n = pick(r, 200, 1000, 1001, 3000)
	}
	for range n {
		d := &commonv3.RateLimitDescriptor{IsNegativeHits: r.IntN(8) == 0}
		for range pick(r, 0, 1, 1, 1, 2, 5) {
			value := pick(r, "", "alice", "bob", "*", strings.Repeat("é", 100), fmt.Sprint(r.Uint64()))
			if n < 4 && r.IntN(20) == 0 {
				value = strings.Repeat("v", pick(r, 3000, 5000, 30_000, 70_000))
			}
			key := pick(r, "user", "user", "user", "shop", "nobody", "user_alice", "shop", "user", "user", "")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		if r.IntN(3) == 0 {
			d.HitsAddend = wrapperspb.UInt64(pick[uint64](r, 0, 1, 1<<32-1, 1<<32, 1<<64-1))
		}
		if r.IntN(6) == 0 && n < 20 {
			d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: pick[uint32](r, 0, 1, 1<<32-1), Unit: typev3.RateLimitUnit(pick[int32](r, 1, 2, 3, 4, 5, 6, 7, 0, 8, -1, 1<<31-1)),
			}
			if r.IntN(2) == 0 {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(pick[uint32](r, 0, 1, 2, 1<<32-1))
			}
		}
		in.Descriptors = append(in.Descriptors, d)
	}
	data := must.Get(proto.Marshal(in))(t)
	if len(data) > 0 && r.IntN(10) == 0 {
		for range pick(r, 1, 2, 10) {
			data[r.IntN(len(data))] = byte(r.UintN(256))
		}
		data = data[:pick(r, len(data), len(data), r.IntN(len(data)))]
	}
	return data
}

// answerOf is everything that a client sees.
type answerOf struct {
	Response        []byte
	Status          string
	Details         []string
	Header, Trailer metadata.MD
}

// Time stands still in a bubble, so that both servers decide at the same instant.
func TestTheLaneAndGRPCGiveEqualAnswersToRandomRequests(t *testing.T) {
	requests := race.Scale(2000)
	if n, err := strconv.Atoi(os.Getenv("WEIR_RANDOM_REQUESTS")); err == nil {
		requests = n
	}
	synctest.Test(t, func(t *testing.T) {
		var conns []*grpc.ClientConn
		for _, library := range []bool{true, false} {
			f := start(t, laneRules, func(o *Options) {
				o.GRPCGo, o.DynamicMetadata = library, true
				o.Headers = Headers{RateLimit: true, IETF: true, RetryAfter: true}
			})
			conns = append(conns, f.conn)
		}
		const seed1, seed2 = 3, 4
		r := rand.New(rand.NewPCG(seed1, seed2))
		seen := map[string]int{}
		for i := range requests {
			data := randomMessage(t, r)
			ctx := t.Context()
			if i%2 == 1 {
				ctx = metadata.AppendToOutgoingContext(ctx, lane.ExactHeader, "1")
			}
			var answers []answerOf
			for _, conn := range conns {
				var a answerOf
				err := conn.Invoke(ctx, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, &data, &a.Response,
					grpc.ForceCodec(raw{}), grpc.Header(&a.Header), grpc.Trailer(&a.Trailer))
				s := status.Convert(err)
				a.Status = fmt.Sprintf("%v: %s", s.Code(), s.Message())
				for _, d := range s.Details() {
					a.Details = append(a.Details, fmt.Sprint(d))
				}
				answers = append(answers, a)
				seen[s.Code().String()]++
				if c := s.Code(); c != codes.OK && c != codes.ResourceExhausted && (c != codes.InvalidArgument || s.Message() == "") {
					t.Errorf("request %d: got %v, want an answer or a clear error", i, err)
				}
			}
			if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
				t.Fatalf("request %d of seed %d, %d: %x (-grpc +lane):\n%s", i, seed1, seed2, data, diff)
			}
		}
		if seen["OK"] < requests/2 || seen["InvalidArgument"] < requests/10 || seen["ResourceExhausted"] == 0 {
			t.Errorf("codes: got %v, want many answers and refusals: else the requests show little", seen)
		}
	})
}

// inPlaceHandler is the handler of a connection that is not there. Such a handler needs a store
// that decides every request in place.
func inPlaceHandler(tb testing.TB, f *fixture) *laneHandler {
	tb.Helper()
	if os.Getenv("WEIR_STORE") == "waits" {
		tb.Skip("the fixture hides that its store never waits")
	}
	return &laneHandler{service: f.server.service}
}

// frameOf appends a request as Envoy sends it: HEADERS and DATA. exact is the value of
// lane.ExactHeader.
func frameOf(t *testing.T, message []byte, exact string) []byte {
	t.Helper()
	var headers, out bytes.Buffer
	code := hpack.NewEncoder(&headers)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName},
		{":authority", "weir"},
		{"te", "trailers"},
		{"grpc-timeout", "20m"},
		{"content-type", "application/grpc"},
		{lane.ExactHeader, exact},
	} {
		if err := code.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}); err != nil { // keeps the table as it is
			t.Fatal(err)
		}
	}
	framer := http2.NewFramer(&out, nil)
	data := append([]byte{0, 0, 0, 0, 0}, message...)
	binary.BigEndian.PutUint32(data[1:], uint32(len(message)))
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true})
	if err = errors.Join(err, framer.WriteData(1, true, data)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestARequestOnTheLaneAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector drops parts of pools")
	}
	for _, exact := range []string{"", "1"} {
		f := start(t, "domain: edge\ndescriptors:\n  - {key: user, detailed_metric: true, rate_limit: {requests_per_unit: 4294967295, unit: year}}\n", nil)
		l := must.Get(lane.New(lane.Options{Path: ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, MaxMessage: 64 << 10}))(t)
		now := int64(1)
		c := l.Open(now, inPlaceHandler(t, f), nil, 0)
		hello := bytes.NewBufferString(http2.ClientPreface)
		framer := http2.NewFramer(hello, nil)
		must.Do(t, errors.Join(framer.WriteSettings(), framer.WriteWindowUpdate(0, 1<<30)))
		must.Get(c.Receive(hello.Bytes(), now))(t)
		c.Output()
		message := join(bytesField(1, []byte("edge")), bytesField(2, bytesField(1, bytesField(1, []byte("user")), bytesField(2, []byte("alice")))))
		one := frameOf(t, message, exact)
		batch := bytes.Repeat(one, 20)
		second := 9 + int(one[0])<<16 + int(one[1])<<8 + int(one[2]) // DATA
		id := uint32(1)
		out := make([]byte, 0, 64<<10)
		allocs := testing.AllocsPerRun(100, func() {
			for at := 0; at < len(batch); at += len(one) {
				binary.BigEndian.PutUint32(batch[at+5:], id)
				binary.BigEndian.PutUint32(batch[at+second+5:], id)
				id += 2
			}
			now += 1000
			c.Lend(out)
			must.Get(c.Receive(batch, now))(t)
			if c.Output() == nil {
				t.Fatal("no answer")
			}
		})
		if got := c.Answered(); allocs != 0 || got != 20*101 {
			t.Errorf("x-weir-exact %q, 20 requests: got %v allocations, %d answers in all; want 0, %d", exact, allocs, got, 20*101)
		}
	}
}

// The texts of a request are parts of the buffer, which the next bytes of the client overwrite.
func TestNothingKeepsTheBytesOfARequestOnTheLane(t *testing.T) {
	once(t)
	race.Without(t)
	var all [2][]string
	for i := range all {
		synctest.Test(t, func(t *testing.T) {
			var spans *tracetest.InMemoryExporter
			f := start(t, laneRules, func(o *Options) {
				o.DynamicMetadata, o.Headers = true, Headers{RateLimit: true, IETF: true, RetryAfter: true}
				spans = traced(o)
				o.Propagator = nil
			})
			h := inPlaceHandler(t, f)
			r := rand.New(rand.NewPCG(5, 6))
			for range race.Scale(3000) {
				message := randomMessage(t, r)
				response, decided, err := h.service.inPlaceAlone(message)
				if i == 1 {
					for n := range message {
						message[n] = 'x'
					}
				}
				all[i] = append(all[i], fmt.Sprintf("%x %t %+v", response, decided, laneReply(err)))
			}
			for c := range f.limiter.Counts() {
				var counts []string
				for levels, tally := range c.Counts.Levels() {
					counts = append(counts, fmt.Sprintf("%q %+v", levels, tally))
				}
				for value, tally := range c.Counts.Values() {
					counts = append(counts, fmt.Sprintf("%q %+v", value, tally))
				}
				slices.Sort(counts)
				all[i] = append(all[i], c.Path)
				all[i] = append(all[i], counts...)
			}
			for _, s := range spans.GetSpans() {
				s.SpanContext = s.SpanContext.WithTraceID([16]byte{1}).WithSpanID([8]byte{1})
				all[i] = append(all[i], fmt.Sprint(said(&s)))
			}
			all[i] = append(all[i], f.logs.String())
		})
	}
	if diff := cmp.Diff(all[0], all[1]); diff != "" {
		t.Errorf("(-as it was +overwritten):\n%s", diff)
	}
}

// inPlaceAlone decides a call of no connection in place, unless it is heavy.
func (s *service) inPlaceAlone(message []byte) (response []byte, decided bool, err error) {
	c := s.newCall()
	c.ctx, c.begun = context.Background(), s.latest.started
	return s.inPlace(c, message, nil)
}

// The connection's goroutine reads the next bytes while a call waits.
func TestACallThatWaitsKeepsACopyOfItsMessage(t *testing.T) {
	once(t)
	race.Without(t)
	r := rand.New(rand.NewPCG(7, 8))
	var c call
	for range race.Scale(3000) {
		message := randomMessage(t, r)
		var want limiter.Request
		invalid := decode(message, string(message), &want)
		c.decodeInPlace(message)
		c.keep(message)
		for n := range message {
			message[n] = 'x'
		}
		if diff := cmp.Diff(want, c.request, cmpopts.EquateEmpty()); diff != "" || fmt.Sprint(c.invalid) != fmt.Sprint(invalid) {
			t.Fatalf("got %v, want %v (-want +got):\n%s", c.invalid, invalid, diff)
		}
	}
}

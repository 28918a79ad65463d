package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// errNotBytes says that a rawCodec was given something else than a *[]byte.
var errNotBytes = errors.New("not a *[]byte")

// rawCodec sends and receives bytes unchanged, so that a test can send bytes that no message
// encodes to.
type rawCodec struct{}

// Marshal returns the bytes.
func (rawCodec) Marshal(v any) ([]byte, error) {
	if message, ok := v.(*[]byte); ok {
		return *message, nil
	}
	return nil, errNotBytes
}

// Unmarshal keeps the bytes.
func (rawCodec) Unmarshal(data []byte, v any) error {
	if message, ok := v.(*[]byte); ok {
		*message = data
		return nil
	}
	return errNotBytes
}

// Name is the name of the real codec: the head of a request then names protobuf.
func (rawCodec) Name() string { return "proto" }

// notUTF8 takes the place of placeholder once a message is bytes. Both have the same length.
const (
	placeholder = "\x01\x02\x03\x04"
	notUTF8     = "\xff\xfe\xc3\x28"
)

// A randomRequest holds the bytes of a RateLimitRequest, and the known parts of its answer.
type randomRequest struct {
	message     []byte
	descriptors int  // how many statuses an answer has
	badText     bool // the request holds text that is not UTF-8
	garbled     bool // some bytes were changed: the result may be another request, or no request
}

// newRandomRequest makes a request that may be odd in any of many ways, several of them at once.
func newRandomRequest(t *testing.T, r *rand.Rand) randomRequest {
	t.Helper()
	request := &ratelimitv3.RateLimitRequest{
		Domain:     pick(r, "e2e", "e2e", "e2e", "e2e", "elsewhere", "", strings.Repeat("d", 1000)),
		HitsAddend: pick[uint32](r, 0, 0, 1, 7, 1<<31, 1<<32-1),
	}
	n := pick(r, 0, 1, 1, 1, 2, 3, 10)
	if r.IntN(50) == 0 {
		n = pick(r, 999, 1000, 1001, 20_000)
	}
	for range n {
		request.Descriptors = append(request.Descriptors, randomDescriptor(r, n))
	}
	message, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	random := randomRequest{
		message:     bytes.ReplaceAll(message, []byte(placeholder), []byte(notUTF8)),
		descriptors: n,
		badText:     bytes.Contains(message, []byte(placeholder)),
	}
	if len(message) > 0 && r.IntN(10) == 0 {
		random.garbled = true
		for range pick(r, 1, 2, 10) {
			random.message[r.IntN(len(message))] = byte(r.UintN(256))
		}
		random.message = random.message[:pick(r, len(message), len(message), r.IntN(len(message)))]
	}
	return random
}

// randomDescriptor makes one of n descriptors; very long values are for requests that have few.
func randomDescriptor(r *rand.Rand, n int) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{IsNegativeHits: r.IntN(8) == 0}
	for range pick(r, 0, 1, 1, 1, 2, 5) {
		value := pick(r, "", "alice", "alice", "*", "\x00", strings.Repeat("é", 100), fmt.Sprint(r.Uint64()))
		if n < 4 && r.IntN(20) == 0 {
			value = strings.Repeat("v", 1<<20)
		}
		if n < 4 && r.IntN(15) == 0 {
			value = "a" + placeholder
		}
		key := pick(r, "user", "user", "user", "user", "user", "shop", "nobody", "user_alice")
		if n < 20 && r.IntN(20) == 0 {
			key = ""
		}
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	if r.IntN(3) == 0 {
		d.HitsAddend = wrapperspb.UInt64(pick[uint64](r, 0, 1, 1<<32-1, 1<<32, 1<<63, 1<<64-1))
	}
	if r.IntN(6) == 0 && n < 20 {
		d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: pick[uint32](r, 0, 1, 1<<32-1),
			Unit:            typev3.RateLimitUnit(pick[int32](r, 0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 99, -1, 1<<31-1, -1<<31)),
		}
		if r.IntN(3) == 0 {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(pick[uint32](r, 0, 1, 2, 11, 1<<32-1))
		}
	}
	return d
}

// pick returns one of the choices.
func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

func TestAThousandRandomRequestsEachGetAnAnswerOrAClearError(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
default: {requests_per_unit: 100, unit: minute}
descriptors:
  - key: user
    rate_limits:
      - {requests_per_unit: 4294967295, unit: year}
      - {requests_per_unit: 100, unit: second, algorithm: token_bucket, burst: 4294967295, count_rejected: true}
    descriptors:
      - {key: user, value: "*", quota_mode: true, rate_limit: {requests_per_unit: 10, unit: hour, algorithm: sliding_window_log}}
  - key: shop
    shadow_mode: true
    detailed_metric: true
    rate_limit: {requests_per_unit: 10, period: 1ms, algorithm: sliding_window_counter}
`, "--dynamic-metadata", "--response-headers=ratelimit,ietf,retry-after")
	direct := dial(t, s.GRPC)

	const seed1, seed2 = 1, 2
	r := rand.New(rand.NewPCG(seed1, seed2))
	answers := map[codes.Code]int{}
	for i := range 1000 {
		request := newRandomRequest(t, r)
		var reply []byte
		err := direct.connection.Invoke(deadline(t), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName,
			&request.message, &reply, grpc.ForceCodec(rawCodec{}))
		answers[status.Code(err)]++
		if status.Code(err) == codes.DeadlineExceeded {
			t.Fatalf("request %d (of seed %d, %d): no answer within %s", i, seed1, seed2, within)
		}
		if problem := request.check(reply, err); problem != "" {
			t.Errorf("request %d (of seed %d, %d; %d bytes, %d descriptors): %s", i, seed1, seed2, len(request.message), request.descriptors, problem)
		}
	}
	if answers[codes.OK] < 100 || answers[codes.InvalidArgument] < 100 {
		t.Errorf("codes: got %v, want at least 100 answers and 100 refusals: else the requests show little", answers)
	}

	// Nothing is wedged: the next question is answered, and the sidecar says that it is well.
	if got := direct.ask(t, 0, "nobody", "unseen").GetCode(); got != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("a plain question after all that: got %s, want OK", got)
	}
	health, err := grpc_health_v1.NewHealthClient(direct.connection).Check(deadline(t), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health after all that: got %s, %v; want SERVING", health.GetStatus(), err)
	}
}

// check returns the mistake of the answer to the request, or "".
func (request randomRequest) check(reply []byte, err error) string {
	if err != nil {
		s := status.Convert(err)
		switch {
		case s.Message() == "":
			return fmt.Sprintf("got %s without a word", s.Code())
		case s.Code() == codes.InvalidArgument, s.Code() == codes.ResourceExhausted:
			return ""
		}
		return fmt.Sprintf("got %v, want an answer, InvalidArgument or ResourceExhausted", err)
	}
	var response ratelimitv3.RateLimitResponse
	if err := proto.Unmarshal(reply, &response); err != nil {
		return fmt.Sprintf("an answer that is none: %v", err)
	}
	if request.garbled {
		return ""
	}
	if request.badText {
		return "text that is not UTF-8 was taken for text"
	}
	code := response.GetOverallCode()
	if code != ratelimitv3.RateLimitResponse_OK && code != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		return fmt.Sprintf("overall code: got %s, want OK or OVER_LIMIT", code)
	}
	if got := len(response.GetStatuses()); got != request.descriptors {
		return fmt.Sprintf("statuses: got %d, want %d, one per descriptor", got, request.descriptors)
	}
	return ""
}

package hostile

import (
	"encoding/binary"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// method is the path of Envoy's rate limit service.
const method = ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName

// An entry is a key and its value.
type entry struct{ key, value string }

// request returns a request of hits with one descriptor for each entry.
func request(hits uint64, entries ...entry) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: "hostile", Descriptors: make([]*commonv3.RateLimitDescriptor, len(entries))}
	for i, e := range entries {
		r.Descriptors[i] = &commonv3.RateLimitDescriptor{
			Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: e.key, Value: e.value}},
			HitsAddend: wrapperspb.UInt64(hits),
		}
	}
	return r
}

// encode returns a request as gRPC sends it: not compressed, length, message.
func (a *assault) encode(r proto.Message) []byte {
	message, err := proto.Marshal(r)
	a.fail(err)
	return frame(message, false)
}

// frame puts the five bytes of gRPC before a message.
func frame(message []byte, compressed bool) []byte {
	head := []byte{0}
	if compressed {
		head[0] = 1
	}
	return append(binary.BigEndian.AppendUint32(head, uint32(len(message))), message...)
}

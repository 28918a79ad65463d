package server

import (
	"fmt"
	"time"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for everything but our own two types
	"google.golang.org/grpc/mem"

	"github.com/weirproxy/weir/pkg/limiter"
)

// call is one request on its way through the server. Calls are reused.
type call struct {
	request limiter.Request
	verdict limiter.Verdict
	invalid error     // why the bytes that came are not a request; nil when they are
	size    int       // of the bytes that came
	begun   time.Time // when they had come
	answer  []byte    // the encoded response
}

// Bounds of the calls that are kept for reuse: what they held stays with them until then. Empty descriptors and entries take
// up to fifty times as much memory as in a message, so both are bounded.
const (
	maxKept            = 8 << 10 // bytes of the message
	maxKeptDescriptors = 1024
)

// modest reports whether the call is small enough to be kept.
func (c *call) modest() bool {
	return c.size <= maxKept && cap(c.request.Descriptors) <= maxKeptDescriptors
}

// reset makes a used call as good as new.
func (c *call) reset() {
	c.request.Reset()
	c.invalid, c.answer = nil, c.answer[:0]
}

// decode reads the bytes of a request. They are not kept.
func (c *call) decode(data []byte) {
	c.reset()
	c.begun, c.size = time.Now(), len(data)
	c.invalid = decode(data, &c.request)
}

// reply is the bytes of a response, for gRPC, which may write them long after the call is over. It is one piece of memory
// where three would do: response, buffer and list of buffers.
type reply struct {
	list   [1]mem.Buffer
	buffer mem.SliceBuffer
	small  [72]byte // holds the response when it is no longer, as with one descriptor it never is but for a long name
}

func newReply(response []byte) *reply {
	r := new(reply)
	r.buffer = append(r.small[:0], response...)
	r.list[0] = &r.buffer
	return r
}

// codec is gRPC's codec for protobuf that knows our two types as well.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*reply); ok {
		return r.list[:], nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements [encoding.CodecV2]. It does not fail for a call: gRPC would make INTERNAL of it, but bytes that are
// no request are the sender's mistake.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		to.decode(data[0].ReadOnlyData())
		return nil
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	to.decode(whole.ReadOnlyData())
	return nil
}

// malformedError says that bytes are not a RateLimitRequest.
type malformedError struct{ reason error }

func (e *malformedError) Error() string { return fmt.Sprintf("not a RateLimitRequest: %v", e.reason) }
func (e *malformedError) Unwrap() error { return e.reason }

package server

import (
	"context"
	"fmt"
	"net"
	"time"
	"unsafe"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for all types but call and reply
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/wire/inflight"
	"github.com/weirproxy/weir/pkg/limiter"
)

// call is one request on its way through the server. Calls are reused.
type call struct {
	request limiter.Request
	verdict limiter.Verdict
	invalid error           // the mistake in a malformed message, else nil
	size    int             // of the message, in bytes
	begun   time.Time       // when the message was complete
	answer  []byte          // the encoded response
	client  client          // nil: see ctx
	ctx     context.Context //nolint:containedctx // of a call that came through gRPC's library, for its client; else nil
}

// client is the other end of the connection that a call came by.
type client interface{ RemoteAddr() net.Addr }

// Bounds of a call that is kept for reuse, with its memory. Both are bounded because empty
// descriptors and entries take up to fifty times as much memory as in a message.
const (
	maxKept            = 8 << 10 // bytes of the message
	maxKeptDescriptors = 1024
)

// modest reports whether the call is small enough to keep.
func (c *call) modest() bool {
	return c.size <= maxKept && cap(c.request.Descriptors) <= maxKeptDescriptors
}

// Memory of a decoded descriptor with its charge, state and status, and of a decoded entry, in
// bytes.
const (
	descriptorBytes = 1 << 10
	entryBytes      = 64
)

// weight returns the memory of a decoded call in bytes, beyond the bytes that its stream counts
// for; 0 for nearly all calls.
func (c *call) weight() int64 {
	if len(c.request.Descriptors) <= inflight.StreamBytes/descriptorBytes/2 && c.size <= 1<<10 {
		return 0
	}
	bytes := int64(len(c.request.Descriptors)) * descriptorBytes
	for i := range c.request.Descriptors {
		bytes += int64(len(c.request.Descriptors[i].Entries)) * entryBytes
	}
	return max(bytes-inflight.StreamBytes, 0)
}

// reset empties a call for reuse.
func (c *call) reset() {
	c.request.Reset()
	c.invalid, c.answer, c.client = nil, c.answer[:0], nil
	c.ctx = nil
}

// decode reads the bytes of a request that was complete at begun, and does not keep them.
func (c *call) decode(data []byte, begun time.Time) { c.read(data, string(data), begun) }

// decodeInPlace reads the bytes of a request, which must not change while the call is in use. The
// texts of the request are parts of these bytes. A text that stays for longer must be copied.
func (c *call) decodeInPlace(data []byte, begun time.Time) {
	c.read(data, unsafe.String(unsafe.SliceData(data), len(data)), begun)
}

func (c *call) read(data []byte, text string, begun time.Time) {
	c.reset()
	c.begun, c.size = begun, len(data)
	c.invalid = decode(data, text, &c.request)
}

// reply is the encoded response for gRPC, which may write it after the call has returned. One
// allocation holds the response, the buffer and the list of buffers.
type reply struct {
	list   [1]mem.Buffer
	buffer mem.SliceBuffer
	small  [72]byte // enough for one descriptor, unless its limit has a long name
}

func newReply(response []byte) *reply {
	r := new(reply)
	r.buffer = append(r.small[:0], response...)
	r.list[0] = &r.buffer
	return r
}

// codec is gRPC's codec for protobuf, for call and reply, and for messages that are encoded
// already.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// maxPooled is the largest message, in bytes, for which gRPC's pool has a buffer of a like size.
// The next size is 1 MiB.
const maxPooled = 32 << 10

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *reply:
		return v.list[:], nil
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	case proto.Message:
		if proto.Size(v) > maxPooled {
			data, err := proto.Marshal(v)
			return mem.BufferSlice{mem.SliceBuffer(data)}, err
		}
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements [encoding.CodecV2]. A malformed message is not an error here, because gRPC
// would answer INTERNAL for a mistake of the client.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		to.decode(data[0].ReadOnlyData(), time.Now())
		return nil
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	to.decode(whole.ReadOnlyData(), time.Now())
	return nil
}

// malformedError is a message that is not a RateLimitRequest.
type malformedError struct{ reason error }

func (e *malformedError) Error() string { return fmt.Sprintf("not a RateLimitRequest: %v", e.reason) }
func (e *malformedError) Unwrap() error { return e.reason }

package server

import (
	"time"

	"google.golang.org/grpc/mem"

	"github.com/weirproxy/weir/internal/wire"
)

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
type codec struct{ wire.Codec }

func newCodec() codec { return codec{wire.NewCodec()} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *reply:
		return v.list[:], nil
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	}
	return c.Codec.Marshal(v)
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

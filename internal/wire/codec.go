package wire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec is gRPC's codec for protobuf, with large messages in memory of their own.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec. The zero value is not ready.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// MaxPooled is the largest message, in bytes, for which gRPC's pool has a buffer of a like size.
// The next size is 1 MiB.
const MaxPooled = 32 << 10

// Marshal implements [encoding.CodecV2].
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*listed); ok {
		return a.buffer(), nil
	}
	if m, ok := v.(proto.Message); ok && proto.Size(m) > MaxPooled {
		data, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(data)}, err
	}
	return c.CodecV2.Marshal(v)
}

package server

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// gRPC's pool would take a buffer of a MiB for an answer of reflection. Clients that reset many of
// them made 100 MiB of buffers.
func TestALargeAnswerTakesNoBufferOfTheNextSize(t *testing.T) {
	for _, size := range []int{100, maxPooled - 100, maxPooled, 70_000, 2 << 20} {
		message := wrapperspb.Bytes(bytes.Repeat([]byte("x"), size))
		got, err := newCodec().Marshal(message)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d bytes: got %d buffers, %v", size, len(got), err)
		}
		slice, alone := got[0].(mem.SliceBuffer)
		if large := size >= maxPooled; large && (!alone || cap(slice) > size+size/4) {
			t.Errorf("%d bytes: got a buffer of the pool, or of %d bytes", size, cap(slice))
		}
		back := new(wrapperspb.BytesValue)
		if err := newCodec().Unmarshal(got, back); err != nil || !bytes.Equal(back.Value, message.Value) {
			t.Errorf("%d bytes: read back %d bytes, %v", size, len(back.Value), err)
		}
		got.Free()
	}
}

func TestOnlyModestCallsAreKept(t *testing.T) {
	for name, row := range map[string]struct {
		message []byte
		want    bool
	}{
		"usual":                  {benchMessage(), true},
		"long_value":             {bytesField(1, make([]byte, 100_000)), false},
		"many_empty_descriptors": {bytes.Repeat(bytesField(2), 2000), false},
		"many_empty_entries":     {bytesField(2, bytes.Repeat(bytesField(1), 32_000)), false},
	} {
		var c call
		c.decode(row.message, time.Now())
		if got := c.modest(); got != row.want {
			t.Errorf("%s: a call of %d bytes is kept: got %v; want %v", name, c.size, got, row.want)
		}
	}
}

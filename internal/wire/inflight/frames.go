package inflight

import "encoding/binary"

// Frame types and flags of RFC 9113, section 6.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	frameContinuation = 0x9

	flagEndStream  = 0x1 // of DATA and HEADERS
	flagAck        = 0x1 // of SETTINGS
	flagEndHeaders = 0x4
	flagPadded     = 0x8
)

const (
	frameHead   = 9  // bytes before a payload
	preface     = 24 // bytes that a client sends before its first frame
	messageHead = 5  // bytes before a message of gRPC: compressed or not, and the length
)

// frames follows the frames of one direction through chunks of any size. Not safe for concurrent
// use.
type frames struct {
	head [frameHead]byte // of the frame that next returned last
	have int             // bytes of the next head
	left int             // bytes of the payload that are still to come
}

// next skips the rest of the current payload, and reads the next head. rest is behind the head. The
// result is false when the chunk ends before the head does.
func (f *frames) next(chunk []byte) (rest []byte, ok bool) {
	if f.left > 0 {
		n := min(f.left, len(chunk))
		f.left -= n
		chunk = chunk[n:]
	}
	n := copy(f.head[f.have:], chunk)
	f.have += n
	chunk = chunk[n:]
	if f.have < frameHead {
		return chunk, false
	}
	f.have, f.left = 0, f.length()
	return chunk, true
}

func (f *frames) length() int     { return int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2]) }
func (f *frames) kind() byte      { return f.head[3] }
func (f *frames) has(b byte) bool { return f.head[4]&b != 0 }
func (f *frames) stream() uint32  { return binary.BigEndian.Uint32(f.head[5:]) & (1<<31 - 1) }

// partial reports whether a frame has begun and not ended.
func (f *frames) partial() bool { return f.have > 0 || f.left > 0 }

// message returns the length of a gRPC message with its head, in bytes. The result is 0 when the
// part of the payload that is there does not hold the head.
func (f *frames) message(payload []byte) int64 {
	if f.has(flagPadded) || f.length() < messageHead || len(payload) < messageHead {
		return 0
	}
	return messageHead + int64(binary.BigEndian.Uint32(payload[1:messageHead]))
}

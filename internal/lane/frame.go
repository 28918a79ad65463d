package lane

import "encoding/binary"

// Frame types of RFC 9113, section 6.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	framePriority     = 0x2
	frameReset        = 0x3
	frameSettings     = 0x4
	framePush         = 0x5
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindow       = 0x8
	frameContinuation = 0x9
)

// Flags of frames.
const (
	flagEndStream  = 0x1 // of DATA and HEADERS
	flagAck        = 0x1 // of SETTINGS and PING
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings of RFC 9113, section 6.5.2.
const (
	settingTableSize     = 0x1
	settingPush          = 0x2
	settingMaxStreams    = 0x3
	settingWindow        = 0x4
	settingMaxFrame      = 0x5
	settingMaxHeaderList = 0x6
)

const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // of a client
	frameHead     = 9                                  // bytes before a payload
	messageHead   = 5                                  // bytes before a message of gRPC: compressed or not, and the length
	maxFrame      = 16384                              // bytes of the largest payload that we receive, and may always send
	defaultWindow = 65535                              // bytes, before any SETTINGS
	maxWindow     = 1<<31 - 1
	maxStreamID   = 1<<31 - 1
)

type frame struct {
	length int
	kind   byte
	flags  byte
	stream uint32
}

func (f *frame) has(flag byte) bool { return f.flags&flag != 0 }

func parseFrame(b []byte) frame {
	_ = b[frameHead-1]
	return frame{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: b[3], flags: b[4],
		stream: binary.BigEndian.Uint32(b[5:]) & maxStreamID,
	}
}

func appendFrame(b []byte, length int, kind, flags byte, stream uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags,
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendReset(b []byte, stream uint32, code Code) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, frameReset, 0, stream), uint32(code))
}

func appendWindow(b []byte, stream uint32, increment int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, frameWindow, 0, stream), uint32(increment))
}

func appendPing(b []byte, flags byte, data []byte) []byte {
	return append(appendFrame(b, len(data), framePing, flags, 0), data...)
}

func appendSetting(b []byte, id uint16, value int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), uint32(value))
}

func appendGoAway(b []byte, last uint32, code Code, debug string) []byte {
	b = appendFrame(b, 8+len(debug), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, debug...)
}

// unpad returns the payload without padding. The length of the padding must be less than the
// payload.
func unpad(f frame, payload []byte) ([]byte, bool) {
	if !f.has(flagPadded) {
		return payload, true
	}
	if len(payload) == 0 || int(payload[0]) >= len(payload) {
		return nil, false
	}
	return payload[1 : len(payload)-int(payload[0])], true
}

// appendHeaderFrames appends a header block as HEADERS, and as CONTINUATION where it is larger than
// the peer's frames.
func appendHeaderFrames(b []byte, stream uint32, block []byte, end bool, most int) []byte {
	kind, flags := byte(frameHeaders), byte(0)
	if end {
		flags = flagEndStream
	}
	for len(block) > most {
		b = append(appendFrame(b, most, kind, flags, stream), block[:most]...)
		block, kind, flags = block[most:], frameContinuation, 0
	}
	return append(appendFrame(b, len(block), kind, flags|flagEndHeaders, stream), block...)
}

package main

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

const (
	frameHead = 9       // bytes
	creditAt  = 1 << 24 // bytes of requests after which the client may send as many more
	window    = 1<<31 - 1
	streams   = 1 << 20 // that a client may have open
)

// answer is the frames of an answer, but for the number of its stream.
type answer struct {
	frames []byte
	at     []int // of the numbers
}

// newAnswer returns the answer with that message. The header blocks are without a table, so they
// are the same each time.
func newAnswer(m proto.Message) (answer, error) {
	message, err := proto.Marshal(m)
	if err != nil {
		return answer{}, err
	}
	message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	headers := block([2]string{":status", "200"}, [2]string{"content-type", "application/grpc"})
	var a answer
	a.append(http2.FrameHeaders, http2.FlagHeadersEndHeaders, headers)
	a.append(http2.FrameData, 0, message)
	a.append(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, block([2]string{"grpc-status", "0"}))
	return a, nil
}

func block(fields ...[2]string) []byte {
	var b bytes.Buffer
	encoder := hpack.NewEncoder(&b)
	for _, f := range fields {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}) // a Buffer takes all
	}
	return b.Bytes()
}

func (a *answer) append(kind http2.FrameType, flags http2.Flags, payload []byte) {
	a.at = append(a.at, len(a.frames)+frameHead-4)
	a.frames = append(appendHead(a.frames, len(payload), kind, flags), payload...)
}

// to appends the answer to a stream.
func (a *answer) to(out []byte, stream uint32) []byte {
	n := len(out)
	out = append(out, a.frames...)
	for _, at := range a.at {
		binary.BigEndian.PutUint32(out[n+at:], stream)
	}
	return out
}

// appendHead appends the head of a frame of the whole connection.
func appendHead(out []byte, length int, kind http2.FrameType, flags http2.Flags) []byte {
	return append(out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags), 0, 0, 0, 0)
}

func appendWindow(out []byte, bytes uint32) []byte {
	return binary.BigEndian.AppendUint32(appendHead(out, 4, http2.FrameWindowUpdate, 0), bytes)
}

// machine is the state of a connection.
type machine struct {
	greeted bool // the preface has come
	taken   int  // bytes of requests since the last credit
}

// greeting returns the first frames to a client.
func greeting() []byte {
	settings := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, uint16(http2.SettingMaxConcurrentStreams)), streams)
	out := append(appendHead(nil, len(settings), http2.FrameSettings, 0), settings...)
	return appendWindow(out, window-65535)
}

var errNotHTTP2 = errors.New("the client does not speak HTTP/2")

// receive takes all whole frames of in, appends the answers to out, and returns the length of the
// frames.
func (m *machine) receive(in, out []byte, a *answer) (taken int, answered []byte, err error) {
	if !m.greeted {
		n := len(http2.ClientPreface)
		if len(in) < n {
			return 0, out, nil
		}
		if string(in[:n]) != http2.ClientPreface {
			return 0, out, errNotHTTP2
		}
		m.greeted, taken = true, n
	}
	for len(in)-taken >= frameHead {
		head := in[taken:]
		length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		if len(head) < frameHead+length {
			break
		}
		kind, flags, stream := http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:])
		switch {
		case kind == http2.FrameData || kind == http2.FrameHeaders:
			if kind == http2.FrameData {
				m.taken += length
			}
			if flags&http2.FlagDataEndStream != 0 {
				out = a.to(out, stream)
			}
		case flags&http2.FlagPingAck != 0:
		case kind == http2.FrameSettings:
			out = appendHead(out, 0, http2.FrameSettings, http2.FlagSettingsAck)
		case kind == http2.FramePing:
			out = append(appendHead(out, length, http2.FramePing, http2.FlagPingAck), head[frameHead:frameHead+length]...)
		}
		taken += frameHead + length
	}
	if m.taken >= creditAt {
		out = appendWindow(out, uint32(m.taken))
		m.taken = 0
	}
	return taken, out, nil
}

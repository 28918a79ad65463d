package lane

import (
	"encoding/binary"
	"fmt"
)

// Receive takes the next bytes from the gRPC server. After an error the caller closes that
// connection and calls Lost.
func (b *Back) Receive(chunk []byte, now int64) error {
	if b.conn.err != nil {
		return b.conn.err
	}
	b.conn.now = now
	b.partial = append(b.partial, chunk...)
	rest := b.partial
	for len(rest) >= frameHead {
		f := parseFrame(rest)
		if f.length > maxFrame {
			return fmt.Errorf("the gRPC server sent a frame of %d bytes", f.length)
		}
		if len(rest) < frameHead+f.length {
			break
		}
		if err := b.frame(f, rest[frameHead:frameHead+f.length]); err != nil {
			return err
		}
		rest = rest[frameHead+f.length:]
	}
	b.partial = append(b.partial[:0], rest...)
	return nil
}

func (b *Back) frame(f frame, payload []byte) error {
	switch f.kind {
	case frameHeaders, frameData:
		padded := f.length
		payload, ok := unpad(f, payload)
		if !ok {
			return fmt.Errorf("the gRPC server sent a frame of type %d with too much padding", f.kind)
		}
		if f.kind == frameData {
			b.data(f, payload, padded-len(payload))
			return nil
		}
		b.block, b.stream, b.end = append(b.block[:0], payload...), f.stream, f.has(flagEndStream)
		return b.headers(f)
	case frameContinuation:
		b.block = append(b.block, payload...)
		return b.headers(f)
	case frameReset:
		if s := b.streams[f.stream]; s != nil && len(payload) == 4 {
			b.drop(f.stream, s)
			b.conn.ForeignReset(f.stream, Code(binary.BigEndian.Uint32(payload)))
		}
	case frameSettings:
		b.settings(f, payload)
	case framePing:
		if !f.has(flagAck) {
			b.out = appendPing(b.out, flagAck, payload)
		}
	case frameGoAway:
		b.goAway(payload)
	case frameWindow:
		b.windowUpdate(f, payload)
	}
	return nil
}

func (b *Back) data(f frame, payload []byte, padding int) {
	if padding > 0 {
		b.Credit(f.stream, padding)
	}
	s := b.streams[f.stream]
	if s == nil || s.over {
		b.Credit(f.stream, len(payload))
		return
	}
	s.over = f.has(flagEndStream)
	b.closeBoth(f.stream, s)
	b.conn.ForeignData(f.stream, payload, f.has(flagEndStream))
}

// headers decodes a header block of the gRPC server, when it is complete.
func (b *Back) headers(f frame) error {
	if !f.has(flagEndHeaders) {
		return nil
	}
	fields, err := b.decoder.DecodeFull(b.block)
	if err != nil {
		return fmt.Errorf("the gRPC server sent a header block that is wrong: %w", err)
	}
	s := b.streams[b.stream]
	if s == nil || s.over {
		return nil
	}
	s.over = b.end
	b.closeBoth(b.stream, s)
	b.conn.ForeignHeaders(b.stream, fields, b.end)
	return nil
}

func (b *Back) settings(f frame, payload []byte) {
	if f.has(flagAck) {
		return
	}
	for ; len(payload) >= 6; payload = payload[6:] {
		value := binary.BigEndian.Uint32(payload[2:])
		switch binary.BigEndian.Uint16(payload) {
		case settingTableSize:
			b.encoder.SetMaxDynamicTableSizeLimit(value)
		case settingMaxFrame:
			b.maxFrame = int(min(value, maxFrame))
		case settingWindow:
			more := int64(value) - b.peerWindow
			b.peerWindow = int64(value)
			for _, s := range b.streams {
				s.sendWindow += more
			}
		}
	}
	b.out = appendFrame(b.out, 0, frameSettings, flagAck, 0)
	b.flushAll()
}

func (b *Back) flushAll() {
	for id, s := range b.streams {
		b.flush(id, s)
	}
}

func (b *Back) windowUpdate(f frame, payload []byte) {
	if len(payload) != 4 {
		return
	}
	increment := int64(binary.BigEndian.Uint32(payload) & maxWindow)
	if f.stream == 0 {
		b.sendWindow += increment
		b.flushAll()
	} else if s := b.streams[f.stream]; s != nil {
		s.sendWindow += increment
		b.flush(f.stream, s)
	}
}

// goAway takes a GOAWAY of the gRPC server, which drains: the client must connect again too.
func (b *Back) goAway(payload []byte) {
	if len(payload) < 8 {
		return
	}
	b.last = binary.BigEndian.Uint32(payload) & maxStreamID
	b.conn.Shutdown(string(payload[8:]), b.conn.now)
	for id, s := range b.streams {
		if id > b.last {
			b.drop(id, s)
			b.conn.ForeignReset(id, RefusedStream)
		}
	}
}

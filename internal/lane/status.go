package lane

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http2/hpack"
)

// sendStatus answers a call without a message. s is nil for a call that has no stream; an open
// stream ends.
func (c *Conn) sendStatus(id uint32, subtype string, http int, r *Reply, s *stream) {
	fields := []hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(http)},
		{Name: "content-type", Value: contentType(subtype)},
		{Name: "grpc-status", Value: strconv.FormatUint(uint64(r.Code), 10)},
		{Name: "grpc-message", Value: percentEncode(r.Message)},
		{Name: "grpc-status-details-bin", Value: base64.RawStdEncoding.EncodeToString(r.Details)},
	}
	if len(r.Details) == 0 {
		fields = fields[:4]
	}
	if block, ok := c.encode(id, fields); ok {
		c.out = c.appendBlock(c.out, id, block, true)
		c.replied++
	}
	if s != nil {
		c.closeStream(s)
	}
}

// encode returns the header block of the fields. A list above the client's bound resets the stream
// instead, as grpc-go does.
func (c *Conn) encode(id uint32, fields []hpack.HeaderField) (block []byte, ok bool) {
	size := uint32(0)
	for _, f := range fields {
		size += f.Size()
		if f.Name == ":status" && f.Value == "200" {
			block = append(block, okBlock[0])
			continue
		}
		block = appendField(block, f.Name, f.Value)
	}
	if size > c.peer.maxHeaderList {
		c.sendReset(id, InternalError)
		return nil, false
	}
	return block, true
}

// refuse answers a request that gets no further. With more to come from the client, RST_STREAM
// tells it to stop.
func (c *Conn) refuse(id uint32, subtype string, ended bool, r *refusal) {
	c.sendStatus(id, subtype, r.http, &Reply{Code: r.code, Message: r.message}, nil)
	if !ended {
		c.sendReset(id, NoError)
	}
}

// refuseStream is refuse for an open stream.
func (c *Conn) refuseStream(s *stream, r *refusal) {
	c.refuse(s.id, s.head.subtype, s.ended, r)
	c.closeStream(s)
}

// appendField appends a literal field that no table remembers, RFC 7541 section 6.2.2.
func appendField(b []byte, name, value string) []byte {
	return appendString(appendString(append(b, 0), name), value)
}

// appendString appends a string without Huffman's code.
func appendString(b []byte, text string) []byte {
	const most = 1<<7 - 1 // of the first byte
	n := len(text)
	if n < most {
		b = append(b, byte(n))
		return append(b, text...)
	}
	b = append(b, most)
	for n -= most; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(append(b, byte(n)), text...)
}

// percentEncode encodes a grpc-message: everything but printable ASCII, and the percent sign. Bytes
// that are not UTF-8 become U+FFFD.
func percentEncode(text string) string {
	plain := func(r rune) bool { return r >= ' ' && r <= '~' && r != '%' }
	if strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text { // U+FFFD for each wrong byte
		if plain(r) {
			b.WriteRune(r)
			continue
		}
		for _, octet := range utf8.AppendRune(nil, r) {
			fmt.Fprintf(&b, "%%%02X", octet)
		}
	}
	return b.String()
}

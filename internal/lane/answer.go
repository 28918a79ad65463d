package lane

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http2/hpack"
)

// Header blocks of responses. The blocks do not use the dynamic table, so that no SETTINGS of a
// client changes the blocks.
const (
	okBlock   = "\x88\x0f\x10\x10application/grpc" // :status 200, content-type
	doneBlock = "\x00\x0bgrpc-status\x010"
)

// responseHead is the length of DATA's head and the message's head: the part before the response
// message.
const responseHead = frameHead + messageHead

// maxQueued bounds the responses of a connection that wait for the client's window, in bytes.
const maxQueued = 1 << 20

// ask gives a call to the Handler, and sends the answer. s is nil for a call that has no stream.
func (c *Conn) ask(id uint32, h *head, message []byte, s *stream) error {
	o := &c.lane.options
	c.call = Call{Stream: id, Timeout: h.timeout, Arrived: c.now, Large: len(message) > o.MaxInPlace, Exact: h.exact, head: h}
	if s != nil && h.timeout > 0 {
		c.call.Timeout = h.timeout - time.Duration(c.now-s.opened) // above 0, see endOfData
	}
	start, update := len(c.out), c.peer.tableUpdate
	out := c.appendOK(c.out, id, h.subtype)
	data := len(out)
	out = append(out, make([]byte, responseHead)...)
	response, reply := c.handler.Answer(&c.call, message, out)
	c.call.head = nil
	c.guard.points = max(0, c.guard.points-guardAnswer)
	if s != nil {
		c.dropMessage(s)
	}
	if reply.Later || reply.Code != 0 { // these headers do not go out
		c.out, c.peer.tableUpdate = out[:start], update
	}
	switch {
	case reply.Later:
		if s == nil {
			s = c.begin(id, h, true)
		}
		s.later = true
		return nil
	case reply.Code != 0:
		c.sendStatus(id, h.subtype, 200, &reply, s)
		return nil
	}
	return c.respond(id, h, response, data, s)
}

// respond sends a response with a message. out is the output with the headers, with responseHead
// bytes from data on, and with the message. s is nil for a call that has no stream.
func (c *Conn) respond(id uint32, h *head, out []byte, data int, s *stream) error {
	size := int64(len(out) - data - frameHead)
	window := c.peer.window
	if s != nil {
		window = s.sendWindow
	}
	if size > min(c.flow.send, window, int64(c.peer.maxFrame)) {
		c.out = out[:data]
		if s == nil {
			s = c.begin(id, h, true)
		}
		return c.enqueue(s, out[data+responseHead:])
	}
	writeHeads(out[data:], id, int(size))
	c.flow.send -= size
	c.out = appendDone(out, id)
	c.spoke(s)
	return nil
}

// Finish answers a call for which the Handler said Later. response is the message, used when reply
// is OK. The answer of a stream that is gone is dropped. The caller must call Finish once for each
// such call, unless Close was called.
//
// An error ends the connection, as in Receive.
func (c *Conn) Finish(id uint32, response []byte, reply Reply, now int64) error {
	if c.err != nil {
		return c.err
	}
	s := c.opened.byID[id]
	if s == nil || !s.later {
		return nil
	}
	c.now = now
	s.later = false
	if s.gone {
		c.opened.gone--
		c.release(s)
		return nil
	}
	if reply.Code != 0 {
		c.sendStatus(id, s.head.subtype, 200, &reply, s)
		return nil
	}
	out := c.appendOK(c.out, id, s.head.subtype)
	data := len(out)
	out = append(append(out, make([]byte, responseHead)...), response...)
	if err := c.respond(id, &s.head, out, data, s); err != nil {
		return c.fail(err)
	}
	return nil
}

// enqueue sends a response message of a stream whose headers are out, as far as the client's
// windows allow. The rest waits.
func (c *Conn) enqueue(s *stream, message []byte) error {
	s.answered = true
	s.queue = binary.BigEndian.AppendUint32(append(slices.Grow(s.queue, messageHead+len(message)), 0), uint32(len(message)))
	s.queue = append(s.queue, message...)
	s.trailer, s.over = append(s.trailer, doneBlock...), true
	c.opened.queued += len(s.queue)
	c.flush(s)
	if c.opened.queued > maxQueued {
		return &ConnError{EnhanceYourCalm, CauseUnread, "too many responses wait for the client's window"}
	}
	return nil
}

// spoke ends a call that was answered with OK. s is nil for a call that has no stream.
func (c *Conn) spoke(s *stream) {
	c.replies.answered++
	c.replies.replied++
	c.alive.spoke = true
	if s != nil {
		c.closeStream(s)
	}
}

func (c *Conn) appendOK(b []byte, id uint32, subtype string) []byte {
	if subtype != "" || c.peer.tableUpdate {
		block := append(make([]byte, 0, 64), okBlock[0])
		return c.appendBlock(b, id, appendField(block, "content-type", contentType(subtype)), false)
	}
	b = appendFrame(b, len(okBlock), frameHeaders, flagEndHeaders, id)
	return append(b, okBlock...)
}

// appendDone appends the HEADERS behind a response message. appendOK must have come before in the
// same output.
func appendDone(b []byte, id uint32) []byte {
	b = appendFrame(b, len(doneBlock), frameHeaders, flagEndHeaders|flagEndStream, id)
	return append(b, doneBlock...)
}

// writeHeads writes the head of a DATA frame and the head of the message in it. size is the payload
// of the frame.
func writeHeads(to []byte, id uint32, size int) {
	appendFrame(to[:0], size, frameData, 0, id)
	to[frameHead] = 0
	binary.BigEndian.PutUint32(to[frameHead+1:], uint32(size-messageHead))
}

// appendBlock appends a header block as frames, with the table size update that the client waits
// for.
func (c *Conn) appendBlock(b []byte, id uint32, block []byte, end bool) []byte {
	c.alive.spoke = true
	if c.peer.tableUpdate {
		c.peer.tableUpdate = false
		block = append([]byte{0x20}, block...) // size 0
	}
	return appendHeaderFrames(b, id, block, end, c.peer.maxFrame)
}

func contentType(subtype string) string {
	if subtype == "" {
		return baseContentType
	}
	return baseContentType + "+" + subtype
}

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
		c.replies.replied++
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

func (c *Conn) refuseStream(s *stream, r *refusal) {
	c.refuse(s.id, s.head.subtype, s.ended, r)
	c.closeStream(s)
}

// appendField appends a literal field that no table remembers, RFC 7541 section 6.2.2.
func appendField(b []byte, name, value string) []byte {
	return appendString(appendString(append(b, 0), name), value)
}

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

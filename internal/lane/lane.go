// Package lane is the server's side of HTTP/2 for one unary gRPC method, without input and output:
// bytes in, bytes out. The lane is Weir's own fast server for ShouldRateLimit; grpc-go serves all
// other methods.
//
// A [Lane] holds the options and the tables of HPACK for all connections. A [Conn] is one
// connection: a state machine that owns no goroutine, lock, clock or socket. The caller reads from
// the socket, calls [Conn.Receive] with the bytes, and writes the bytes of [Conn.Output]:
//
//	c := l.Open(now, handler, foreign, age)
//	for {
//		write(c.Output())                    // the first one holds the server's preface
//		rest := buffer[:read(buffer)]
//		for err == nil && len(rest) > 0 {
//			rest, err = c.Receive(rest, now)
//			write(c.Output())                // behind an error a GOAWAY
//		}
//	}
//	c.Close()
//
// A request whose HEADERS and DATA lie side by side is decided and answered in place: no stream, no
// copy, no allocation. A request that is cut, large, or decided later becomes a stream. Streams of
// other methods go to a [Foreign], which speaks to a gRPC server; [Back] is one, again without
// input and output.
//
// Instants are nanoseconds since any fixed moment, above 0. Only their differences mean something,
// and they never go back.
//
// The package follows RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC's PROTOCOL-HTTP2.md. Where these
// leave a choice, the package does as grpc-go 1.85, which serves all other methods. The numbers of
// HPACK come from golang.org/x/net/http2/hpack.
package lane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Options is the options of New. Path and MaxMessage must be set.
type Options struct {
	Path       string // of the method: "/package.Service/Method"
	MaxMessage int    // bytes of the largest request message. A larger one gets RESOURCE_EXHAUSTED

	// MaxInPlace is the largest message that the Handler may answer at once, in bytes. The Handler
	// answers a larger one later, so that it delays no other request of the connection. 0 means 4 KiB,
	// twenty times a usual request of Envoy.
	MaxInPlace int

	MaxStreams int           // open streams of one connection, as announced; 0 means 1024. More get REFUSED_STREAM
	Metadata   bool          // calls have the metadata of the request. Costs allocations
	AgeGrace   time.Duration // from the GOAWAY at the age of a connection to its end; 0: no bound
}

// Bounds of a connection that no option changes.
const (
	MaxHeaderList    = 16 << 10         // bytes of the headers of a request, decoded, as RFC 9113 counts them. Envoy sends a few hundred
	StreamWindow     = 64 << 10         // bytes that a client may send ahead on one stream
	ConnWindow       = 1 << 20          // the same of all streams of a connection
	MessageTimeout   = 10 * time.Second // from the headers of a stream to the end of its first message, and for a frame
	ResponseTimeout  = 10 * time.Second // that a response waits for the client's window
	KeepaliveTime    = time.Minute      // without a byte from the client, then it gets a PING
	KeepaliveTimeout = 20 * time.Second // without a byte after that PING, then the connection ends

	// PingInterval is the shortest time between PINGs of a client without a response in between. Envoy
	// pings idle connections as often as its settings say. By default gRPC closes a connection with a
	// second ping in two hours.
	PingInterval = time.Second
)

// Handler answers the calls of the method on one connection. The machine of a connection calls it
// from Receive, Tick and Close alone, so under the same lock or goroutine as these. A Handler must
// not call methods of the Conn from within its own methods.
type Handler interface {
	// Answer appends the response message to dst and returns it with the status, or returns a Reply
	// that is Later. call and message are valid until Answer returns; when call.Large is set the
	// message belongs to the Handler, which must say Later.
	//
	// After Later the machine keeps the stream until the caller feeds the answer to [Conn.Finish]. The
	// caller must do so once for each such call, also after Cancel. Bytes that Answer appended to dst
	// are dropped. The Handler watches the timeout of the call: the machine does not end a stream
	// whose message is complete.
	Answer(call *Call, message, dst []byte) (response []byte, reply Reply)

	// Cancel says that nobody waits for the answer of a call that is under way. The client has reset
	// the stream, or the connection has ended.
	Cancel(stream uint32)
}

// Reply is the status of an answer. The zero value is OK.
type Reply struct {
	Later   bool   // the answer will come by Conn.Finish
	Code    uint32 // the status of gRPC, such as codes.InvalidArgument. With a code but 0 there is no response message
	Message string // any text
	Details []byte // an encoded google.rpc.Status with details; empty: none
}

// Foreign takes the streams of other methods. The answers come by the methods of Conn that begin
// with Foreign. The machine calls a Foreign from Receive, Tick and Close, and from these methods.
type Foreign interface {
	// Begin begins a stream. The header fields are checked and complete; they belong to the callee.
	// end says that there is no DATA.
	Begin(stream uint32, fields []hpack.HeaderField, end bool)
	// Data is DATA of a stream, without padding, valid until Data returns; empty only with end. The
	// client's window for the bytes opens by [Conn.ForeignCredit], also for bytes that are dropped.
	Data(stream uint32, data []byte, end bool)
	// Reset ends a stream that the client has reset, or the machine. Nothing may follow, in either
	// direction.
	Reset(stream uint32, code Code)
	// Credit says that so many bytes of [Conn.ForeignData] have gone out, or were dropped.
	Credit(stream uint32, bytes int)
	// Arrived says that the first so many bytes of a stream have arrived at the client, see
	// [Conn.ForeignMark]. mark is of ForeignMark.
	Arrived(mark uint64, bytes int64)
}

// Code is an error code of HTTP/2, RFC 9113 section 7.
type Code uint32

// The error codes that the machine uses.
const (
	NoError          Code = 0x0
	ProtocolError    Code = 0x1
	InternalError    Code = 0x2
	FlowControlError Code = 0x3
	StreamClosed     Code = 0x5
	FrameSizeError   Code = 0x6
	RefusedStream    Code = 0x7
	Cancel           Code = 0x8
	CompressionError Code = 0x9
	EnhanceYourCalm  Code = 0xb
)

// Cause is a kind of ends of connections, for metrics.
type Cause int

// The causes.
const (
	CauseProtocol Cause = iota // the client breaks RFC 9113 or RFC 7541
	CauseFlood                 // the client sends frames that look like an attack
	CauseResets                // the client resets too many requests: an attack, or its deadlines are too short
	CauseSlow                  // a frame or a message takes too long
	CauseUnread                // too many responses wait for the client's window
	CauseSilent                // the client does not answer a PING
	CauseAge                   // the connection is too old
)

// ConnError is the end of a connection. The output of the Conn ends with a GOAWAY of that code, if
// the client speaks HTTP/2.
type ConnError struct {
	Code   Code
	Cause  Cause
	Reason string // for a log, and the debug data of the GOAWAY
}

func (e *ConnError) Error() string {
	return fmt.Sprintf("HTTP/2 connection ends with code 0x%x: %s", uint32(e.Code), e.Reason)
}

// ErrNotHTTP2 is a connection that does not begin with the preface of HTTP/2.
var ErrNotHTTP2 = errors.New("the client does not speak HTTP/2")

// ExactHeader is the header by which a client asks for durations that are not rounded to seconds.
const ExactHeader = "x-weir-exact"

// Call is one call of the method. A Call is valid until [Handler.Answer] returns.
type Call struct {
	Stream  uint32        // unique on the connection
	Timeout time.Duration // left at Arrived, as the client has set it; 0: no timeout
	Arrived int64         // instant of the Receive that got the end of the message
	Large   bool          // the message is above Options.MaxInPlace, and belongs to the handler
	Exact   bool          // the client has sent ExactHeader with the value 1

	head *head
}

// Get returns the first value of that key in the metadata, "" without one. Upper case in key does
// not matter, and values of keys that end in "-bin" are decoded. Without Options.Metadata there are
// no values. Get, Set and Keys are the methods of a propagation.TextMapCarrier.
func (c *Call) Get(key string) string {
	for _, f := range c.head.metadata {
		if strings.EqualFold(f.Name, key) {
			return f.Value
		}
	}
	return ""
}

// Set does nothing: the metadata of a call does not change.
func (c *Call) Set(string, string) {}

// Keys returns the keys of the metadata, each one once.
func (c *Call) Keys() []string {
	var keys []string
	for _, f := range c.head.metadata {
		if !slices.Contains(keys, f.Name) {
			keys = append(keys, f.Name)
		}
	}
	return keys
}

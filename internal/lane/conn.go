package lane

import (
	"time"

	"golang.org/x/net/http2/hpack"
)

// Lane is what all connections of one method share. Safe for concurrent use.
type Lane struct {
	options Options
}

// New returns a lane. A missing option, or one out of bounds, is an error.
func New(o Options) (*Lane, error) { return nil, nil }

// Open returns the machine of a new connection, which holds the server's preface in its output.
//
// foreign takes the streams of other methods; nil: they get UNIMPLEMENTED. age is the age at which the client must connect again, as
// the caller drew it; 0: no bound.
func (l *Lane) Open(now int64, foreign Foreign, age time.Duration) *Conn { return nil }

// Conn is the server's end of one connection. The zero value is not usable. Not safe for concurrent use: every method is called
// under one lock, or by one goroutine.
//
// Each method may append to the output, so the caller writes [Conn.Output] after it. The methods keep no argument, and call the
// Handler and the Foreign of the connection.
type Conn struct {
	lane *Lane
}

// Receive takes the next bytes from the client, which may be cut anywhere. Bytes of an incomplete frame are copied.
//
// An error ends the connection: the caller writes the output, closes the socket, and calls Close. It is a *ConnError, ErrNotHTTP2,
// or ErrForeignFirst.
func (c *Conn) Receive(chunk []byte, now int64) error { return nil }

// Output returns the bytes to send so far, and forgets them. The Conn appends the next ones to spare[:0], so that two buffers may
// take turns; a nil spare is allowed. Without bytes Output returns nil and does not take spare.
func (c *Conn) Output(spare []byte) []byte { return nil }

// Finish answers a call for which the Handler said Later. response is the message, used when reply is OK. The answer of a stream
// that is gone is dropped. Finish must be called once for each such call, unless Close was.
func (c *Conn) Finish(stream uint32, response []byte, reply Reply, now int64) {}

// Tick does what is due by now: keepalive, the age of the connection, requests and responses that take too long. An error is as in
// Receive. It costs nanoseconds when nothing is due.
func (c *Conn) Tick(now int64) error { return nil }

// Deadline returns the instant of the next useful Tick. The instant may move back after each method; a Tick every second is
// enough.
func (c *Conn) Deadline() int64 { return 0 }

// Shutdown begins the end of the connection: a GOAWAY and a PING, then a GOAWAY with the last stream, so that no request is lost.
// The reason is the debug data. A second Shutdown does nothing.
func (c *Conn) Shutdown(reason string, now int64) {}

// Finished reports whether Shutdown is complete: no stream is open, and none will be. The caller writes the output and closes the
// socket.
func (c *Conn) Finished() bool { return false }

// Close forgets the streams, and tells the Handler and the Foreign so. The other methods do nothing afterwards.
func (c *Conn) Close() {}

// Open returns the streams that are open now, as the client counts them.
func (c *Conn) Open() int { return 0 }

// Held returns the bytes of memory that the client makes the connection hold beyond an idle one, by an upper estimate: parts of
// frames, messages, headers, responses that wait, streams, and the output.
func (c *Conn) Held() int { return 0 }

// Answered returns the calls that were answered with OK, in all.
func (c *Conn) Answered() uint64 { return 0 }

// ForeignHeaders sends header fields of a foreign stream: the headers, or with end the trailers. It keeps no field.
func (c *Conn) ForeignHeaders(stream uint32, fields []hpack.HeaderField, end bool) {}

// ForeignData sends DATA of a foreign stream. What does not fit the client's windows waits as a copy; Foreign.Credit says when bytes
// have gone out. The caller bounds the bytes that wait with that.
func (c *Conn) ForeignData(stream uint32, data []byte, end bool) {}

// ForeignReset ends a foreign stream.
func (c *Conn) ForeignReset(stream uint32, code Code) {}

// ForeignCredit says that so many bytes from Foreign.Data have been consumed: the client may send as many more.
func (c *Conn) ForeignCredit(stream uint32, bytes int) {}

// Package inflight bounds the memory that clients of HTTP/2 connections can make a gRPC server
// hold.
//
// A gRPC server keeps a stream from its headers until its answer is written, and has no bound over
// all connections. A [Bound] follows the frames of each connection in both directions, and counts
// the bytes of every stream as long as the server keeps it. The bytes are an upper estimate: memory
// in place of bytes on the wire. Above three quarters of the bound the server should refuse
// requests of connections with more than their share ([Bound.Admits]). While that lasts,
// connections with old streams end. At the bound the connection that has held most for longest
// ends.
//
// The package decodes no headers and no messages, and changes no frame.
package inflight

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
)

// Memory of the parts of a request, as measured with Go 1.26 and grpc-go 1.85 (decision 28).
const (
	// StreamBytes is a stream with its context, goroutine and map of headers.
	StreamBytes = 12 << 10
	// headerFactor is the memory of a header, by its bytes on the wire.
	headerFactor = 32
	// messageFactor is the memory of a message, by its bytes: receive buffers of up to 4 times the
	// size, text, and answer.
	messageFactor = 8
	// blockedBytes is the memory of a stream whose answer waits for a client that does not read:
	// headers in the text of an error.
	blockedBytes = 64 << 10
	// replyBytes is the memory of the answer to a frame such as PING, while the client does not read.
	replyBytes = 256
	// keptBytes is the memory that two maps of grpc-go keep for a stream, as long as the connection is
	// open. The maps grow with the most streams at once, and never shrink. The first freeStreams are
	// in the 19 KB of a connection.
	keptBytes   = 112
	freeStreams = 64
)

// Bounds of a connection. An honest client is far below them.
const (
	maxSettings      = 1 << 10                // bytes of one SETTINGS frame
	maxContinuations = 16                     // CONTINUATION frames of one list of headers
	blockedAfter     = 20 * time.Millisecond  // a write that takes longer may wait for the client, or for a processor
	fullAge          = 10 * time.Second       // the age from which on a stream is old, and weighs most
	takenPart        = 4                      // Takes together have this part of the bound: a quarter
	keptPart         = 2                      // most streams may leave this part of the bound behind, beside the bound: a half
	lookEvery        = time.Second            // time between two looks at all connections
	youngAge         = 20 * time.Millisecond  // the smallest age that weighs: Envoy waits as long for an answer
	firstAnswers     = 100 * time.Millisecond // for a thousand requests of a new connection
	answerUnit       = 1 << 8                 // one answer in a history
	answerFade       = 8                      // each look takes this part of a history: an eighth
)

// Reason is why a connection was ended from its server's side.
type Reason int

// The reasons.
const (
	heldMost Reason = iota
	SlowMessage
	tooManyStreams
	BadFrames     // of an attack
	ProtocolError // a mistake of HTTP/2
	UnreadAnswers // too many answers wait for the client's window
	Silent        // the client does not answer a PING
	reasons
)

// reasonNames are the reasons in the metrics and the log.
func reasonNames() [reasons]string {
	return [reasons]string{"held_most", "slow_message", "too_many_streams", "bad_frames", "protocol_error", "unread_answers", "silent"}
}

// Options is the options of New. All must be set.
type Options struct {
	MaxBytes       int64         // that all connections may hold together
	MaxStreams     int           // that one connection may have open; the server should announce a smaller number
	MessageTimeout time.Duration // longest time from the headers of a stream to the end of its first message
	Logger         *slog.Logger
}

// Bound bounds the bytes in flight of all connections together. All methods are safe for concurrent
// use.
type Bound struct {
	options Options
	begun   time.Time     // the zero of all instants
	held    atomic.Int64  // bytes of all connections, and of Take
	large   *Budget       // a part of the bound for Take
	leaving atomic.Int64  // bytes of connections that have ended; not in held
	kept    atomic.Int64  // bytes that the most streams of open connections leave behind; not in held
	answers atomic.Int64  // large answers of open connections
	busy    atomic.Int64  // connections that hold bytes
	streams atomic.Int64  // open streams of all connections
	refused atomic.Uint64 // requests, and Takes
	ended   [reasons]atomic.Uint64
	logged  loglimit.Limiter

	mu      sync.Mutex // guards the rest. Lock order: mu of a Bound, then mu of a Conn
	open    map[*Conn]struct{}
	shaking map[net.Conn]struct{} // connections whose handshake runs
	looking bool                  // a timer runs look
	crowded bool                  // at the last look
	closed  bool                  // by Close
	drains  bool                  // since Drain
}

// Stats is the state of a Bound at one moment.
type Stats struct {
	Bytes    int64             // in flight
	MaxBytes int64             // bound of Bytes
	Streams  int64             // open now
	Refused  uint64            // requests that found no room
	Ended    map[string]uint64 // connections, by the reason of their end
}

// New returns a Bound without connections.
func New(o Options) *Bound {
	return &Bound{options: o, begun: time.Now(), open: make(map[*Conn]struct{}), shaking: make(map[net.Conn]struct{}), large: NewBudget(o.MaxBytes / takenPart)}
}

// add adds a connection, and looks at all connections from now on.
func (b *Bound) add(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = c.Conn.Close()
		return
	}
	b.open[c] = struct{}{}
	if b.drains {
		c.greetUntil(time.Now().Add(greetTime))
	}
	if !b.looking {
		b.looking = true
		time.AfterFunc(lookEvery, b.look)
	}
}

// remove removes a connection that ends, and gives its bytes back.
func (b *Bound) remove(c *Conn) {
	b.mu.Lock()
	delete(b.open, c)
	b.mu.Unlock()
	c.release()
}

// Stats returns the counts of all connections together.
func (b *Bound) Stats() Stats {
	s := Stats{
		Bytes: b.held.Load(), MaxBytes: b.options.MaxBytes, Streams: b.streams.Load(), Refused: b.refused.Load(),
		Ended: make(map[string]uint64, reasons),
	}
	for reason, name := range reasonNames() {
		s.Ended[name] = b.ended[reason].Load()
	}
	return s
}

// heldMuch reports whether open connections, and Takes, hold more than three quarters of the bound.
func (b *Bound) heldMuch() bool { return b.held.Load() > b.options.MaxBytes/4*3 }

// Crowded reports whether more than three quarters of the bound are in use. Then the server should
// ask Admits. A call takes a nanosecond.
func (b *Bound) Crowded() bool {
	return b.held.Load()+b.leaving.Load() > b.options.MaxBytes/4*3
}

// Admits reports whether a request of the connection, which is counted already, may be decided. The
// connection must have at most its share of three quarters of the bound. Otherwise its client must
// have taken as many answers in the last seconds as it has open requests. For a nil c the result is
// true.
func (b *Bound) Admits(c *Conn) bool {
	if c == nil || c.held.Load() <= b.share() || c.open.Load()*answerUnit <= c.answered.Load() {
		return true
	}
	b.refused.Add(1)
	b.log("requests are refused: too many bytes are in flight", c.RemoteAddr())
	return false
}

// Take counts bytes that no connection accounts for, such as a large decoded request. All Takes
// together may fill a quarter of the bound. Take waits for room as [Budget.Take] does. Without room
// Take reports false, and counts nothing. The caller must Give back the bytes that Take returns: no
// more than a quarter of the bound.
func (b *Bound) Take(ctx context.Context, bytes int64) (taken int64, ok bool) {
	if taken, ok = b.large.Take(ctx, bytes); !ok {
		b.refused.Add(1)
		b.log("requests are refused: too many bytes are in flight", nil)
		return 0, false
	}
	b.held.Add(taken)
	return taken, true
}

// Give gives back bytes of a Take.
func (b *Bound) Give(bytes int64) {
	b.held.Add(-bytes)
	b.large.Give(bytes)
}

// share returns the bytes that each connection may hold while the bound is nearly reached.
func (b *Bound) share() int64 { return b.options.MaxBytes / 4 * 3 / max(b.busy.Load(), 1) }

// relieve ends connections until the bound holds: first the connection with the largest weight. An
// honest client holds bytes for milliseconds, and takes its answers.
func (b *Bound) relieve() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.held.Load() > b.options.MaxBytes && b.endWorstLocked((*Conn).weight) {
	}
	for b.kept.Load() > b.mayKeep() && b.endWorstLocked((*Conn).keptWeight) {
	}
}

// mayKeep returns the bound of kept.
func (b *Bound) mayKeep() int64 { return b.options.MaxBytes / keptPart }

// endWorstLocked ends the connection with the largest weight. The result is false when all weights
// are 0.
func (b *Bound) endWorstLocked(weigh func(c *Conn, now int64) float64) bool {
	now := b.now()
	var worst *Conn
	var most float64
	for c := range b.open {
		if weight := weigh(c, now); weight > most {
			worst, most = c, weight
		}
	}
	if worst != nil {
		b.endLocked(worst, heldMost)
	}
	return worst != nil
}

// look ends connections with an incomplete message that is too old. While the bound stays crowded,
// look also ends connections with old streams and more than their share. While there is no room for
// a large answer, look ends connections with old ones. look calls itself again while there are
// connections.
func (b *Bound) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	cutoff := b.now() - int64(b.options.MessageTimeout)
	for c := range b.open {
		if c.look(cutoff) {
			b.endLocked(c, SlowMessage)
		}
	}
	for b.crowded && b.heldMuch() && b.endWorstLocked((*Conn).oldWeight) {
	}
	for b.answers.Load() >= b.mayAnswer() && b.endWorstLocked((*Conn).answersWeight) {
	}
	b.crowded = b.heldMuch()
	if b.looking = len(b.open) > 0; b.looking {
		time.AfterFunc(lookEvery, b.look)
	}
}

// end ends a connection from outside of its server.
func (b *Bound) end(c *Conn, reason Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked(c, reason)
}

// countEnd counts and logs the end of a connection that held so many bytes.
func (b *Bound) countEnd(c *Conn, reason Reason, held int64) {
	b.ended[reason].Add(1)
	b.log("a connection was ended", c.RemoteAddr(), slog.String("reason", reasonNames()[reason]), slog.Int64("bytes_of_connection", held))
}

func (b *Bound) endLocked(c *Conn, reason Reason) {
	delete(b.open, c)
	held := c.held.Load()
	if !c.release() {
		return // closed already
	}
	b.countEnd(c, reason, held)
	abrupt := unhanded(c.Conn)
	if secure, ok := abrupt.(*tls.Conn); ok { // the Close of tls.Conn waits for a blocked Write
		abrupt = secure.NetConn()
	}
	_ = abrupt.Close() // the server's own Close follows
}

// now returns the nanoseconds since begun, plus 1: never 0.
func (b *Bound) now() int64 { return int64(time.Since(b.begun)) + 1 }

// log writes at most one line per second. The metrics have the counts.
func (b *Bound) log(text string, client net.Addr, more ...slog.Attr) {
	if _, due := b.logged.Due(time.Second); !due {
		return
	}
	attrs := []slog.Attr{slog.Int64("bytes_in_flight", b.held.Load()), slog.Int64("max_bytes_in_flight", b.options.MaxBytes)}
	if client != nil {
		attrs = append(attrs, slog.String("client", client.String()))
	}
	//nolint:sloglint // the callers give constants
	b.options.Logger.LogAttrs(context.Background(), slog.LevelWarn, text, append(attrs, more...)...)
}

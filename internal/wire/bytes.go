package wire

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
)

// Bounds of the accounts of connections. An honest client is far below them.
const (
	oldAge     = 10 * time.Second      // from this age on bytes are old, and weigh most
	youngAge   = 20 * time.Millisecond // the smallest age that weighs: Envoy waits as long for an answer
	takenPart  = 4                     // Takes together have this part of the bound: a quarter
	lookEvery  = time.Second           // time between two looks at all connections
	answerUnit = 1 << 8                // one answer in a history
	answerFade = 8                     // each look takes this part of a history: an eighth
)

// TextCrowded is the reason of RESOURCE_EXHAUSTED while clients make the server buffer too much.
const TextCrowded = "too many bytes are in flight: see max-bytes-in-flight"

// Reason is why a server ended a connection.
type Reason int

// The reasons.
const (
	heldMost Reason = iota
	SlowMessage
	BadFrames     // of an attack
	ProtocolError // a mistake of HTTP/2
	Resets        // too many requests of the client: an attack, or its deadlines are too short
	UnreadAnswers // too many answers wait for the client's window
	Silent        // the client does not answer a PING
	reasons
)

func reasonNames() [reasons]string {
	return [reasons]string{"held_most", "slow_message", "bad_frames", "protocol_error", "resets", "unread_answers", "silent"}
}

// Bytes bounds the memory that clients can make the server take, over all its connections. The
// server of a connection reports the bytes that the connection buffers, with [Account.Set].
//
// Above three quarters of the bound the server should refuse requests of connections with more than
// their share ([Bytes.Admits]). While that lasts, connections with old bytes end. At the bound the
// connection with the most and oldest bytes ends. All methods are safe for concurrent use.
type Bytes struct {
	most    int64
	logger  *slog.Logger
	begun   time.Time     // the zero of all instants
	held    atomic.Int64  // bytes of all accounts, and of Take
	large   *Budget       // a part of the bound for Take
	leaving atomic.Int64  // bytes of connections that have ended; not in held
	busy    atomic.Int64  // accounts with bytes
	streams atomic.Int64  // open streams of all connections
	refused atomic.Uint64 // requests, and Takes
	ended   [reasons]atomic.Uint64
	logged  loglimit.Limiter

	mu      sync.Mutex // guards the rest. Lock order: mu of Bytes, then mu of an Account
	open    map[*Account]struct{}
	looking bool // a timer runs look
	crowded bool // at the last look
}

// BytesStats is the state of Bytes at one moment.
type BytesStats struct {
	Bytes    int64             // that all connections buffer
	MaxBytes int64             // bound of Bytes
	Streams  int64             // open now
	Refused  uint64            // requests that found no room
	Ended    map[string]uint64 // connections, by the reason of their end
}

// NewBytes returns a bound of so many bytes, without accounts.
func NewBytes(most int64, logger *slog.Logger) *Bytes {
	return &Bytes{most: most, logger: logger, begun: time.Now(), open: make(map[*Account]struct{}), large: NewBudget(most / takenPart)}
}

// Stats returns the counts of all connections together.
func (b *Bytes) Stats() BytesStats {
	s := BytesStats{
		Bytes: b.held.Load(), MaxBytes: b.most, Streams: b.streams.Load(), Refused: b.refused.Load(),
		Ended: make(map[string]uint64, reasons),
	}
	for reason, name := range reasonNames() {
		s.Ended[name] = b.ended[reason].Load()
	}
	return s
}

// Crowded reports whether more than three quarters of the bound are in use. Then the server should
// ask Admits. A call takes a nanosecond.
func (b *Bytes) Crowded() bool { return b.held.Load()+b.leaving.Load() > b.roomy() }

// roomy returns the bytes up to which there is room for all: three quarters of the bound.
func (b *Bytes) roomy() int64 { return b.most / 4 * 3 }

// Admits reports whether a request of the connection, which is counted already, may be decided. The
// connection must have at most its share of three quarters of the bound. Otherwise its client must
// have taken as many answers in the last seconds as it has open requests.
func (b *Bytes) Admits(a *Account) bool {
	if a.held.Load() <= b.share() || a.streams.Load()*answerUnit <= a.answered.Load() {
		return true
	}
	bytes := b.held.Load() + b.leaving.Load()
	if bytes <= b.roomy() {
		return true // since the caller has asked Crowded
	}
	b.refused.Add(1)
	if b.logDue() {
		b.log("requests are refused: too many bytes are in flight", a.conn.RemoteAddr(), inFlight(bytes), exceeds(b.roomy()))
	}
	return false
}

// Take counts bytes that no connection accounts for, such as a large decoded request. All Takes
// together may fill a quarter of the bound. Take waits for room as [Budget.Take] does. Without room
// Take reports false, and counts nothing. The caller must Give back the bytes that Take returns: no
// more than a quarter of the bound.
func (b *Bytes) Take(ctx context.Context, bytes int64) (taken int64, ok bool) {
	if taken, ok = b.large.Take(ctx, bytes); !ok {
		b.refused.Add(1)
		if b.logDue() {
			b.log("large requests are refused: others have all the bytes that such requests may take", nil,
				slog.Int64("bytes_of_request", bytes), exceeds(b.most/takenPart))
		}
		return 0, false
	}
	b.held.Add(taken)
	return taken, true
}

// Give gives back bytes of a Take.
func (b *Bytes) Give(bytes int64) {
	b.held.Add(-bytes)
	b.large.Give(bytes)
}

// share returns the bytes that each connection may have while the bound is nearly reached.
func (b *Bytes) share() int64 { return b.roomy() / max(b.busy.Load(), 1) }

// relieve ends connections until the bound holds: first the connection with the largest weight. An
// honest client has bytes for milliseconds, and takes its answers.
func (b *Bytes) relieve() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relieveLocked(b.most, 0)
}

// look ends connections with old bytes and more than their share, while the bound stays crowded.
// look is called again while there are connections.
func (b *Bytes) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range b.open {
		a.fade()
	}
	if b.crowded {
		b.relieveLocked(b.roomy(), oldAge)
	}
	b.crowded = b.held.Load() > b.roomy()
	if b.looking = len(b.open) > 0; b.looking {
		time.AfterFunc(lookEvery, b.look)
	}
}

// relieveLocked ends connections whose bytes have such an age, until no more bytes than most are
// left, or no such connection.
func (b *Bytes) relieveLocked(most int64, age time.Duration) {
	for bytes := b.held.Load(); bytes > most && b.endWorstLocked(age, inFlight(bytes), exceeds(most)); {
		bytes = b.held.Load()
	}
}

// endWorstLocked ends the connection with the largest weight, among connections whose bytes have
// such an age. The log gets the reason, with more attributes. The result is false when no
// connection has such bytes.
func (b *Bytes) endWorstLocked(age time.Duration, why ...slog.Attr) bool {
	now, share := b.now(), b.share()
	var worst *Account
	var most float64
	for a := range b.open {
		if weight := a.weight(now, age, share); weight > most {
			worst, most = a, weight
		}
	}
	if worst == nil {
		return false
	}
	delete(b.open, worst)
	held := worst.held.Load()
	if worst.release() {
		b.countEnd(worst, heldMost, append(why, slog.Int64("bytes_of_connection", held))...)
		_ = worst.conn.Close() // the server sees it
	}
	return true
}

// countEnd counts and logs the end of a connection.
func (b *Bytes) countEnd(a *Account, reason Reason, figures ...slog.Attr) {
	b.ended[reason].Add(1)
	if b.logDue() {
		b.log("a connection was ended", a.conn.RemoteAddr(), append([]slog.Attr{slog.String("reason", reasonNames()[reason])}, figures...)...)
	}
}

// catchUp makes a reader wait while connections that have ended take a quarter of the bound beyond
// the bound. A client that opens connections faster than they go away is slowed down.
func (b *Bytes) catchUp() {
	for range 100 {
		if b.held.Load()+b.leaving.Load()-b.most <= b.most/4 {
			return
		}
		runtime.Gosched()
	}
}

// now returns the nanoseconds since begun.
func (b *Bytes) now() int64 { return int64(time.Since(b.begun)) }

// logDue reports whether log may write: at most one line per second. The metrics have the counts.
func (b *Bytes) logDue() bool {
	_, due := b.logged.Due(time.Second)
	return due
}

func (b *Bytes) log(text string, client net.Addr, figures ...slog.Attr) {
	attrs := append(figures, slog.Int64("max_bytes_in_flight", b.most))
	if client != nil {
		attrs = append(attrs, slog.String("client", client.String()))
	}
	//nolint:sloglint // the callers give constants
	b.logger.LogAttrs(context.Background(), slog.LevelWarn, text, attrs...)
}

func inFlight(bytes int64) slog.Attr { return slog.Int64("bytes_in_flight", bytes) }

// exceeds returns the bound that the bytes of a line exceed.
func exceeds(bound int64) slog.Attr { return slog.Int64("bound", bound) }

// Account is the bytes that one connection buffers. All methods are safe for concurrent use.
type Account struct {
	of      *Bytes
	conn    net.Conn
	held    atomic.Int64 // bytes; changes under mu
	streams atomic.Int64 // changes under mu

	// answered is the history of answers that the client has taken: answerUnit for each, which fades.
	// Changes under mu.
	answered atomic.Int64

	mu      sync.Mutex // guards the rest
	gone    bool       // nothing counts any more
	answers uint64     // of the last Set
	since   int64      // instant of the last answer, or since which there are bytes
	left    int64      // bytes in the end, until Close
}

// Open returns the account of a new connection, until [Account.Close]. Bytes may close conn.
func (b *Bytes) Open(conn net.Conn) *Account {
	a := &Account{of: b, conn: conn}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[a] = struct{}{}
	if !b.looking {
		b.looking = true
		time.AfterFunc(lookEvery, b.look)
	}
	return a
}

// Set says how many bytes and streams the connection has now, and how many answers its client has
// taken in all. Bytes are as old as the last answer.
func (a *Account) Set(bytes int64, streams int, answers uint64) {
	a.mu.Lock()
	if a.gone {
		a.mu.Unlock()
		return
	}
	if more := answers - a.answers; more > 0 || a.held.Load() == 0 {
		a.since, a.answers = a.of.now(), answers
		a.answered.Add(int64(more) * answerUnit)
	}
	over := a.changeLocked(bytes, int64(streams))
	a.mu.Unlock()
	if over {
		a.of.relieve()
	}
	a.of.catchUp()
}

// changeLocked adds the changes to the sums of all accounts, and reports whether the bound is
// exceeded.
func (a *Account) changeLocked(bytes, streams int64) (over bool) {
	before := a.held.Swap(bytes)
	if more := streams - a.streams.Swap(streams); more != 0 {
		a.of.streams.Add(more)
	}
	switch {
	case before == bytes:
		return false
	case before == 0:
		a.of.busy.Add(1)
	case bytes == 0:
		a.of.busy.Add(-1)
	}
	return a.of.held.Add(bytes-before) > a.of.most
}

// Ended counts the end of the connection by its server. A connection that was ended already does
// not count again.
func (a *Account) Ended(reason Reason) {
	a.mu.Lock()
	gone := a.gone
	a.mu.Unlock()
	if !gone {
		a.of.countEnd(a, reason, slog.Int64("bytes_of_connection", a.held.Load()))
	}
}

// Close ends the account. The bytes count until the goroutines of the connection have had a turn. A
// second Close does nothing.
func (a *Account) Close() {
	a.of.mu.Lock()
	delete(a.of.open, a)
	a.of.mu.Unlock()
	a.release()
	a.mu.Lock()
	bytes := a.left
	a.left = 0
	a.mu.Unlock()
	if bytes > 0 {
		go func() {
			AwaitTurns()
			a.of.leaving.Add(-bytes)
		}()
	}
}

// release gives back all bytes. A second release does nothing and reports false.
func (a *Account) release() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return false
	}
	a.gone, a.left = true, a.held.Load()
	a.of.leaving.Add(a.left)
	a.changeLocked(0, 0)
	return true
}

// weight returns the bytes times their age, in seconds, divided by the answers that the client has
// taken. An honest client whose requests wait behind the requests of others may have as many bytes
// as a hostile one, but has a history. With a least age, the weight is 0 for younger bytes, and for
// an account within its share.
func (a *Account) weight(now int64, least time.Duration, share int64) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	bytes, age := a.held.Load(), min(time.Duration(now-a.since), oldAge)
	if least > 0 && (age < least || bytes <= share) {
		return 0
	}
	return float64(bytes) * max(age, youngAge).Seconds() / (1 + float64(a.answered.Load())/answerUnit)
}

func (a *Account) fade() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered.Add(-(a.answered.Load() + answerFade - 1) / answerFade)
}

// AwaitTurns returns when the goroutines that wait for a processor now have had a turn, as far as
// the scheduler is fair. A stream or a connection that has ended takes memory until the goroutines
// of its server have seen the end.
func AwaitTurns() {
	for range 3 { // the queues of the processors are no single queue
		runtime.Gosched()
	}
}

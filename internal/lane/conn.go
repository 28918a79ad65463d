package lane

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lane is the part that all connections of one method share. Safe for concurrent use.
type Lane struct {
	options Options
	tables  *tables
	fields  sync.Pool // of *fields
	streams sync.Pool // of *stream
}

// New returns a lane. A missing option, or one out of bounds, is an error.
func New(o Options) (*Lane, error) {
	o.MaxInPlace = cmp.Or(o.MaxInPlace, 4<<10)
	o.MaxStreams = cmp.Or(o.MaxStreams, 1024)
	var errs []error
	if len(o.Path) == 0 || o.Path[0] != '/' {
		errs = append(errs, fmt.Errorf("path: %q: must be /package.Service/Method", o.Path))
	}
	for _, n := range []struct {
		name               string
		value, least, most int
	}{
		{"max message", o.MaxMessage, 1, 1 << 30},
		{"max in place", o.MaxInPlace, 1, maxFrame},
		{"max streams", o.MaxStreams, 1, 1 << 20},
	} {
		if n.value < n.least || n.value > n.most {
			errs = append(errs, fmt.Errorf("%s: %d: must be from %d to %d", n.name, n.value, n.least, n.most))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	l := &Lane{options: o, tables: newTables()}
	l.fields.New = func() any { return new(fields) }
	l.streams.New = func() any { return new(stream) }
	return l, nil
}

// Conn is the server's end of one connection. The zero value is not usable. Not safe for concurrent
// use: every method is called under one lock, or by one goroutine.
//
// Each method may append to the output, so the caller writes [Conn.Output] after it. Only Lend
// keeps the memory of an argument. The methods call the Handler and the Foreign of the connection.
type Conn struct {
	lane    *Lane
	handler Handler
	foreign Foreign
	err     error // the connection has ended
	out     []byte
	call    Call // of the request that is answered in place
	now     int64

	input   input
	decoder decoder
	cache   cache
	head    head // of the last decoded request

	ids    ids
	opened streams

	peer    peer // settings of the client
	flow    flow
	waiting []*stream // for the windows of the client

	guard guard
	alive alive
	drain drain

	replies replies
}

// replies counts responses, see Answered and Replied.
type replies struct{ answered, replied uint64 }

// input is the bytes of the client that have come.
type input struct {
	begun   bool   // the preface has come
	greeted bool   // the first SETTINGS has come
	partial []byte // of a frame
	block   block  // a header block that continues
}

// ids is the last streams of the client.
type ids struct {
	last uint32 // the largest one
	used uint64 // bit n: the stream last - 2n has been opened
	quit uint64 // bit n: the machine has reset that stream
}

// flow is the windows of the connection.
type flow struct {
	send     int64 // bytes of DATA that the machine may send now; may be negative
	window   int   // bytes of DATA that the client may send now
	consumed int   // bytes to open window by
}

// peer is the settings of a client that matter to a server.
type peer struct {
	window        int64 // SETTINGS_INITIAL_WINDOW_SIZE
	maxFrame      int
	maxHeaderList uint32
	tableSize     uint32
	tableUpdate   bool // the next header block must begin with a dynamic table size update
}

// Open returns the machine of a new connection, which holds the server's preface in its output.
//
// handler answers the calls. A handler that answers later must know its connection, for Finish.
// foreign takes the streams of other methods; nil: they get UNIMPLEMENTED. age is the age at which
// the client must connect again, as the caller drew it; 0: no bound.
func (l *Lane) Open(now int64, handler Handler, foreign Foreign, age time.Duration) *Conn {
	c := &Conn{
		lane: l, handler: handler, foreign: foreign, now: now,
		decoder: decoder{tables: l.tables, bound: maxTable},
		peer:    peer{window: defaultWindow, maxFrame: maxFrame, maxHeaderList: 1<<32 - 1, tableSize: maxTable},
		flow:    flow{send: defaultWindow, window: ConnWindow},
	}
	c.alive.start(now)
	if age > 0 {
		c.drain.ageAt = instant(now, age)
		c.alive.by(c.drain.ageAt)
	}
	settings := appendSetting(nil, settingMaxFrame, maxFrame) // in the order of grpc-go
	settings = appendSetting(settings, settingMaxStreams, l.options.MaxStreams)
	settings = appendSetting(settings, settingWindow, StreamWindow)
	settings = appendSetting(settings, settingMaxHeaderList, MaxHeaderList)
	c.out = append(appendFrame(c.out, len(settings), frameSettings, 0, 0), settings...)
	c.out = appendWindow(c.out, 0, ConnWindow-defaultWindow)
	return c
}

// Output returns the bytes to send so far, nil without any, and forgets them. The memory belongs to
// the caller, also memory of Lend.
func (c *Conn) Output() []byte { return takeOutput(&c.out) }

// takeOutput returns the bytes of an output, nil without any, and leaves no memory in it.
func takeOutput(from *[]byte) []byte {
	out := *from
	*from = nil
	if len(out) == 0 {
		return nil
	}
	return out
}

// Lend gives the Conn memory for its next output, while it has no output: the next Output returns
// the memory with the bytes in it. So an idle connection holds no buffer.
func (c *Conn) Lend(buffer []byte) {
	if len(c.out) == 0 {
		c.out = buffer[:0]
	}
}

// Streams returns the number of streams that are open now, as the client counts them.
func (c *Conn) Streams() int { return c.opened.open }

// Answered returns the calls that were answered with OK, and the streams of other methods that were
// answered with DATA, in all.
func (c *Conn) Answered() uint64 { return c.replies.answered }

// Replied returns the responses whose end has gone out, in all: with OK, with an error, and of
// other methods.
func (c *Conn) Replied() uint64 { return c.replies.replied }

// Memory of a stream with usual headers, beyond its message and response, in bytes.
const streamBytes = 512

// Held returns the bytes of memory that the client makes the connection hold beyond an idle one, by
// an upper estimate. Parts of frames, messages, headers, responses that wait, streams, and the
// output count.
func (c *Conn) Held() int {
	held := len(c.opened.byID)*streamBytes + c.opened.heads + c.opened.messages + c.opened.queued
	return held + len(c.input.partial) + len(c.input.block.bytes) + len(c.out)
}

// Close forgets the streams, and tells the Handler and the Foreign so. The other methods do nothing
// afterwards.
func (c *Conn) Close() {
	if c.err == nil {
		c.err = errClosed
	}
	for id, s := range c.opened.byID {
		switch {
		case s.foreign:
			c.foreign.Reset(id, Cancel)
		case s.later && !s.gone:
			c.handler.Cancel(id)
		}
	}
	c.opened, c.waiting, c.input.partial, c.input.block = streams{}, nil, nil, block{}
}

var errClosed = errors.New("the connection is closed")

// fail ends the connection. A *ConnError becomes a GOAWAY.
func (c *Conn) fail(err error) error {
	if ended, ok := errors.AsType[*ConnError](err); ok && c.input.begun {
		c.out = appendGoAway(c.out, c.ids.last, ended.Code, ended.Reason)
	}
	c.err = err
	return err
}

// protocolError is the end of a connection whose client breaks RFC 9113.
func protocolError(format string, args ...any) error {
	return &ConnError{ProtocolError, CauseProtocol, fmt.Sprintf(format, args...)}
}

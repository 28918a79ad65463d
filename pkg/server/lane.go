package server

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire/inflight"
	"github.com/weirproxy/weir/internal/wire/laneserver"
)

// newLane returns the server that answers ShouldRateLimit without gRPC's library, and hands all
// other methods over to it.
func (s *Server) newLane() (*laneserver.Server, error) {
	l, err := lane.New(lane.Options{
		Path: ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, MaxMessage: s.options.MaxRequestBytes,
		MaxStreams: s.options.MaxConcurrentStreams, MaxHeaderList: maxHeaderBytes,
		StreamWindow: streamWindow, ConnWindow: connectionWindow,
		Metadata:       s.options.Tracer != nil && s.options.Propagator != nil,
		MessageTimeout: messageTimeout, ResponseTimeout: responseTimeout,
		KeepaliveTime: keepaliveTime, KeepaliveTimeout: keepaliveTimeout, PingInterval: pingInterval,
		AgeGrace: s.options.MaxConnectionAgeGrace, HandOver: true,
	})
	if err != nil {
		return nil, err
	}
	options := laneserver.Options{
		Lane: l, Logger: s.options.Logger, MaxConnectionAge: s.options.MaxConnectionAge,
		Account: func(conn net.Conn) laneserver.Account { return s.service.bound.Count(conn) }, Ended: countEnd,
	}
	if s.secure != nil {
		options.Handshake = func(raw net.Conn) (net.Conn, any, error) { return s.secure.ServerHandshake(raw) }
	}
	prompt := s.options.Limiter.Prompt()
	if !prompt {
		s.service.workers.start()
	}
	var served *laneserver.Server
	options.Handler = func(c *laneserver.Conn) laneserver.Handler {
		counts, _ := c.Account().(*inflight.Conn)
		return &laneHandler{service: s.service, conn: c, counts: counts, begun: served.Begun(), prompt: prompt}
	}
	served = laneserver.New(options)
	return served, nil
}

// Bounds of connections of the lane, beside the bounds of gRPC.
const (
	responseTimeout = 10 * time.Second // that a response waits for a client that takes none
	pingInterval    = time.Second      // as in the policy of gRPC
)

// laneHandler answers the calls of one connection of the lane.
type laneHandler struct {
	service *service
	conn    *laneserver.Conn
	counts  *inflight.Conn
	begun   time.Time // of instants
	prompt  bool      // the limiter never waits
	missed  uint      // calls in a row that the limiter did not decide now

	batch *batch // calls of this read that wait; nil: none

	mu    sync.Mutex // guards later
	later map[uint32]context.CancelFunc
}

// Answer implements [lane.Handler]. The call is decided in place, unless it may wait or takes long.
func (h *laneHandler) Answer(in *lane.Call, message, dst []byte) (response []byte, r lane.Reply) {
	if b := h.service.bound; b.Crowded() && !b.Admits(h.counts) {
		return dst, lane.Reply{Code: uint32(codes.ResourceExhausted), Message: textCrowded}
	}
	begun := h.begun.Add(time.Duration(in.Arrived))
	if !in.Large && (h.prompt || h.tries()) {
		response, decided, err := h.service.inPlace(in, h.conn, begun, message, dst)
		if decided {
			h.missed = 0
			return response, laneReply(err)
		}
		h.missed++
	}
	kept := decodedBytes + decodedFactor*len(message)
	h.conn.Keep(kept)
	if h.prompt || in.Large {
		if !in.Large {
			message = bytes.Clone(message)
		}
		h.start(in, laterCall{handler: h, stream: in.Stream, begun: begun, message: message, kept: kept})
		return dst, lane.Reply{Later: true}
	}
	if h.batch == nil {
		h.batch, _ = h.service.batches.Get().(*batch)
		h.batch.handler = h
	}
	h.batch.add(h.service, in, begun, message, kept)
	return dst, lane.Reply{Later: true}
}

// Received implements [laneserver.Handler].
func (h *laneHandler) Received() {
	if h.batch != nil {
		h.service.workers.do(h.batch)
		h.batch = nil
	}
}

// Bytes of memory of a call that waits: of a decoded call with a context, and for each byte of a
// message.
const (
	decodedBytes  = 1 << 10
	decodedFactor = 8
)

// inPlace decides a call of the lane, unless it is heavy or has to wait, and appends the response
// to dst. The error is a gRPC status.
func (s *service) inPlace(in *lane.Call, from client, begun time.Time, message, dst []byte) (response []byte, decided bool, err error) {
	c, _ := s.calls.Get().(*call)
	defer s.survive(&err) // a panic drops c, which may be half written
	c.decodeInPlace(message, begun)
	c.client = from
	if c.weight() > 0 {
		s.release(c)
		return dst, false, nil
	}
	decided = true // also by a panic
	own := c.answer
	c.answer = dst
	if s.options.Tracer != nil {
		err = s.answerInSpan(s.contextOf(in), c)
	} else {
		decided, err = s.decideNow(c)
	}
	response, c.answer = c.answer, own
	s.release(c)
	if err != nil {
		err = s.statuses.status(err)
	}
	return response, decided, err
}

// A limiter that waits for most calls decides some now: of keys that are denied or leased, or while
// Redis is away. A try costs a tenth of a call that then waits. After triesInRow tries in vain only
// one call of triesSeldom is tried.
const (
	triesInRow  = 8
	triesSeldom = 32
)

// tries reports whether the limiter should try to decide the call now. Spans begin before it is
// known whether a call waits, so traced calls are not tried.
func (h *laneHandler) tries() bool {
	if h.missed >= triesInRow && h.missed%triesSeldom != 0 {
		h.missed++
		return false
	}
	return h.service.options.Tracer == nil
}

// contextOf returns the context of a call of the lane, without its deadline: with tracing it has
// the span of the client.
func (s *service) contextOf(in *lane.Call) context.Context {
	if s.options.Tracer == nil {
		return context.Background()
	}
	return s.withParent(context.Background(), in)
}

// laneReply returns a gRPC status, nil for OK, as the reply of a call.
func laneReply(err error) lane.Reply {
	if err == nil {
		return lane.Reply{}
	}
	of := status.Convert(err)
	r := lane.Reply{Code: uint32(of.Code()), Message: of.Message()}
	if p := of.Proto(); len(p.GetDetails()) > 0 {
		r.Details, _ = proto.Marshal(p) // without details the code and the text are left
	}
	return r
}

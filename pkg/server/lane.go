package server

import (
	"context"
	"strings"
	"sync"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/wire/laneserver"
)

// newLane returns the server that answers ShouldRateLimit without gRPC's library. The library
// serves all other methods behind it.
func (s *Server) newLane(secure *wire.Secure) (*laneserver.Server, error) {
	l, err := lane.New(lane.Options{
		Path: ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, MaxMessage: s.options.MaxRequestBytes,
		MaxStreams: s.options.MaxConcurrentStreams, Metadata: s.options.Tracer != nil && s.options.Propagator != nil,
		AgeGrace: s.options.MaxConnectionAgeGrace,
	})
	if err != nil {
		return nil, err
	}
	options := laneserver.Options{
		Lane: l, Logger: s.options.Logger, MaxConnectionAge: s.options.MaxConnectionAge,
		Secure: secure, Bytes: s.service.bytes, Weigh: weigh,
		Marked: rlqsv3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName, Arrived: s.service.quotas.arrived,
	}
	var served *laneserver.Server
	options.Handler = func(c *laneserver.Conn) laneserver.Handler {
		return &laneHandler{service: s.service, conn: c, begun: served.Begun()}
	}
	served = laneserver.New(options)
	return served, nil
}

// largeAnswer is the memory of an answer that is much larger than its request, in bytes. An answer
// of reflection has 70 KB of descriptors. grpc-go keeps 64 KiB of answers that a client does not
// read, and one message more.
const largeAnswer = 128 << 10

func weigh(path string) int {
	if strings.HasPrefix(path, "/grpc.reflection.") {
		return lane.BackStreamBytes + largeAnswer
	}
	return lane.BackStreamBytes
}

type laneHandler struct {
	service *service
	conn    *laneserver.Conn
	begun   time.Time // of instants

	batch *batch // calls of this read that wait; nil: none

	mu    sync.Mutex                    // guards alone
	alone map[uint32]context.CancelFunc // of the calls that wait alone, by stream; nil: none
}

// Answer implements [lane.Handler]: the call is decided now, or waits with its batch.
func (h *laneHandler) Answer(in *lane.Call, message, dst []byte) (response []byte, r lane.Reply) {
	if b := h.service.bytes; b.Crowded() && !b.Admits(h.conn.Account()) {
		return dst, lane.Reply{Code: uint32(codes.ResourceExhausted), Message: wire.TextCrowded}
	}
	c := h.service.newCall()
	c.stream, c.timeout, c.begun = in.Stream, in.Timeout, h.begun.Add(time.Duration(in.Arrived))
	c.client, c.ctx, c.exact = h.conn, h.service.contextOf(in), in.Exact
	if in.Large { // to decode it here would delay other calls
		c.message = message
	} else if response, decided, err := h.service.inPlace(c, message, dst); decided {
		return response, laneReply(err)
	}
	h.wait(c, message)
	return dst, lane.Reply{Later: true}
}

// inPlace decides a call of the lane, unless it is heavy or has to wait, and appends the response
// to dst. The error is a gRPC status. c is released if it was decided.
func (s *service) inPlace(c *call, message, dst []byte) (response []byte, decided bool, err error) {
	response, decided = dst, true // after a panic
	defer s.survive(c, &err)
	c.decodeInPlace(message)
	if c.weigh(s.options.Limiter) > 0 {
		return dst, false, nil
	}
	if err = s.begin(c); err == nil {
		if decided, err = s.options.Limiter.CheckNow(&c.request, &c.verdict); !decided {
			c.prepared = true
			return dst, false, nil
		}
	}
	response, err = s.end(c, dst, err)
	s.release(c)
	return response, true, err
}

func (s *service) contextOf(in *lane.Call) context.Context {
	if s.options.Tracer == nil {
		return context.Background()
	}
	return s.withParent(context.Background(), in)
}

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

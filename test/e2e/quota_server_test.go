package e2e

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/wire/laneserver"
)

// quotaServer is a RateLimitQuotaService that assigns as a test says. Streams acknowledge, as in
// pkg/server.
type quotaServer struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer

	address string

	mu      sync.Mutex
	changed chan struct{} // closed at each change of the rest
	streams int           // so far
	stream  grpc.ServerStream
	mark    uint64
	sent    int64 // bytes of the stream
	arrived int64
	cut     chan struct{} // closed, the stream ends
	reports map[string][]usage
}

// usage is a report of one bucket.
type usage struct {
	at              time.Time
	domain          string
	alone           bool // in its message
	stream          int
	allowed, denied uint64
	elapsed         time.Duration
}

// emptyHandler answers nothing. The gRPC server behind the lane has all calls.
type emptyHandler struct{}

func (emptyHandler) Answer(_ *lane.Call, _, dst []byte) ([]byte, lane.Reply) {
	return dst, lane.Reply{}
}
func (emptyHandler) Cancel(uint32) {}
func (emptyHandler) Received()     {}

func startQuotaServer(t *testing.T) *quotaServer {
	t.Helper()
	s := &quotaServer{changed: make(chan struct{}), reports: make(map[string][]usage)}
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s.address = l.Addr().String()
	served := laneserver.New(laneserver.Options{
		Lane:    must.Get(lane.New(lane.Options{Path: "/none/None", MaxMessage: 64 << 10}))(t),
		Handler: func(*laneserver.Conn) laneserver.Handler { return emptyHandler{} },
		Logger:  slog.New(slog.DiscardHandler),
		Marked:  rlqsv3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName, Arrived: s.acknowledge,
	})
	others := grpc.NewServer()
	rlqsv3.RegisterRateLimitQuotaServiceServer(others, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = served.Serve(l) }) // until Stop
	serving.Go(func() { _ = others.Serve(served.Others()) })
	t.Cleanup(func() {
		served.Stop()
		others.Stop()
		serving.Wait()
	})
	return s
}

// StreamRateLimitQuotas implements the service.
func (s *quotaServer) StreamRateLimitQuotas(stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	marks := metadata.ValueFromIncomingContext(stream.Context(), laneserver.MarkHeader)
	mark, err := strconv.ParseUint(marks[0], 10, 64)
	if err != nil {
		return err
	}
	cut := make(chan struct{})
	s.change(func() { s.stream, s.mark, s.sent, s.arrived, s.cut = stream, mark, 0, 0, cut; s.streams++ })
	ended := make(chan error, 1)
	go func() {
		for {
			in, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			s.change(func() { s.note(in) })
		}
	}()
	select {
	case <-cut:
		return nil
	case err := <-ended:
		return err
	}
}

func (s *quotaServer) note(in *rlqsv3.RateLimitQuotaUsageReports) {
	for _, u := range in.GetBucketQuotaUsages() {
		tenant := u.GetBucketId().GetBucket()["tenant"]
		s.reports[tenant] = append(s.reports[tenant], usage{
			time.Now(), in.GetDomain(), len(in.GetBucketQuotaUsages()) == 1, s.streams,
			u.GetNumRequestsAllowed(), u.GetNumRequestsDenied(), u.GetTimeElapsed().AsDuration(),
		})
	}
}

func (s *quotaServer) acknowledge(mark uint64, bytes int64) {
	s.change(func() {
		if mark == s.mark {
			s.arrived = bytes
		}
	})
}

func (s *quotaServer) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until done, which is called under mu.
func (s *quotaServer) await(awaited string, done func() bool) error {
	for late := time.After(20 * time.Second); ; {
		s.mu.Lock()
		is, changed := done(), s.changed
		s.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-changed:
		case <-late:
			return fmt.Errorf("not within 20 s: %s", awaited)
		}
	}
}

// send sends an action of a bucket, and waits until Envoy has read it.
func (s *quotaServer) send(action *rlqsv3.RateLimitQuotaResponse_BucketAction) (acknowledged time.Time, err error) {
	response := &rlqsv3.RateLimitQuotaResponse{BucketAction: []*rlqsv3.RateLimitQuotaResponse_BucketAction{action}}
	s.mu.Lock()
	s.sent += 5 + int64(proto.Size(response))
	all, mark := s.sent, s.mark
	err = s.stream.SendMsg(response)
	s.mu.Unlock()
	if err != nil {
		return time.Time{}, err
	}
	err = s.await("an acknowledgement", func() bool { return s.mark != mark || s.arrived >= all })
	return time.Now(), err
}

// of returns the reports of a tenant so far.
func (s *quotaServer) of(tenant string) []usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports[tenant])
}

// tenants returns all that were ever reported.
func (s *quotaServer) tenants() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.reports))
}

package server

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// unreadTime is the time in which a client must acknowledge an assignment.
const unreadTime = 5 * time.Second

// quotaStream is the stream of one Envoy. quotas.mu guards all fields that change.
type quotaStream struct {
	of       *quotas
	mark     uint64
	peer     string
	name     string // that the Envoy gives itself
	wake     chan struct{}
	received chan error // the end of the stream

	domain  string
	members map[string]*member // by bucket id
	pending []assignment
	unread  []unread
	sent    int64 // bytes of all messages, with their heads
	closed  bool
	entries []limiter.Entry // memory
	touched []*divided      // memory
	usages  int             // since second
	second  time.Duration
}

// member is a bucket id of a stream.
type member struct {
	stream   *quotaStream
	id       *rlqsv3.BucketId
	entries  []limiter.Entry
	division *divided      // nil: nothing is divided
	client   *quota.Client // of division
	open     bool          // all requests pass
	opened   time.Duration // when the client was last told that
	pending  int           // 1 + index of the assignment in stream.pending; 0: none
	warned   bool          // the log has the reason why there is no assignment
	why      string        // the last reason
	report   reports
	assigned *assigned // last; nil: none
}

// assignment is an order, or without a client that all requests pass.
type assignment struct {
	member *member
	client *quota.Client
	order  quota.Order
	at     time.Duration
}

// unread is an assignment that the client has not acknowledged, and the bytes up to its end.
type unread struct {
	of    assignment
	bytes int64
}

func (a *assignment) action() *rlqsv3.RateLimitQuotaResponse_BucketAction {
	action := &rlqsv3.RateLimitQuotaResponse_BucketAction{BucketId: a.member.id}
	if a.order.Abandon {
		action.BucketAction = &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: new(rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction),
		}
		return action
	}
	strategy := &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_ALLOW_ALL}}
	switch b := a.order.Bucket; {
	case a.client == nil:
	case b.Max == 0:
		strategy.Strategy = &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_DENY_ALL}
	default:
		strategy.Strategy = &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: b.Max, TokensPerFill: wrapperspb.UInt32(b.Fill), FillInterval: &durationpb.Duration{Seconds: int64(b.Interval)},
		}}
	}
	action.BucketAction = &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(quota.TTL), RateLimitStrategy: strategy,
		},
	}
	return action
}

func (s *quotaStream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *quotaStream) end(err error) {
	select {
	case s.received <- err:
	default:
	}
}

// queue adds an assignment, in place of an older one of the same bucket that has not gone out. The
// assignment counts as late as the older one.
func (s *quotaStream) queue(a assignment) {
	if at := a.member.pending; at > 0 {
		a.at = s.pending[at-1].at
		s.pending[at-1] = a
	} else {
		s.pending = append(s.pending, a)
		a.member.pending = len(s.pending)
	}
	a.member.tellAssignment(&a)
	s.signal()
}

// late ends the stream if the client has not acknowledged an assignment in time: it must not arrive
// later than quota.Delivery.
func (s *quotaStream) late(now time.Duration) {
	if len(s.unread) > 0 && now-s.unread[0].of.at > unreadTime || len(s.pending) > 0 && now-s.pending[0].at > unreadTime {
		s.end(status.Errorf(codes.Aborted, "the client has not acknowledged an assignment in %v", unreadTime))
	}
}

// send writes the assignments to the client, until the stream ends.
func (s *quotaStream) send(stream grpc.ServerStream) {
	for range s.wake {
		all, closed := s.take()
		if closed {
			return
		}
		if len(all) == 0 {
			continue
		}
		data, err := encodeAssignments(all)
		if err != nil {
			s.end(status.Error(codes.Internal, err.Error()))
			return
		}
		s.note(all, len(data))
		if err := stream.SendMsg(data); err != nil {
			s.end(err)
			return
		}
	}
}

func (s *quotaStream) take() (all []assignment, closed bool) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	all, s.pending = s.pending, nil
	for i := range all {
		all[i].member.pending = 0
	}
	return all, s.closed
}

// note waits for the acknowledgement of a message of so many bytes.
func (s *quotaStream) note(all []assignment, bytes int) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.sent += messageHead + int64(bytes)
	for _, a := range all {
		s.unread = append(s.unread, unread{a, s.sent})
	}
}

// messageHead is the bytes before a message of gRPC.
const messageHead = 5

// receive reads the reports of the client, until the stream ends.
func (s *quotaStream) receive(stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasServer) {
	for {
		in, err := stream.Recv()
		if err == nil {
			err = s.report(in)
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// report takes a message of the client. The error ends the stream.
func (s *quotaStream) report(in *rlqsv3.RateLimitQuotaUsageReports) error {
	q := s.of
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	switch {
	case s.closed:
		return nil
	case s.domain == "" && in.GetDomain() == "":
		return status.Error(codes.InvalidArgument, "domain: must not be empty in the first report")
	case s.domain != "" && in.GetDomain() != "" && in.GetDomain() != s.domain:
		return status.Error(codes.InvalidArgument, "domain: must not change in a stream")
	case s.domain == "":
		s.domain = in.GetDomain()
	}
	if now-s.second >= time.Second {
		s.second, s.usages = now, 0
	}
	if s.usages += 1 + len(in.GetBucketQuotaUsages()); s.usages > maxQuotaUsages {
		return status.Errorf(codes.ResourceExhausted, "more than %d usages of buckets in a second", maxQuotaUsages)
	}
	s.touched = s.touched[:0]
	for _, u := range in.GetBucketQuotaUsages() {
		m := s.member(u.GetBucketId())
		if m == nil {
			continue
		}
		if m.client == nil || m.client.Over() {
			q.look(s, m, now)
		}
		m.noteReport(u.GetNumRequestsAllowed(), u.GetNumRequestsDenied(), now)
		m.tellReport()
		if m.client != nil {
			m.division.Report(m.client, u.GetNumRequestsAllowed(), u.GetNumRequestsDenied(), now)
			m.division.due = now
			q.count(m.division.rule, u)
			s.touched = append(s.touched, m.division)
		}
	}
	for _, d := range s.touched { // all reports count before the first order
		if d.due <= now {
			q.stepOne(d, now)
		}
	}
	return nil
}

func (q *quotas) count(rule countOfRule, u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	c := q.counts[rule]
	if c == nil {
		if len(q.counts) >= maxQuotaBuckets {
			return
		}
		c = new([2]uint64)
		q.counts[rule] = c
	}
	c[0] += u.GetNumRequestsAllowed()
	c[1] += u.GetNumRequestsDenied()
}

// member returns the bucket of an id, nil above a bound.
func (s *quotaStream) member(id *rlqsv3.BucketId) *member {
	size := 0
	for key, value := range id.GetBucket() {
		size += len(key) + len(value)
	}
	switch n := len(id.GetBucket()); {
	case n == 0:
		s.of.refuse("a bucket id without keys", s.domain, nil, s.peer)
		return nil
	case n > maxBucketKeys || size > maxBucketText:
		s.of.refuse(fmt.Sprintf("a bucket id of more than %d keys or %d bytes", maxBucketKeys, maxBucketText), s.domain, nil, s.peer)
		return nil
	}
	var memory [maxBucketKeys]limiter.Entry
	entries := memory[:0]
	for key, value := range id.GetBucket() {
		entries = append(entries, limiter.Entry{Key: key, Value: value})
	}
	slices.SortFunc(entries, func(a, b limiter.Entry) int { return cmp.Compare(a.Key, b.Key) })
	name := nameOf(entries)
	if m := s.members[name]; m != nil {
		return m
	}
	if len(s.members) >= maxStreamBucket || s.of.buckets >= maxQuotaBuckets {
		s.of.refuse(fmt.Sprintf("more than %d buckets in a stream, or %d in all", maxStreamBucket, maxQuotaBuckets), s.domain, nil, s.peer)
		return nil
	}
	m := &member{stream: s, id: id, entries: slices.Clone(entries)}
	s.members[name] = m
	s.of.buckets++
	return m
}

// nameOf returns a text that is another one for other entries.
func nameOf(entries []limiter.Entry) string {
	var text []byte
	for _, e := range entries {
		text = append(binary.AppendUvarint(text, uint64(len(e.Key))), e.Key...)
		text = append(binary.AppendUvarint(text, uint64(len(e.Value))), e.Value...)
	}
	return string(text)
}

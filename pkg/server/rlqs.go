package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/internal/wire/laneserver"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// Bounds of RateLimitQuotaService. A bucket id beyond a bound has no assignment.
const (
	maxQuotaStreams = 1000
	maxQuotaBuckets = 10_000 // of all streams, and as many limits
	maxStreamBucket = 1000   // buckets of one stream
	maxBucketKeys   = 16     // of a bucket id
	maxBucketText   = 1024   // bytes of its keys and values
	maxQuotaUsages  = 4000   // usages of one stream in a second
	maxQuotaClients = 2000   // buckets of Envoys that share one limit, also ones of streams that have ended
	maxQuotaKept    = 20_000 // buckets of Envoys in all limits, also ones of streams that have ended
	quotaTick       = 20 * time.Millisecond
)

// quotas is RateLimitQuotaService: limits that are divided among Envoys. The goroutine of the first
// stream, run, lasts as long as there are streams and divisions. All methods are safe for
// concurrent use.
type quotas struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer

	limiter *limiter.Limiter
	logger  *slog.Logger
	refused string // why there is no service; "" if there is one
	limits  quotaLimits
	begun   time.Time
	warned  loglimit.Limiter

	observers observers[func(*quota.Event)]

	mu        sync.Mutex                 // guards the rest. Under mu nothing waits for a client
	divisions map[string]*divided        // by the key of the count
	streams   map[uint64]*quotaStream    // by mark
	counts    map[countOfRule]*[2]uint64 // reported hits, allowed and denied
	buckets   int                        // of all streams
	kept      int                        // clients of all divisions at the last step, and the ones that have joined since
	turnedOff map[string]uint64          // buckets without an assignment, by reason
	rules     *descriptors.Rules         // that the divisions are of
	looked    time.Duration              // when all limits were looked up
	orders    []quota.Order              // memory
	running   bool                       // run is
	stopped   chan struct{}              // closed by stop
}

type countOfRule struct{ domain, path string }

// quotaLimits has the limits that quotas divides: memoryLimits or redisLimits. quotas.mu must be
// held, but for end.
type quotaLimits interface {
	begin() // with each stream
	end()

	// work does all that is due, but of the divisions.
	work(now time.Duration)
	// refuses returns the reason against a division of the limits of a rule, or nil.
	refuses(rule *descriptors.Rule) error
	// divide makes a division of a limit. Nil: it must begin a moment later.
	divide(s *quotaStream, of *limiter.Dividend, limit quota.Limit, now time.Duration) *divided
	// change gives a division the limit of now.
	change(d *divided, limit quota.Limit, now time.Duration)
	// ready reports whether orders of the division may go out.
	ready(d *divided, now time.Duration) bool
	// tend does all that is due for the requests of RLS in the division.
	tend(d *divided, now time.Duration)
	// ends reports whether the division has ended, after a step.
	ends(d *divided, now time.Duration) bool

	collect(to metrics.Scrape)
}

// divided is a limit and its next instant.
type divided struct {
	*quota.Division

	key   string // in quotas.divisions
	rule  countOfRule
	about *descriptors.Rule // as it is now
	due   time.Duration
	rls   *rlsClient // nil: requests of RLS have no part
	part  *redisPart // nil: the division has the whole limit
}

func newDivided(of *limiter.Dividend) *divided {
	return &divided{key: of.Base, rule: countOfRule{of.Rule.Domain, of.Rule.Path}}
}

var errTooManyDivided = fmt.Errorf("more than %d limits are divided", maxQuotaBuckets)

func newQuotas(o *Options) *quotas {
	q := &quotas{
		limiter: o.Limiter, logger: o.Logger, begun: time.Now(), divisions: make(map[string]*divided),
		streams: make(map[uint64]*quotaStream), counts: make(map[countOfRule]*[2]uint64), turnedOff: make(map[string]uint64),
		stopped: make(chan struct{}),
	}
	q.limits = &memoryLimits{of: q}
	if o.Parts != nil {
		q.limits = newRedisLimits(q, o.Parts)
	}
	if o.GRPCGo {
		q.refused = "RateLimitQuotaService needs Weir's own server of HTTP/2: gRPC's library does not say when an assignment has arrived"
	}
	return q
}

func (q *quotas) now() time.Duration { return time.Since(q.begun) }

// StreamRateLimitQuotas implements the service.
func (q *quotas) StreamRateLimitQuotas(stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	if q.refused != "" {
		return status.Error(codes.Unimplemented, q.refused)
	}
	marks := metadata.ValueFromIncomingContext(stream.Context(), laneserver.MarkHeader)
	if len(marks) != 1 {
		return status.Error(codes.Internal, "the stream has no mark")
	}
	mark, err := strconv.ParseUint(marks[0], 10, 64)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	s := &quotaStream{of: q, mark: mark, members: make(map[string]*member), wake: make(chan struct{}, 1), received: make(chan error, 1)}
	if p, ok := peer.FromContext(stream.Context()); ok {
		s.peer = p.Addr.String()
	}
	if names := metadata.ValueFromIncomingContext(stream.Context(), nameHeader); len(names) > 0 {
		s.name = names[0][:min(len(names[0]), maxEnvoyName)]
	}
	if err := q.open(s); err != nil {
		return err
	}
	defer q.close(s)
	go s.receive(stream)
	go s.send(stream)
	select { // the end of the handler ends both
	case err = <-s.received:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (q *quotas) open(s *quotaStream) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.streams) >= maxQuotaStreams {
		return status.Errorf(codes.ResourceExhausted, "more than %d streams of RateLimitQuotaService", maxQuotaStreams)
	}
	q.limits.begin()
	q.streams[s.mark] = s
	q.start()
	return nil
}

// start has run going. mu must be held.
func (q *quotas) start() {
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *quotas) close(s *quotaStream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.streams, s.mark)
	q.buckets -= len(s.members)
	for _, m := range s.members {
		q.leave(m)
	}
	s.closed, s.members, s.pending, s.unread = true, nil, nil, nil // divisions keep some members for a time
	s.signal()
}

// stop ends run and the calls to Redis; no division changes any more.
func (q *quotas) stop() {
	close(q.stopped)
	q.limits.end()
}

// run steps all divisions that are due, until the last stream and the last division have ended.
func (q *quotas) run() {
	tick := time.NewTicker(quotaTick)
	defer tick.Stop()
	for {
		select {
		case <-q.stopped:
			return
		case <-tick.C:
			if !q.step() {
				return
			}
		}
	}
}

// step reports whether there is anything left to do.
func (q *quotas) step() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.limits.work(now)
	if rules := q.limiter.Rules(); rules != q.rules || now-q.looked >= time.Second {
		q.rules, q.looked = rules, now
		for _, s := range q.streams {
			for name, m := range s.members {
				if m.client != nil && m.client.Over() { // Envoy has forgotten the idle bucket
					delete(s.members, name)
					q.buckets--
					continue
				}
				q.look(s, m, now)
			}
			s.late(now)
		}
	}
	q.kept = 0
	for key, d := range q.divisions {
		q.kept += d.Clients()
		if q.limits.tend(d, now); now < d.due {
			continue
		}
		if q.stepOne(d, now); q.limits.ends(d, now) {
			delete(q.divisions, key)
		}
	}
	q.running = len(q.streams)+len(q.divisions) > 0
	return q.running
}

func (q *quotas) stepOne(d *divided, now time.Duration) {
	if !q.limits.ready(d, now) {
		d.due = now + time.Second
		return
	}
	q.orders, d.due = d.Step(now, q.orders[:0])
	for _, o := range q.orders {
		switch to := o.Client.Tag.(type) {
		case *rlsClient:
			to.publish(q, &o)
			d.due = min(d.due, d.Acknowledge(o.Client, o.Seq, now))
		case *member:
			if !to.stream.closed {
				to.stream.queue(assignment{to, o.Client, o, now})
			}
		}
	}
}

// look finds the limit of a bucket in the rules of now. The bucket joins its division, or leaves
// one.
func (q *quotas) look(s *quotaStream, m *member, now time.Duration) {
	entries := append(s.entries[:0], m.entries...)
	s.entries = entries
	of, err := q.limiter.Dividend(s.domain, entries)
	var limit quota.Limit
	if err == nil && len(of.Limits) > 0 {
		if limit, err = quota.LimitOfAll(of.Limits); err == nil {
			err = q.limits.refuses(of.Rule)
		}
	}
	switch {
	case err != nil:
	case len(of.Limits) == 0:
		q.leave(m)
		if !m.open || now-m.opened >= quota.Renew {
			m.open, m.opened = true, now
			s.queue(assignment{member: m, at: now})
		}
		return
	default:
		err = q.join(m, &of, limit, now)
	}
	if err != nil {
		q.warn(s, m, err)
		q.leave(m)
		if m.open { // Envoy goes on by its behavior without an assignment
			s.queue(assignment{member: m, order: quota.Order{Abandon: true}, at: now})
		}
	}
	m.open = false
}

// join has a bucket in the division of its limit.
func (q *quotas) join(m *member, of *limiter.Dividend, limit quota.Limit, now time.Duration) error {
	d := q.divisions[of.Base]
	if d == nil {
		if len(q.divisions) >= maxQuotaBuckets {
			return errTooManyDivided
		}
		if d = q.limits.divide(m.stream, of, limit, now); d == nil {
			q.looked = 0 // look again at once
			return nil
		}
		q.divisions[of.Base] = d
	}
	if m.division != d || m.client.Over() {
		q.leave(m)
		if d.Clients() >= maxQuotaClients {
			return fmt.Errorf("more than %d buckets of Envoys share one limit", maxQuotaClients)
		}
		if q.kept >= maxQuotaKept {
			return fmt.Errorf("more than %d buckets, also of Envoys that have gone", maxQuotaKept)
		}
		q.kept++
		m.division, m.client, m.warned = d, d.Join(now, m), false
		m.entries = slices.Clone(m.stream.entries) // in the order of the rule
		d.due = now
	}
	d.about = of.Rule
	q.limits.change(d, limit, now)
	return nil
}

func (q *quotas) leave(m *member) {
	if m.division != nil {
		m.division.Leave(m.client)
		m.division.due = 0
		m.division, m.client = nil, nil
	}
}

// warn counts a bucket without an assignment, once, and logs one in a second.
func (q *quotas) warn(s *quotaStream, m *member, reason error) {
	if _, ok := errors.AsType[*limiter.InvalidError](reason); ok { // a text that the client chooses
		reason = errors.New("a bucket id that is not valid")
	}
	m.why = reason.Error()
	if m.warned {
		return
	}
	m.warned = true
	q.refuse(reason.Error(), s.domain, m.entries, s.peer)
}

// refuse counts and logs that a bucket has no assignment, or that requests of RLS have no part.
func (q *quotas) refuse(reason, domain string, entries []limiter.Entry, client string) {
	q.turnedOff[reason]++
	if missed, ok := q.warned.Due(time.Second); ok {
		q.logger.LogAttrs(context.Background(), slog.LevelWarn, "a bucket of RLQS has no assignment",
			slog.String("reason", reason), slog.String("domain", printable.Text(domain)), slog.String("bucket", printable.Entries(entries)),
			slog.String("client", client), slog.Uint64("not_logged", missed))
	}
}

// arrived takes an acknowledgement of the lane.
func (q *quotas) arrived(mark uint64, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.streams[mark]
	if s == nil {
		return
	}
	n := 0
	for _, a := range s.unread {
		if a.bytes > bytes {
			break
		}
		n++
		if m := a.of.member; m.client != nil && m.client == a.of.client {
			m.division.due = min(m.division.due, m.division.Acknowledge(m.client, a.of.order.Seq, q.now()))
		}
	}
	s.unread = slices.Delete(s.unread, 0, n)
}

// encodeAssignments returns a response with the assignments.
func encodeAssignments(all []assignment) ([]byte, error) {
	r := new(rlqsv3.RateLimitQuotaResponse)
	for i := range all {
		r.BucketAction = append(r.BucketAction, all[i].action())
	}
	return proto.Marshal(r)
}

func (q *quotas) collect(to metrics.Scrape) {
	q.mu.Lock()
	defer q.mu.Unlock()
	to.Gauge("rlqs_streams", float64(len(q.streams)))
	to.Gauge("rlqs_buckets", float64(q.buckets))
	unsettled, rates := 0, make(map[countOfRule]float64)
	for _, d := range q.divisions {
		unsettled += d.Unsettled()
		rates[d.rule] += float64(d.Rate()) / 1e9
	}
	to.Gauge("rlqs_unsettled", float64(unsettled))
	q.limits.collect(to)
	for rule, rate := range rates {
		to.Gauge("rlqs_assigned_hits_per_second", rate, rule.domain, rule.path)
	}
	for rule, n := range q.counts {
		to.Counter("rlqs_hits_total", n[0], rule.domain, rule.path, "ok")
		to.Counter("rlqs_hits_total", n[1], rule.domain, rule.path, "over_limit")
	}
	for reason, n := range q.turnedOff {
		to.Counter("rlqs_refused_total", n, reason)
	}
}

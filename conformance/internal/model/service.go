// Package model is a small rate limit service, for the tests of the suite. The hooks are the places
// where a mutant does something else.
package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// A Service is a rate limit service in memory, and safe for concurrent use.
type Service struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	hooks     Hooks
	uncounted bool // denied requests are charged nowhere

	rulesMu sync.RWMutex
	rules   map[string]*Domain // guarded by rulesMu

	states map[string]*state // guarded by hooks.Lock
}

// New returns a service without rules.
func New(h Hooks, uncounted bool) *Service {
	return &Service{hooks: h, uncounted: uncounted, states: make(map[string]*state)}
}

// SetRules puts other rules in force.
func (s *Service) SetRules(rules map[string]*Domain) {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	s.rules = rules
	s.hooks.Reloaded(s)
}

// ShouldRateLimit decides one request.
func (s *Service) ShouldRateLimit(ctx context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	if err := s.hooks.Check(r); err != nil {
		return nil, err
	}
	s.rulesMu.RLock()
	domain := s.rules[s.hooks.Domain(r.GetDomain())]
	s.rulesMu.RUnlock()
	found := make([]*Node, len(r.GetDescriptors()))
	bills, err := s.bills(r, domain, found)
	if err != nil {
		return nil, err
	}
	bills = s.hooks.Replace(bills, found)
	if err := s.hooks.Store(ctx); err != nil {
		return nil, err
	}
	over := s.charge(bills)
	return s.answer(r, bills, found, over), nil
}

// bills returns the limits that a request charges, and the rules that its descriptors found.
func (s *Service) bills(r *ratelimitv3.RateLimitRequest, domain *Domain, found []*Node) ([]*bill, error) {
	var all []*bill
	if domain == nil {
		return nil, nil
	}
	for i, d := range r.GetDescriptors() {
		hits, refund := s.hooks.Hits(r, d)
		if hits > 1<<32-1 {
			if !refund {
				return nil, status.Error(codes.InvalidArgument, "too many hits")
			}
			hits = 1<<32 - 1
		}
		node, path := s.find(domain, d.GetEntries())
		found[i] = node
		base := bill{descriptor: i, hits: hits, refund: refund, counted: !s.uncounted, algorithm: "fixed_window"}
		if o := d.GetLimit(); o != nil {
			unit, err := s.hooks.OverrideUnit(int32(o.GetUnit()))
			if err != nil {
				return nil, err
			}
			base.requests, base.unit = uint64(o.GetRequestsPerUnit()), unit
			s.hooks.Override(&base, node)
			all = append(all, s.complete(base, domain.Domain, entriesOf(d), 1))
			found[i] = nil
			continue
		}
		var limits []*Limit
		if node != nil {
			limits = node.limits()
			base.shadow, base.quota = node.Shadow, node.Quota
		} else if domain.Default != nil {
			limits, path = []*Limit{domain.Default}, entriesOf(d)
		}
		for _, l := range limits {
			if !l.Unlimited {
				all = append(all, s.complete(base.of(l), domain.Domain, path, max(1, l.Multiplier)))
			}
		}
	}
	return all, nil
}

// of returns a bill with the words of a limit.
func (b bill) of(l *Limit) bill {
	b.requests, b.unit, b.name, b.burst = uint64(l.Requests), l.Unit, l.Name, uint64(l.Burst)
	if l.Algorithm != "" && l.Algorithm != b.algorithm {
		b.algorithm, b.counted = l.Algorithm, false
	}
	if l.Counted != nil {
		b.counted = *l.Counted
	}
	return b
}

func (s *Service) complete(b bill, domain string, path []Entry, multiplier int64) *bill {
	b.seconds = s.hooks.Seconds(b.unit) * multiplier
	b.key = s.hooks.Key(domain, path) + s.hooks.KeyOfLimit(b.algorithm, b.seconds)
	return &b
}

// find walks to the rule of a descriptor. path has the entries of its key.
func (s *Service) find(domain *Domain, entries []*commonv3.RateLimitDescriptor_Entry) (*Node, []Entry) {
	nodes := domain.Descriptors
	var found *Node
	var path []Entry
	for i, e := range entries {
		n := s.hooks.Find(nodes, Entry{e.GetKey(), e.GetValue()})
		if n == nil {
			return s.hooks.Missed(found), path
		}
		value := e.GetValue()
		if n.Share {
			value = *n.Value
		}
		path = append(path, Entry{e.GetKey(), value})
		nodes = n.Descriptors
		if i == len(entries)-1 {
			found = n
		}
	}
	return found, path
}

// charge decides all bills at one instant, and reports whether the request is over limit.
func (s *Service) charge(bills []*bill) bool {
	h := &s.hooks
	h.Lock.Lock()
	defer h.Lock.Unlock()
	now := h.Now()
	for _, b := range bills {
		st := s.states[b.key]
		if st == nil {
			st = new(state)
			st.window, _ = h.Window(b.key, now, b.seconds)
			s.states[b.key] = st
		}
		b.state = st
		s.judge(b, now)
	}
	over := h.Verdict(bills)
	for _, b := range bills {
		// A denied request gives the hits back.
		if over && b.charged && !b.counted {
			b.state.remove(b.hits)
		}
	}
	return over
}

// judge decides one bill.
func (s *Service) judge(b *bill, now time.Time) {
	h, st := &s.hooks, b.state
	if b.burst == 0 {
		b.burst = b.requests
	}
	st.advance(b, now, h)
	used, limit := st.used(b, now, h)
	_, left := h.Window(b.key, now, b.seconds)
	b.reset = h.Reset(left)
	if b.refund {
		st.remove(h.Refund(b.hits, used))
		used, _ = st.used(b, now, h)
		b.remaining = h.Remaining(used, limit)
		return
	}
	b.over = h.Over(used, b.hits, limit)
	if !b.over || b.counted {
		st.add(b, h.Charge(b.hits, b.over), now)
		b.charged = true
	}
	used, _ = st.used(b, now, h)
	b.remaining = h.Remaining(used, limit)
}

// answer writes the response.
func (s *Service) answer(r *ratelimitv3.RateLimitRequest, bills []*bill, found []*Node, over bool) *ratelimitv3.RateLimitResponse {
	response := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}
	if over {
		response.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	for i := range r.GetDescriptors() {
		response.Statuses = append(response.Statuses, s.status(i, bills, found[i]))
	}
	response.DynamicMetadata = s.hooks.Metadata(r, response.GetStatuses(), found)
	response.ResponseHeadersToAdd = s.hooks.Headers(bills)
	return s.hooks.Finish(r, response)
}

// status is the status of a descriptor: of a limit that denies, else of the one with the least
// remaining.
func (s *Service) status(i int, bills []*bill, node *Node) *ratelimitv3.RateLimitResponse_DescriptorStatus {
	var b *bill
	for _, other := range bills {
		if other.descriptor == i && (b == nil || (other.over && !b.over) || (other.over == b.over && other.remaining < b.remaining)) {
			b = other
		}
	}
	st := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK}
	if b == nil {
		if node != nil && node.RateLimit != nil && node.RateLimit.Unlimited {
			st.LimitRemaining = s.hooks.Unlimited
		}
		return st
	}
	if b.over && !(b.shadow && s.hooks.Shadow) {
		st.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	st.LimitRemaining = uint32(b.remaining)
	st.DurationUntilReset = durationpb.New(time.Duration(b.reset) * time.Second)
	st.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{
		RequestsPerUnit: uint32(b.requests), Unit: s.hooks.Unit(b.unit), Name: b.name,
	}
	return st
}

// headers are the headers of the limit that denies, or that has the least remaining.
func headers(bills []*bill) []*corev3.HeaderValue {
	var b *bill
	for _, other := range bills {
		if b == nil || (other.over && !b.over) || (other.over == b.over && other.remaining < b.remaining) {
			b = other
		}
	}
	if b == nil {
		return nil
	}
	value := func(name string, n any) *corev3.HeaderValue {
		return &corev3.HeaderValue{Key: name, Value: fmt.Sprint(n)}
	}
	return []*corev3.HeaderValue{
		value("RateLimit-Limit", b.requests), value("RateLimit-Remaining", b.remaining), value("RateLimit-Reset", b.reset),
	}
}

// metadata is the dynamic metadata of an answer.
func metadata(r *ratelimitv3.RateLimitRequest, statuses []*ratelimitv3.RateLimitResponse_DescriptorStatus, found []*Node) *structpb.Struct {
	merged := make(map[string]any)
	for i, n := range found {
		if n == nil || statuses[i].GetCode() != ratelimitv3.RateLimitResponse_OK {
			continue
		}
		merge(merged, n.Metadata)
	}
	s, err := structpb.NewStruct(map[string]any{"domain": r.GetDomain(), "hitsAddend": float64(r.GetHitsAddend()), "metadata": merged})
	if err != nil {
		return nil
	}
	return s
}

// merge adds the values that a map does not have, in maps of both too.
func merge(into, from map[string]any) {
	for name, value := range from {
		old, taken := into[name]
		if !taken {
			into[name] = value
			continue
		}
		inner, isMap := old.(map[string]any)
		if more, both := value.(map[string]any); isMap && both {
			inner = maps.Clone(inner)
			merge(inner, more)
			into[name] = inner
		}
	}
}

var errEmpty = errors.New("must not be empty")

// check is the validation of requests.
func checkRequest(r *ratelimitv3.RateLimitRequest) error {
	if r.GetDomain() == "" {
		return status.Errorf(codes.InvalidArgument, "rate limit domain %v", errEmpty)
	}
	if n := len(r.GetDescriptors()); n == 0 || n > 1000 {
		return status.Errorf(codes.InvalidArgument, "rate limit descriptor list has %d elements", n)
	}
	return nil
}

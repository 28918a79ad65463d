package watch

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/render"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// slab makes values of one type many at a time: a message has a dozen small parts for each request.
type slab[T any] struct {
	free []T
	size int // values that are made at a time
}

func (s *slab[T]) next() *T {
	if len(s.free) == 0 {
		s.free = make([]T, s.size)
	}
	one := &s.free[0]
	s.free = s.free[1:]
	return one
}

// maxSlab is the most values that are made at a time.
const maxSlab = 64

// parts makes the parts of one message.
type parts struct {
	requests    slab[adminv1.WatchedRequest]
	times       slab[timestamppb.Timestamp]
	durations   slab[durationpb.Duration]
	descriptors slab[adminv1.WatchedDescriptor]
	entries     slab[adminv1.Entry]
	limits      slab[adminv1.WatchedLimit]
	known       map[*descriptors.Limit]*adminv1.Limit // by limit
}

func newParts(events int) *parts {
	n := min(events, maxSlab)
	p := &parts{known: make(map[*descriptors.Limit]*adminv1.Limit)}
	p.requests.size, p.times.size, p.durations.size = n, n, 3*n
	p.descriptors.size, p.entries.size, p.limits.size = n, 2*n, n
	return p
}

func (p *parts) duration(d time.Duration) *durationpb.Duration {
	out := p.durations.next()
	out.Seconds, out.Nanos = int64(d/time.Second), int32(d%time.Second)
	return out
}

// message returns requests as a message. rules returns the rules in force.
func message(rules func() *descriptors.Rules, events []*event) *adminv1.WatchResponse {
	m := &adminv1.WatchResponse{Requests: make([]*adminv1.WatchedRequest, 0, len(events))}
	p := newParts(len(events))
	for _, e := range events {
		out, at := p.requests.next(), p.times.next()
		at.Seconds, at.Nanos = e.begun.Unix(), int32(e.begun.Nanosecond())
		out.At, out.Took, out.Domain, out.OverLimit, out.Error = at, p.duration(e.took), valid(e.domain), e.overLimit, valid(e.failure)
		out.Descriptors = make([]*adminv1.WatchedDescriptor, 0, len(e.descriptors))
		for i := range e.descriptors {
			d := &e.descriptors[i]
			one := p.descriptor(d, e.told)
			one.NearestMiss = nearest(rules, e, d)
			out.Descriptors = append(out.Descriptors, one)
		}
		m.Requests = append(m.Requests, out)
	}
	return m
}

// descriptor returns a descriptor as a message, without a nearest miss.
func (p *parts) descriptor(d *descriptor, told bool) *adminv1.WatchedDescriptor {
	out := p.descriptors.next()
	out.Hits, out.Outcome, out.Entries = d.hits, d.outcome, make([]*adminv1.Entry, 0, len(d.entries))
	for _, e := range d.entries {
		entry := p.entries.next()
		entry.Key, entry.Value = valid(e.Key), valid(e.Value)
		out.Entries = append(out.Entries, entry)
	}
	if d.rule != nil {
		out.Rule, out.File, out.Line = d.rule.Path, d.rule.File, uint32(d.rule.Line)
	}
	for i := range d.limits {
		l := &d.limits[i]
		of := p.known[l.limit]
		if of == nil {
			of = render.Limit(l.limit)
			p.known[l.limit] = of
		}
		one := p.limits.next()
		one.Key, one.Limit, one.Allowed, one.Remaining = valid(l.key), of, l.decision.Allowed, l.decision.Remaining
		one.RetryAfter, one.ResetAfter = p.duration(l.decision.RetryAfter), p.duration(l.decision.ResetAfter)
		if told {
			one.Source = source(l.source)
		}
		out.Limits = append(out.Limits, one)
	}
	return out
}

// source returns the source of a decision in words.
func source(s store.Source) string {
	switch s {
	case store.Asked:
		return "redis"
	case store.Lease:
		return "lease"
	case store.Memory:
		return "remembered denial"
	case store.Without:
		return "without redis"
	default: // a store in memory alone says nothing
		return "memory"
	}
}

// nearest returns the place where the search for a descriptor ended without a rule of its own; nil when there is such a rule.
func nearest(rules func() *descriptors.Rules, e *event, d *descriptor) *adminv1.NearestMiss {
	switch {
	case d.outcome == adminv1.Outcome_OUTCOME_NO_DOMAIN:
		beside, more := rules().NearestDomains(e.domain)
		return &adminv1.NearestMiss{Beside: beside, Why: noDomain(e.domain, beside, more)}
	case e.rules == nil:
		return nil
	case d.outcome != adminv1.Outcome_OUTCOME_UNMATCHED && d.outcome != adminv1.Outcome_OUTCOME_NOT_LIMITED &&
		(d.rule == nil || d.rule != e.rules.Default):
		return nil
	}
	m := e.rules.Nearest(d.entries)
	out := &adminv1.NearestMiss{File: e.rules.File, Line: uint32(e.rules.Line), Entry: uint32(m.Entry), Beside: m.Beside, Why: m.String()}
	if m.Rule != nil {
		out.Rule, out.File, out.Line = m.Rule.Path, m.Rule.File, uint32(m.Rule.Line)
	}
	return out
}

// noDomain says that a domain has no rules.
func noDomain(domain string, beside []string, more bool) string {
	text := fmt.Sprintf("domain %.200q: no rules are in force", domain)
	if len(beside) > 0 {
		text = fmt.Sprintf("domain %.200q: the rules have %s", domain, strings.Join(beside, ", "))
	}
	if more {
		text += " and more"
	}
	return text
}

// valid returns a text that a message may have.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

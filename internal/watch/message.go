package watch

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/render"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// message returns requests as a message. rules returns the rules in force.
func message(rules func() *descriptors.Rules, events []*event) *adminv1.WatchResponse {
	m := &adminv1.WatchResponse{Requests: make([]*adminv1.WatchedRequest, 0, len(events))}
	limits := make(map[*descriptors.Limit]*adminv1.Limit)
	for _, e := range events {
		out := &adminv1.WatchedRequest{
			At: timestamppb.New(e.begun), Took: durationpb.New(e.took), Domain: valid(e.domain), OverLimit: e.overLimit, Error: valid(e.failure),
			Descriptors: make([]*adminv1.WatchedDescriptor, 0, len(e.descriptors)),
		}
		for i := range e.descriptors {
			d := &e.descriptors[i]
			one := descriptorMessage(d, e.told, limits)
			one.NearestMiss = nearest(rules, e, d)
			out.Descriptors = append(out.Descriptors, one)
		}
		m.Requests = append(m.Requests, out)
	}
	return m
}

// descriptorMessage returns a descriptor as a message, without a nearest miss. limits has the messages of earlier limits.
func descriptorMessage(d *descriptor, told bool, limits map[*descriptors.Limit]*adminv1.Limit) *adminv1.WatchedDescriptor {
	out := &adminv1.WatchedDescriptor{Hits: d.hits, Outcome: d.outcome, Entries: make([]*adminv1.Entry, 0, len(d.entries))}
	for _, e := range d.entries {
		out.Entries = append(out.Entries, &adminv1.Entry{Key: valid(e.Key), Value: valid(e.Value)})
	}
	if d.rule != nil {
		out.Rule, out.File, out.Line = d.rule.Path, d.rule.File, uint32(d.rule.Line)
	}
	if d.grant != nil {
		out.Grant = d.grant.ID
	}
	for i := range d.limits {
		l := &d.limits[i]
		of := limits[l.limit]
		if of == nil {
			of = render.Limit(l.limit)
			limits[l.limit] = of
		}
		one := &adminv1.WatchedLimit{
			Key: valid(l.key), Limit: of, Allowed: l.decision.Allowed, Remaining: l.decision.Remaining,
			RetryAfter: durationpb.New(l.decision.RetryAfter), ResetAfter: durationpb.New(l.decision.ResetAfter),
		}
		if l.grant != nil {
			one.Grant = l.grant.ID
		}
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

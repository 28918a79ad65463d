package watch

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/descriptors"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// maxMisses bounds the nearest misses of a message, in bytes. One descriptor of a few bytes may
// have one of 10 KB.
const maxMisses = 1 << 20

type builder struct {
	rules  func() *descriptors.Rules // in force
	limits map[*descriptors.Limit]*adminv1.Limit
	misses int // bytes of the nearest misses
}

// message returns requests as a message. rules returns the rules in force.
func message(rules func() *descriptors.Rules, events []*event, leftOut, lost uint64) *adminv1.WatchResponse {
	b := builder{rules: rules, limits: make(map[*descriptors.Limit]*adminv1.Limit)}
	out := &adminv1.WatchResponse{Requests: make([]*adminv1.WatchedRequest, len(events)), LeftOut: leftOut, Lost: lost}
	for i, e := range events {
		out.Requests[i] = b.request(e)
	}
	return out
}

func (b *builder) request(e *event) *adminv1.WatchedRequest {
	out := &adminv1.WatchedRequest{
		At: timestamppb.New(e.begun), Took: durationpb.New(e.took), Domain: valid(e.domain), OverLimit: e.overLimit, Error: valid(e.failure),
		Descriptors: make([]*adminv1.WatchedDescriptor, len(e.descriptors)),
	}
	if e.quota != nil {
		out.Quota = quotaMessage(e.quota)
	}
	for i := range e.descriptors {
		d := &e.descriptors[i]
		out.Descriptors[i] = b.descriptor(d, e)
		if b.misses < maxMisses {
			out.Descriptors[i].NearestMiss = nearest(b.rules, e, d)
			b.misses += proto.Size(out.Descriptors[i].GetNearestMiss())
		}
	}
	return out
}

func (b *builder) descriptor(d *descriptor, of *event) *adminv1.WatchedDescriptor {
	out := &adminv1.WatchedDescriptor{
		Hits: d.hits, Outcome: d.outcome, Override: d.override,
		Entries: render.EntryMessages(d.entries), Limits: make([]*adminv1.WatchedLimit, len(d.limits)),
	}
	if d.rule != nil {
		out.Rule, out.File, out.Line = valid(d.rule.Path), valid(d.rule.File), uint32(d.rule.Line)
		if !d.override {
			out.Group = d.rule.Group.Name
		}
	}
	if d.grant != nil {
		out.Grant = valid(d.grant.ID)
	}
	for i := range d.limits {
		out.Limits[i] = b.limit(&d.limits[i], of)
	}
	return out
}

func (b *builder) limit(l *limit, of *event) *adminv1.WatchedLimit {
	shown := b.limits[l.limit]
	if shown == nil {
		shown = render.Limit(l.limit)
		b.limits[l.limit] = shown
	}
	out := &adminv1.WatchedLimit{
		Key: valid(l.key), Limit: shown, Allowed: l.decision.Allowed,
		RetryAfter: durationpb.New(l.decision.RetryAfter), ResetAfter: durationpb.New(l.decision.ResetAfter),
	}
	out.Remaining, out.LargeRemaining = render.Numbers(l.decision.Remaining)
	out.BlockedUntil = render.BlockedUntil(of.begun.Add(of.took), l.blocked)
	if of.told {
		out.Source = render.Source(l.source)
	}
	if l.grant != nil {
		out.Grant = valid(l.grant.ID)
	}
	return out
}

// nearest returns the place where the search for a descriptor ended without a rule of its own.
// The result is nil when there is such a rule, or the limit came with the request.
func nearest(rules func() *descriptors.Rules, e *event, d *descriptor) *adminv1.NearestMiss {
	if d.outcome == adminv1.Outcome_OUTCOME_NO_DOMAIN {
		beside, more := rules().NearestDomains(e.domain)
		return &adminv1.NearestMiss{Beside: beside, Why: noDomain(e.domain, beside, more)}
	}
	unlimited := d.outcome == adminv1.Outcome_OUTCOME_UNMATCHED || d.outcome == adminv1.Outcome_OUTCOME_NOT_LIMITED
	if e.rules == nil || d.override || d.rule != e.rules.Default && !unlimited {
		return nil
	}
	return render.NearestMiss(e.rules, d.entries, d.rule)
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
func valid(text string) string {
	if utf8.ValidString(text) { // a fifth of the time of ToValidUTF8
		return text
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

package render

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Explain explains a request by the rules and the counts of a limiter. Explain charges nothing; the
// errors are as in [limiter.Limiter.Explain].
func Explain(ctx context.Context, l *limiter.Limiter, in *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	request := Request(in.GetDomain(), in.GetDescriptors())
	buckets := make([]*adminv1.BucketExplanation, len(request.Descriptors))
	for i, d := range in.GetDescriptors() {
		if d.GetBucket() {
			buckets[i] = bucketExplanation(l, request.Domain, request.Descriptors[i].Entries)
		}
	}
	all, err := l.Explain(ctx, request)
	if err != nil {
		return nil, err
	}
	rules := l.Rules()
	found := rules.Domain(request.Domain)
	out := &adminv1.ExplainResponse{Domain: domain(found)}
	if found == nil {
		for _, d := range rules.Domains() {
			out.KnownDomains = append(out.KnownDomains, d.Name)
		}
	}
	for i := range all {
		out.Descriptors = append(out.Descriptors, explanation(found, request.Descriptors[i].Entries, &all[i]))
		out.Descriptors[i].Bucket = buckets[i]
	}
	return out, nil
}

// Request returns the request that Envoy would send for these descriptors.
func Request(domain string, all []*adminv1.Descriptor) *limiter.Request {
	r := &limiter.Request{Domain: domain}
	for _, in := range all {
		d := r.Add()
		d.Entries = append(d.Entries, Entries(in.GetEntries())...)
		if in != nil && in.Hits != nil {
			d.Hits, d.Probe = uint64(in.GetHits()), in.GetHits() == 0
		}
		if l := in.GetLimit(); l != nil {
			d.Override = &limiter.Override{
				Requests:   l.GetRequestsPerUnit(),
				Unit:       descriptors.Unit(l.GetUnit()),
				Multiplier: l.GetUnitMultiplier(),
			}
		}
	}
	return r
}

// explanation returns the explanation of one descriptor as a message. d is nil when the domain has
// no rules.
func explanation(d *descriptors.Domain, entries []descriptors.Entry, e *limiter.Explanation) *adminv1.DescriptorExplanation {
	out := new(adminv1.DescriptorExplanation)
	var why []string
	if d != nil {
		for _, s := range d.Trace(entries) {
			out.Steps = append(out.Steps, step(s))
			why = append(why, s.String())
		}
	}
	out.Why = strings.Join(append(why, outcome(d, &e.Status)), "; ")
	if e.Status.Outcome == limiter.Unlimited {
		out.Grant = Grant(nil, e.Status.Grant)
	}
	if rule := e.Status.Rule; rule != nil {
		out.Matched, out.Default, out.Rule = true, rule == d.Default, Rule(rule)
	}
	if d != nil && (out.GetRule() == nil || out.GetDefault() || e.Status.Outcome == limiter.NoLimit) && !e.Status.Overridden {
		out.NearestMiss = NearestMiss(d, entries, e.Status.Rule)
	}
	for i := range e.Limits {
		l := &e.Limits[i]
		explained := &adminv1.LimitExplanation{
			Limit:      Limit(&l.Limit),
			Key:        l.Key,
			Allowed:    l.Decision.Allowed,
			RetryAfter: durationpb.New(l.Decision.RetryAfter),
			ResetAfter: durationpb.New(l.Decision.ResetAfter),
			Grant:      Grant(nil, l.Grant),
			Source:     Source(l.Source),
			Never:      l.Never,

			LearnedEstimate: l.Learned,
			NoPrice:         l.NoPrice,
			Divided:         l.Divided,
			BlockedUntil:    BlockedUntil(time.Now(), l.Offenses.Blocked),
			Blocks:          uint32(l.Offenses.Blocks),
		}
		explained.Remaining, explained.LargeRemaining = Numbers(l.Decision.Remaining)
		explained.WindowStart, explained.WindowEnd = window(&l.Limit, l.Decision, time.Now())
		if l.Hold != nil {
			explained.Holders = Holders(l.Holders)
			explained.Holder, explained.HolderStatus = found(l.Hold)
		}
		out.Limits = append(out.Limits, explained)
	}
	return out
}

// window returns the begin and the end of the window in which an aligned limit has decided at now;
// both are empty for other limits. A sliding counter from the first hit does not say its window.
func window(l *descriptors.Limit, d algorithms.Decision, now time.Time) (start, end string) {
	if l.Calendar == nil {
		return "", ""
	}
	in := func(i algorithms.Instant) string {
		return time.Unix(0, int64(i)).In(l.Calendar.Spec().Zone).Format(time.RFC3339)
	}
	if !l.Calendar.FirstHit() {
		start, end := l.Calendar.Window(algorithms.Instant(now.UnixNano()))
		return in(start), in(end)
	}
	if l.Algorithm != algorithms.CalendarWindow {
		return "", ""
	}
	ends := now.Add(d.ResetAfter).Round(time.Second) // windows begin at whole seconds
	return in(algorithms.Instant(ends.Add(-l.Period).UnixNano())), in(algorithms.Instant(ends.UnixNano()))
}

// NearestMiss returns the place in a domain where the search for a descriptor ended, and why. rule
// is the rule that the descriptor met in the end; nil for none.
func NearestMiss(d *descriptors.Domain, entries []descriptors.Entry, rule *descriptors.Rule) *adminv1.NearestMiss {
	m := d.Nearest(entries)
	if rule != nil && rule == d.Default {
		m.Swapped = -1 // the default is meant for all that has no rule
	}
	out := &adminv1.NearestMiss{File: d.File, Line: uint32(d.Line), Entry: uint32(m.Entry), Beside: m.Beside, Why: m.String()}
	if m.Rule != nil {
		out.Rule, out.File, out.Line = m.Rule.Path, m.Rule.File, uint32(m.Rule.Line)
	}
	return out
}

// Source returns the source of a decision in words.
func Source(s store.Source) string {
	switch s {
	case store.Asked:
		return "redis"
	case store.Lease:
		return "lease"
	case store.Memory:
		return "remembered denial"
	case store.NoRoom:
		return "full memory"
	case store.Without:
		return "without redis"
	default: // a store in memory alone says nothing
		return "memory"
	}
}

func step(s descriptors.Step) *adminv1.Step {
	out := &adminv1.Step{Key: s.Entry.Key, Value: s.Entry.Value, Reason: reason(s.Reason), Pattern: s.Pattern, Why: s.Why}
	if s.Rule != nil {
		out.File, out.Line = s.Rule.File, uint32(s.Rule.Line)
	}
	return out
}

func reason(r descriptors.Reason) string {
	switch r {
	case descriptors.Exact:
		return "exact"
	case descriptors.Wildcard:
		return "wildcard"
	case descriptors.Matched:
		return "match"
	case descriptors.KeyOnly:
		return "key_only"
	case descriptors.Begin:
		return "begin"
	case descriptors.End:
		return "end"
	case descriptors.Pair:
		return "pair"
	case descriptors.NoHolder:
		return "no_holder"
	case descriptors.Tokens:
		return "usage"
	case descriptors.NoMatch:
	}
	return "no_match"
}

// outcome says which rule applies to a descriptor, and how.
func outcome(domain *descriptors.Domain, s *limiter.DescriptorStatus) string {
	switch {
	case domain == nil:
		return "there are no rules for this domain: not limited"
	case s.Overridden && s.Rule == nil:
		return "no rule matches: the limit that came with the descriptor applies"
	case s.Overridden && s.Outcome == limiter.NoLimit:
		return fmt.Sprintf("the limit that came with the descriptor replaces the limits of rule %s, and has no hold that could end", s.Rule.Path)
	case s.Overridden:
		return fmt.Sprintf("the limit that came with the descriptor replaces those of rule %s", s.Rule.Path)
	case s.Rule == nil:
		return "no rule matches, and the domain has no default: not limited"
	case s.Outcome == limiter.Replaced:
		return fmt.Sprintf("rule %s is dropped: another rule that the request matches replaces %q", s.Rule.Path, s.Rule.Name)
	case s.Outcome == limiter.Unlimited && s.Grant != nil:
		return fmt.Sprintf("grant %s lets everything pass that meets rule %s, until %s",
			s.Grant.ID, s.Rule.Path, s.Grant.Until.UTC().Format(time.RFC3339))
	case s.Outcome == limiter.Unlimited:
		return fmt.Sprintf("rule %s is unlimited: always passes", s.Rule.Path)
	case s.Outcome == limiter.NoLimit:
		return fmt.Sprintf("rule %s has no limit: not limited", s.Rule.Path)
	}
	text := "rule " + s.Rule.Path + " applies"
	if s.Rule == domain.Default {
		text = "no rule matches: the default limit of the domain applies"
	}
	switch {
	case s.Rule.Shadow:
		text += ", in shadow mode: it decides and counts, and always reports OK"
	case s.Rule.Group.Rank > 0:
		text += fmt.Sprintf(", as a quota of group %s: all limits of a group must have room, and a request is denied when no group has", s.Rule.Group.Name)
	case s.Rule.Quota:
		text += ", as a quota: a request is denied when all its quotas are spent"
	}
	return text
}

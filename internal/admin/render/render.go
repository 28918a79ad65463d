// Package render is the one rendering of rules, limits and explanations: as the messages of the
// admin service, and as text for people. The admin service, the page /rules and the command match
// all use it. Decisions come from package limiter.
package render

import (
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Rule returns a rule as a message.
func Rule(r *descriptors.Rule) *adminv1.Rule {
	out := &adminv1.Rule{
		Domain:         r.Domain,
		Path:           r.Path,
		File:           r.File,
		Line:           uint32(r.Line),
		Name:           r.Name,
		ShadowMode:     r.Shadow,
		QuotaMode:      r.Quota,
		Group:          r.Group.Name,
		Unlimited:      r.Unlimited,
		Replaces:       r.Replaces,
		DetailedMetric: r.DetailedMetric,
		Begin:          r.Begin,
		End:            r.End,
	}
	for i := range r.Levels {
		l := &r.Levels[i]
		text := l.Key
		if l.Value != "" {
			text += "=" + l.Value
		}
		if l.ShareThreshold {
			out.ShareThreshold = append(out.ShareThreshold, text)
		}
		if l.ValueToMetric {
			out.ValueToMetric = append(out.ValueToMetric, text)
		}
	}
	if len(r.Metadata) > 0 {
		out.Metadata, _ = structpb.NewStruct(r.Metadata) // the metadata of rules is JSON, as in a Struct
	}
	for i := range r.Limits {
		out.Limits = append(out.Limits, Limit(&r.Limits[i]))
	}
	return out
}

// Numbers returns hits as the two fields of a message have them: the second one is for more than 32
// bits, else nil.
func Numbers(hits uint64) (few uint32, large *uint64) {
	if hits > math.MaxUint32 {
		return math.MaxUint32, &hits
	}
	return uint32(hits), nil
}

// Number returns the hits that two fields of a message have, see Numbers.
func Number(few uint32, large uint64) uint64 { return max(uint64(few), large) }

// Limit returns a limit as a message.
func Limit(l *descriptors.Limit) *adminv1.Limit {
	out := &adminv1.Limit{
		Algorithm:      l.Algorithm.String(),
		Burst:          uint32(min(l.Capacity(), math.MaxUint32)),
		CountRejected:  l.CountRejected,
		Name:           l.Name,
		UnitMultiplier: l.Multiplier,
		Alignment:      l.Alignment(),
		Money:          l.Money,
		Overlay:        l.Overlay(),
	}
	out.RequestsPerUnit, out.LargeRequests = Numbers(l.PerPeriod())
	if l.Algorithm != algorithms.Concurrency {
		out.Period = durationpb.New(l.Period)
	}
	if l.AtMost > 0 {
		out.AtMost, out.GivesBack = durationpb.New(l.AtMost), l.GivesBack
	}
	if l.Estimate.Learns() {
		out.Learned = &adminv1.LearnedEstimate{Quantile: l.Estimate.Quantile, Ceiling: l.Estimate.Ceiling}
	}
	if l.OnStoreError != descriptors.OnStoreErrorUnset {
		out.OnStoreError = l.OnStoreError.String()
	}
	if l.Sharing != descriptors.SharingUnset {
		out.Sharing = l.Sharing.String()
	}
	if l.Unit != descriptors.UnitUnknown {
		out.Unit = l.Unit.String()
	}
	for _, mark := range l.WarnAt.All() {
		out.WarnAt = append(out.WarnAt, uint32(mark))
	}
	if l.Escalate != nil {
		out.Escalate = l.Escalate.String()
	}
	out.Table, out.Prices = table(l.Table()), table(l.PriceTable())
	out.TableLine = uint32(l.TableLine)
	if s := l.Schedule(); s != nil {
		out.Schedule, out.ScheduleUntil = schedule(l, s, time.Now())
	}
	return out
}

// BlockedUntil returns the end of a block after a wait, nil for a wait of 0. The end is rounded to
// seconds, as blocks have whole ones.
func BlockedUntil(now time.Time, wait time.Duration) *timestamppb.Timestamp {
	if wait <= 0 {
		return nil
	}
	return timestamppb.New(now.Add(wait).Round(time.Second))
}

// schedule returns the entries of a schedule, and the instant until which its numbers of now stay.
func schedule(l *descriptors.Limit, s *descriptors.Schedule, now time.Time) (all []*adminv1.ScheduleEntry, until string) {
	holds, change := s.At(algorithms.Instant(now.UnixNano()))
	zone := s.Entries()[min(holds, len(s.Entries())-1)].In()
	for i := range s.Entries() {
		e := &s.Entries()[i]
		all = append(all, &adminv1.ScheduleEntry{When: e.When(), Gives: e.Gives(l.Money), Holds: i == holds})
	}
	if change < math.MaxInt64 {
		until = time.Unix(0, int64(change)).In(zone).Format(time.RFC3339)
	}
	return all, until
}

// table returns a table as a message; nil for nil.
func table(t *descriptors.Table) *adminv1.Table {
	if t == nil {
		return nil
	}
	return &adminv1.Table{File: t.File(), Values: uint32(t.Len()), Hash: t.Hash()}
}

// Domains returns all domains with their rules.
func Domains(rules *descriptors.Rules) []*adminv1.Domain {
	var all []*adminv1.Domain
	byName := make(map[string]*adminv1.Domain)
	for _, d := range rules.Domains() {
		byName[d.Name] = domain(d)
		all = append(all, byName[d.Name])
	}
	for _, r := range rules.All() {
		d := byName[r.Domain]
		d.Rules = append(d.Rules, Rule(r))
	}
	return all
}

// domain returns a domain without its rules; nil for nil.
func domain(d *descriptors.Domain) *adminv1.Domain {
	if d == nil {
		return nil
	}
	return &adminv1.Domain{Name: d.Name, File: d.File, Line: uint32(d.Line)}
}

// Latency returns a histogram of times as a message.
func Latency(d store.Durations) *adminv1.Latency {
	out := &adminv1.Latency{Bounds: slices.Sorted(maps.Keys(d.Buckets))}
	for _, bound := range out.GetBounds() {
		out.Counts = append(out.Counts, d.Buckets[bound])
	}
	out.Counts = append(out.Counts, d.Count)
	return out
}

package watch

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// anyEvent draws an event with all that an event may have, and more.
func anyEvent(t *rapid.T, known *descriptors.Rules) *event {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{"", "edge", "path", "/cart", "\xff\xfe", "ä\xc3", "\x00\n"}),
		rapid.Map(rapid.SampledFrom([]int{1, 30, 100, 126, 127, 128, 129, 16370, 16383, 16384, 16385, 70_000}), func(n int) string { return strings.Repeat("x", n) }),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 40), func(b []byte) string { return string(b) }))
	span := rapid.OneOf(rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) }),
		rapid.SampledFrom([]time.Duration{0, 1, -1, time.Second, -time.Second, -time.Second - 1, math.MaxInt64, math.MinInt64}))
	grant := rapid.OneOf(rapid.Just[*limiter.Grant](nil), rapid.Map(text, func(id string) *limiter.Grant { return &limiter.Grant{ID: id} }))
	limits := []*descriptors.Limit{{}, {Limit: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: math.MaxUint32, Period: time.Hour, Burst: 7}, Name: "n"}}
	var rules []*descriptors.Rule
	for _, r := range known.All() {
		rules = append(rules, r)
		for i := range r.Limits {
			limits = append(limits, &r.Limits[i])
		}
	}
	rule := rapid.OneOf(rapid.Just[*descriptors.Rule](nil), rapid.SampledFrom(rules),
		rapid.Map(text, func(path string) *descriptors.Rule {
			return &descriptors.Rule{Path: path, File: path + "f", Line: math.MaxUint32}
		}))
	e := &event{
		begun:     time.Unix(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(-62135596800, 253402300799)).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")),
		took:      span.Draw(t, "took"),
		domain:    text.Draw(t, "domain"),
		overLimit: rapid.Bool().Draw(t, "over limit"),
		failure:   text.Draw(t, "failure"),
		rules:     rapid.SampledFrom([]*descriptors.Domain{nil, known.Domain("edge")}).Draw(t, "rules"),
		told:      rapid.Bool().Draw(t, "told"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "descriptors") {
		d := descriptor{hits: rapid.Int64().Draw(t, "hits"), outcome: adminv1.Outcome(rapid.Int32Range(0, 9).Draw(t, "outcome")), rule: rule.Draw(t, "rule"), grant: grant.Draw(t, "grant"), override: rapid.Bool().Draw(t, "override")}
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			d.entries = append(d.entries, descriptors.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "limits") {
			d.limits = append(d.limits, limit{
				key: text.Draw(t, "key"), limit: rapid.SampledFrom(limits).Draw(t, "limit"), grant: grant.Draw(t, "grant"),
				source:   store.Source(rapid.IntRange(0, 5).Draw(t, "source")),
				decision: algorithms.Decision{Allowed: rapid.Bool().Draw(t, "allowed"), Remaining: rapid.Uint32().Draw(t, "remaining"), RetryAfter: span.Draw(t, "retry"), ResetAfter: span.Draw(t, "reset")},
			})
		}
		e.descriptors = append(e.descriptors, d)
	}
	return e
}

// plain is message with Go messages.
func plain(rules func() *descriptors.Rules, events []*event, leftOut, lost uint64) *adminv1.WatchResponse {
	id := func(g *limiter.Grant) string {
		if g == nil {
			return ""
		}
		return valid(g.ID)
	}
	out := &adminv1.WatchResponse{LeftOut: leftOut, Lost: lost}
	for _, e := range events {
		r := &adminv1.WatchedRequest{At: timestamppb.New(e.begun), Took: durationpb.New(e.took), Domain: valid(e.domain), OverLimit: e.overLimit, Error: valid(e.failure)}
		for i := range e.descriptors {
			d := &e.descriptors[i]
			one := &adminv1.WatchedDescriptor{Hits: d.hits, Outcome: d.outcome, NearestMiss: nearest(rules, e, d), Grant: id(d.grant), Override: d.override}
			for _, entry := range d.entries {
				one.Entries = append(one.Entries, &adminv1.Entry{Key: valid(entry.Key), Value: valid(entry.Value)})
			}
			if d.rule != nil {
				one.Rule, one.File, one.Line = valid(d.rule.Path), valid(d.rule.File), uint32(d.rule.Line)
			}
			for _, l := range d.limits {
				limit := &adminv1.WatchedLimit{
					Key: valid(l.key), Limit: render.Limit(l.limit), Allowed: l.decision.Allowed, Remaining: l.decision.Remaining,
					RetryAfter: durationpb.New(l.decision.RetryAfter), ResetAfter: durationpb.New(l.decision.ResetAfter), Grant: id(l.grant),
				}
				if e.told {
					limit.Source = render.Source(l.source)
				}
				one.Limits = append(one.Limits, limit)
			}
			r.Descriptors = append(r.Descriptors, one)
		}
		out.Requests = append(out.Requests, r)
	}
	return out
}

func TestAMessageIsAsPackageProtoEncodesIt(t *testing.T) {
	f := newFixture(t)
	rapid.Check(t, func(t *rapid.T) {
		var events []*event
		for range rapid.IntRange(0, 3).Draw(t, "events") {
			events = append(events, anyEvent(t, f.limiter.Rules()))
		}
		leftOut, lost := rapid.Uint64().Draw(t, "left out"), rapid.Uint64().Draw(t, "lost")
		got, err := message(f.limiter.Rules, events, rapid.IntRange(0, 1000).Draw(t, "size"), leftOut, lost)
		if err != nil {
			t.Fatal(err)
		}
		want := plain(f.limiter.Rules, events, leftOut, lost)
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("got\n%x\nwant\n%x", got, data)
		}
	})
}

func TestTheNearestMissesOfAMessageAreBounded(t *testing.T) {
	f := newFixture(t)
	var rules strings.Builder
	rules.WriteString("domain: edge\ndescriptors:\n")
	for i := range 30 {
		fmt.Fprintf(&rules, "- {key: path, value: %02d%s, rate_limit: {unit: day, requests_per_unit: 1}}\n", i, strings.Repeat("v", 300))
	}
	if _, err := f.limiter.Load(descriptors.Source{Name: "rules.yaml", Data: []byte(rules.String())}); err != nil {
		t.Fatal(err)
	}
	w := f.watch(&adminv1.WatchRequest{})
	f.ask("edge", slices.Repeat([]string{"path=x"}, 1000)...)
	f.ask("edge", "path=x")
	for _, want := range []int{1000, 1} { // the large request comes alone
		encoded, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := decode(t, encoded).GetRequests()
		if len(encoded) > 3<<19 || len(all) != 1 || len(all[0].GetDescriptors()) != want || len(all[0].GetDescriptors()[0].GetNearestMiss().GetBeside()) != descriptors.MaxBeside {
			t.Errorf("got %d requests in %d bytes; want one of %d descriptors, the first with its nearest miss, in at most 1.5 MiB", len(all), len(encoded), want)
		}
	}
}

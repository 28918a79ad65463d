package server

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const groupRules = `
domain: edge
descriptors:
  - {key: backend, value: pt, quota_mode: true, group: pt, metadata: {seen: [pt, x]}, rate_limit: {unit: minute, requests_per_unit: 2, name: pt}}
  - key: backend
    value: od
    quota_mode: true
    group: od
    metadata: {seen: [od, x]}
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 3}
    descriptors:
      - {key: tenant, quota_mode: true, group: od, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: flat, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`

func TestDynamicMetadataSaysWhereThereIsRoom(t *testing.T) {
	ask := func() []*commonv3.RateLimitDescriptor {
		return []*commonv3.RateLimitDescriptor{descriptor("backend", "od", "tenant", "t"), descriptor("backend", "pt"), descriptor("backend", "od")}
	}
	group := func(names ...string) (all []any) {
		for _, name := range names {
			all = append(all, map[string]any{"name": name})
		}
		return all
	}
	od := []any{map[string]any{"backend": "od", "tenant": "t"}, map[string]any{"backend": "od"}}
	both := []any{od[0], map[string]any{"backend": "pt"}, od[1]}
	seen := func(list ...any) map[string]any { return map[string]any{"seen": list} }
	for _, wide := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, groupRules, func(o *Options) { o.DynamicMetadata, o.Headers.RetryAfter = wide, true })
			var last *ratelimitv3.RateLimitResponse
			for i, want := range []struct {
				groups, passed []any
				metadata       map[string]any
				code           any // of pt
			}{
				{group("pt", "od"), both, seen("pt", "x", "od"), nil},
				{group("pt", "od"), both, seen("pt", "x", "od"), nil},
				{group("od"), od, seen("od", "x"), "OVER_LIMIT"},
				{group("od"), od, seen("od", "x"), "OVER_LIMIT"},
				{nil, nil, nil, "OVER_LIMIT"}, // the tenant is spent, its backend is not
			} {
				last = f.ask(t, ask()...)
				got := last.GetDynamicMetadata().AsMap()
				if diff := cmp.Diff(want.groups, list(got["priority_groups"])); diff != "" {
					t.Errorf("request %d, metadata %t: priority_groups (-want +got):\n%s", i, wide, diff)
				}
				if !wide {
					if len(got) > 1 || got["domain"] != nil {
						t.Errorf("request %d: without Options.DynamicMetadata: got %v, want priority_groups alone", i, got)
					}
					continue
				}
				if diff := cmp.Diff(want.passed, list(got["passedDescriptors"])); diff != "" {
					t.Errorf("request %d: passedDescriptors (-want +got):\n%s", i, diff)
				}
				metadata, _ := got["metadata"].(map[string]any)
				if diff := cmp.Diff(want.metadata, metadata); diff != "" {
					t.Errorf("request %d: metadata (-want +got):\n%s", i, diff)
				}
				pt, _ := list(got["descriptors"])[1].(map[string]any)
				if pt["code"] != want.code || want.code != nil && pt["limitName"] != "pt" {
					t.Errorf("request %d: descriptor pt: got %v, want the code %v, with the name of its limit", i, pt, want.code)
				}
			}
			// pt has room again in a minute, od in an hour.
			if diff := cmp.Diff([][2]string{{"retry-after", "60"}}, pairs(last)); diff != "" {
				t.Errorf("headers of the last answer (-want +got):\n%s", diff)
			}
			if got := f.ask(t, descriptor("flat", "a")).GetDynamicMetadata().AsMap(); wide && len(list(got["passedDescriptors"])) != 1 || got["priority_groups"] != nil {
				t.Errorf("a quota without a group: got %v, want it to pass, in no group", got)
			}
		})
	}
}

// list returns a list of metadata; nil stays nil.
func list(v any) []any {
	all, _ := v.([]any)
	return all
}

const everyField = `
domain: edge
descriptors:
  - {key: plain, rate_limit: {unit: minute, requests_per_unit: 3, name: "a name"}}
  - {key: gold, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tier: gold, deep: {x: 1.5, list: [1, {a: [], b: {}}]}, flag: true}}
  - {key: silver, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tier: silver, deep: {y: null, list: [2]}, flag: {z: 1}}}
  - {key: held, rate_limit: {unit: hour, requests_per_unit: 9, hold: {begin: b, end: e, at_most: 1m}}}
  - {key: pt, quota_mode: true, group: pt, rate_limit: {unit: minute, requests_per_unit: 2}}
  - key: od
    quota_mode: true
    group: od
    rate_limit: {unit: minute, requests_per_unit: 3}
    descriptors:
      - {key: od, quota_mode: true, group: od, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: flat, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: shadow, quota_mode: true, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
`

func TestMetadataIsThatOfGeneratedCodeByteForByte(t *testing.T) {
	once(t)
	for seed := range uint64(300) {
		metadataOfRandomRequests(t, seed, 30)
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { metadataOfRandomRequests(t, seed, 100) })
}

func metadataOfRandomRequests(t *testing.T, seed uint64, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	s := must.Get(memstore.New(memstore.Options{}))(t)
	defer s.Close()
	l := must.Get(limiter.New(s, limiter.Options{}))(t)
	l.SetRules(load(t, everyField))
	keys := []string{"plain", "gold", "silver", "held", "pt", "od", "flat", "shadow", "free", "none", ""}
	for range n {
		request := limiter.Request{Domain: []string{"edge", "other", strings.Repeat("é", 70)}[r.IntN(12)/5%3], Hits: uint32(r.IntN(3))}
		for range 1 + r.IntN(4) {
			d := request.Add()
			key := keys[r.IntN(len(keys))]
			for range 1 + r.IntN(2)*r.IntN(11) {
				if r.IntN(3) == 0 {
					key = keys[r.IntN(len(keys))]
				}
				d.Entries = append(d.Entries, limiter.Entry{Key: key, Value: strings.Repeat("ü", r.IntN(2)*r.IntN(80))})
			}
			switch r.IntN(6) {
			case 0:
				d.Entries = append(d.Entries[:0], limiter.Entry{Key: "held"}, limiter.Entry{Key: []string{"b", "e"}[r.IntN(2)], Value: fmt.Sprint(r.IntN(3))})
				d.Hits = r.Uint64N(20)
			case 1:
				d.Probe = true
			case 2:
				d.Override = &limiter.Override{Requests: r.Uint32N(4), Unit: descriptors.Minute, Multiplier: r.Uint32N(3)}
			case 3:
				d.Hits = r.Uint64N(1 << 33)
			}
		}
		var v limiter.Verdict
		if err := l.Check(t.Context(), &request, &v); err != nil {
			continue // such as a multiplier of an override that has none
		}
		if i := r.IntN(3 * len(v.Statuses)); i < len(v.Statuses) {
			v.Statuses[i].Grant, v.Statuses[i].Never = &limiter.Grant{ID: "g1"}, r.IntN(2) == 0
		}
		f := form{original: r.IntN(3) == 0, metadata: r.IntN(4) > 0}
		want, got := f.slowMetadata(t, &request, &v), f.appendMetadata([]byte("before"), &request, &v)
		if rest, ok := bytes.CutPrefix(got, []byte("before")); !ok || !bytes.Equal(rest, want) {
			t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, hex.Dump(got), hex.Dump(want))
		}
	}
}

// slowMetadata is appendMetadata with generated code.
func (f form) slowMetadata(t *testing.T, r *limiter.Request, v *limiter.Verdict) []byte {
	t.Helper()
	fields := make(map[string]any)
	if f.metadata {
		f.slowFields(fields, r, v)
	}
	var groups []any
	for name := range v.WithRoom() {
		groups = append(groups, map[string]any{"name": name})
	}
	if len(groups) > 0 {
		fields["priority_groups"] = groups
	}
	if len(fields) == 0 {
		return nil
	}
	all := must.Get(proto.MarshalOptions{Deterministic: true}.Marshal(must.Get(structpb.NewStruct(fields))(t)))(t)
	return protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), all)
}

func (f form) slowFields(fields map[string]any, r *limiter.Request, v *limiter.Verdict) {
	all, passed := make([]any, len(r.Descriptors)), []any{}
	over := !f.original && slices.ContainsFunc(v.Statuses, func(s limiter.DescriptorStatus) bool { return s.OverLimit })
	for i := range r.Descriptors {
		d, s := &r.Descriptors[i], &v.Statuses[i]
		descriptor := slowDescriptor(d, s)
		if over {
			slowCode(descriptor, s)
		}
		all[i] = descriptor
		if !f.original && hasRoom(v, s) {
			entries := make(map[string]any)
			for _, e := range s.Rule.WithoutHolder(d.Entries) {
				entries[e.Key] = e.Value
			}
			passed = append(passed, entries)
		}
	}
	fields["domain"], fields["descriptors"] = r.Domain, all
	if r.Hits != 0 {
		fields["hitsAddend"] = r.Hits
	}
	if metadata := f.passedMetadata(v); len(metadata) > 0 {
		fields["metadata"] = metadata
	}
	if len(passed) > 0 {
		fields["passedDescriptors"] = passed
	}
}

func slowDescriptor(d *limiter.Descriptor, s *limiter.DescriptorStatus) map[string]any {
	entries := make([]any, len(d.Entries))
	for n, e := range d.Entries {
		entries[n] = e.Key + "=" + e.Value
	}
	fields := map[string]any{"entries": entries}
	if d.Override != nil {
		fields["limit"] = slowOverride(d.Override)
	}
	if d.Hits > 0 || d.Probe {
		fields["hitsAddend"] = d.Hits
	}
	if s.Grant != nil {
		fields["grant"] = s.Grant.ID
	}
	if s.Hold != nil {
		phase, name := s.Rule.Holder(d.Entries)
		hold := map[string]any{"phase": "begin", "holder": name, "hits": s.Held}
		if phase == algorithms.HoldEnd {
			hold["phase"] = "end"
		}
		fields["hold"] = hold
	}
	return fields
}

func slowCode(fields map[string]any, s *limiter.DescriptorStatus) {
	fields["code"] = "OK"
	if s.OverLimit {
		fields["code"] = "OVER_LIMIT"
	}
	if s.OverLimit && s.Never {
		fields["never"] = true
	}
	if s.Outcome == limiter.Limited && s.Limit.Name != "" {
		fields["limitName"] = s.Limit.Name
	}
}

func slowOverride(o *limiter.Override) string {
	var fields []string
	if o.Requests != 0 {
		fields = append(fields, fmt.Sprintf("requests_per_unit:%d", o.Requests))
	}
	if o.Unit != 0 {
		fields = append(fields, fmt.Sprintf("unit:%v", typev3.RateLimitUnit(o.Unit)))
	}
	if o.Multiplier != 0 {
		fields = append(fields, fmt.Sprintf("unit_multiplier:{value:%d}", o.Multiplier))
	}
	return strings.Join(fields, " ")
}

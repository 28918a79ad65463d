package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/must"
)

// parseRequest reads `domain [+hits] | k=v,k=v [+hits] [@requests/unit] | …`.
func parseRequest(t *testing.T, line string) *ratelimitv3.RateLimitRequest {
	t.Helper()
	number := func(s string) uint64 {
		n := must.Get(strconv.ParseUint(s, 10, 32))(t)
		return n
	}
	parts := strings.Split(line, "|")
	r := new(ratelimitv3.RateLimitRequest)
	for word := range strings.FieldsSeq(parts[0]) {
		if hits, found := strings.CutPrefix(word, "+"); found {
			r.HitsAddend = uint32(number(hits))
		} else {
			r.Domain = word
		}
	}
	for _, part := range parts[1:] {
		d := new(rlsv3.RateLimitDescriptor)
		for word := range strings.FieldsSeq(part) {
			switch {
			case word[0] == '+':
				d.HitsAddend = wrapperspb.UInt64(number(word[1:]))
			case word[0] == '@':
				requests, unit, _ := strings.Cut(word[1:], "/")
				d.Limit = &rlsv3.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: uint32(number(requests)), Unit: typev3.RateLimitUnit(number(unit)),
				}
			default:
				for pair := range strings.SplitSeq(word, ",") {
					key, text, _ := strings.Cut(pair, "=")
					d.Entries = append(d.Entries, &rlsv3.RateLimitDescriptor_Entry{Key: key, Value: text})
				}
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// show writes every field of an answer. Of a reset it says that it is there and within its unit; of
// a header that it is the reset, whose name holds "eset", the same.
func show(t *testing.T, answer *ratelimitv3.RateLimitResponse, err error) string {
	t.Helper()
	if err != nil {
		s := status.Convert(err)
		return fmt.Sprintf("%s: %s", s.Code(), s.Message())
	}
	seconds := map[ratelimitv3.RateLimitResponse_RateLimit_Unit]int64{1: 1, 2: 60, 3: 3600, 4: 86400, 7: 604800, 5: 30 * 86400, 6: 365 * 86400}
	var b strings.Builder
	b.WriteString(answer.GetOverallCode().String())
	for _, s := range answer.GetStatuses() {
		fmt.Fprintf(&b, " | %s", s.GetCode())
		if l := s.GetCurrentLimit(); l != nil {
			fmt.Fprintf(&b, " %d/%d", l.GetRequestsPerUnit(), l.GetUnit())
			if l.GetName() != "" {
				b.WriteString(" " + l.GetName())
			}
		}
		if s.GetLimitRemaining() != 0 {
			fmt.Fprintf(&b, " left %d", s.GetLimitRemaining())
		}
		if d := s.GetDurationUntilReset(); d != nil {
			if n := d.GetSeconds(); n < 1 || n > seconds[s.GetCurrentLimit().GetUnit()] || d.GetNanos() != 0 {
				fmt.Fprintf(&b, " reset %v", d)
			} else {
				b.WriteString(" reset")
			}
		}
		if s.GetQuota() != nil {
			b.WriteString(" quota bucket")
		}
	}
	for _, h := range answer.GetResponseHeadersToAdd() {
		text := h.GetValue()
		if n, err := strconv.Atoi(text); err == nil && n > 0 && strings.Contains(h.GetKey(), "eset") {
			text = "soon"
		}
		fmt.Fprintf(&b, " ; %s: %s", h.GetKey(), text)
	}
	if m := answer.GetDynamicMetadata(); m != nil {
		text := must.Get(json.Marshal(m.AsMap()))(t)
		fmt.Fprintf(&b, " ; %s", text)
	}
	if len(answer.GetRequestHeadersToAdd()) > 0 || len(answer.GetRawBody()) > 0 || answer.GetQuota() != nil {
		fmt.Fprintf(&b, " ; %v", answer)
	}
	return b.String()
}

// scripted is what most programs are asked about. The units are years, so that no window ends
// meanwhile.
const scripted = `
domain: d
descriptors:
- {key: plain, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: zero, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
- {key: white}
- {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: qs, quota_mode: true, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: base, rate_limit: {name: base, unit: year, requests_per_unit: 1}}
- {key: more, rate_limit: {name: more, unit: year, requests_per_unit: 3, replaces: [{name: base}]}}
- {key: all, rate_limit: {unlimited: true, name: all, replaces: [{name: base}, {name: more}]}}
- {key: week, rate_limit: {unit: week, requests_per_unit: 5}}
- {key: month, rate_limit: {unit: MONTH, requests_per_unit: 5}}
- {key: meta, metadata: {a: {x: 1}, b: one}, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: meta2, metadata: {a: {y: [2]}, b: two}, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
- key: l1
  value: x
- key: l1
  descriptors: [{key: l3, rate_limit: {unit: year, requests_per_unit: 5}}]
- key: deep
  rate_limit: {unit: year, requests_per_unit: 7}
  descriptors: [{key: er, rate_limit: {unit: year, requests_per_unit: 8}}]
- {key: w, value: "foo*", rate_limit: {unit: year, requests_per_unit: 1}}
- {key: w, value: "foob*", rate_limit: {unit: year, requests_per_unit: 2}}
- {key: w, value: "foobar", rate_limit: {unit: year, requests_per_unit: 3}}
- {key: w, rate_limit: {unit: year, requests_per_unit: 4}}
- {key: any, value: "*", rate_limit: {unit: year, requests_per_unit: 1}}
- {key: any, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: file, value: "a/*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: own, value: "a/*", rate_limit: {unit: year, requests_per_unit: 2}}
`

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
)

// parseRequest reads `domain [+hits] | k=v,k=v [+hits] [@requests/unit] | …`.
func parseRequest(t *testing.T, line string) *ratelimitv3.RateLimitRequest {
	t.Helper()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
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

// show writes every field of an answer. Of a reset it says that it is there and within its unit; of a header that it is the reset,
// whose name holds "eset", the same.
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
		text, err := json.Marshal(m.AsMap())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, " ; %s", text)
	}
	if len(answer.GetRequestHeadersToAdd()) > 0 || len(answer.GetRawBody()) > 0 || answer.GetQuota() != nil {
		fmt.Fprintf(&b, " ; %v", answer)
	}
	return b.String()
}

// scripted is what most scripts run against. The units are years, so that no window ends meanwhile.
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

// The requests and answers of the reference's tables: each line a request, "->", and every field of its answer.
func TestAnswersAreThoseOfTheOriginal(t *testing.T) {
	tests := map[string]struct {
		with   []string
		script string
	}{
		"what is refused": {script: `
			 | plain=v -> InvalidArgument: rate limit domain must not be empty
			d -> InvalidArgument: rate limit descriptor list must not be empty
			d | plain=v @5/0 -> InvalidArgument: *
			d | plain=v @5/8 -> InvalidArgument: *
			d | plain=v -> OK | OK 5/6 left 4 reset`},
		"what has no limit": {script: `
			nobody | plain=v -> OK | OK
			nobody | plain=v @1/6 -> OK | OK
			d | none=v -> OK | OK
			d | white=v -> OK | OK
			d | free=v -> OK | OK left 4294967295
			d | free=v +9 | plain=a -> OK | OK left 4294967295 | OK 5/6 left 4 reset
			d | none=v | plain=a -> OK | OK | OK 5/6 left 3 reset
			d | -> OK | OK`},
		"hits": {script: `
			d | plain=a -> OK | OK 5/6 left 4 reset
			d +2 | plain=a -> OK | OK 5/6 left 2 reset
			d +9 | plain=a +1 -> OK | OK 5/6 left 1 reset
			d | plain=a +0 -> OK | OK 5/6 left 1 reset
			d | plain=a -> OK | OK 5/6 reset
			d | plain=a +0 -> OK | OK 5/6 reset
			d | plain=a -> OVER_LIMIT | OVER_LIMIT 5/6 reset
			d | plain=a +0 -> OVER_LIMIT | OVER_LIMIT 5/6 reset
			d | plain=b +6 -> OVER_LIMIT | OVER_LIMIT 5/6 reset
			d | plain=b -> OVER_LIMIT | OVER_LIMIT 5/6 reset
			d | plain=c | plain=c -> OK | OK 5/6 left 4 reset | OK 5/6 left 3 reset
			d | zero=a -> OVER_LIMIT | OVER_LIMIT 0/6 reset`},
		"hits of a request that is denied": {script: `
			d +5 | plain=a -> OK | OK 5/6 reset
			d | plain=a | plain=b -> OVER_LIMIT | OVER_LIMIT 5/6 reset | OK 5/6 left 4 reset
			d | plain=b -> OK | OK 5/6 left 3 reset`},
		"shadow mode": {script: `
			d | shadow=a -> OK | OK 1/6 reset
			d | shadow=a -> OK | OK 1/6 reset
			d | shadow=a | zero=a -> OVER_LIMIT | OK 1/6 reset | OVER_LIMIT 0/6 reset`},
		"replaces": {script: `
			d | base=a | more=a -> OK | OK | OK 3/6 more left 2 reset
			d | base=a -> OK | OK 1/6 base reset
			d | base=a -> OVER_LIMIT | OVER_LIMIT 1/6 base reset
			d | base=a | more=a -> OK | OK | OK 3/6 more left 1 reset
			d | base=a | more=a | all=a -> OK | OK | OK | OK left 4294967295
			d | more=a | base=a -> OK | OK 3/6 more reset | OK
			d | more=a -> OVER_LIMIT | OVER_LIMIT 3/6 more reset`},
		"quota mode": {script: `
			d | q1=a | q2=a -> OK | OK 1/6 reset | OK 2/6 left 1 reset
			d | q1=a | q2=a -> OK | OVER_LIMIT 1/6 reset | OK 2/6 reset
			d | q1=a | q2=a -> OVER_LIMIT | OVER_LIMIT 1/6 reset | OVER_LIMIT 2/6 reset
			d | q1=a | none=a -> OVER_LIMIT | OVER_LIMIT 1/6 reset | OK
			d | q1=a | q2=b | zero=a -> OVER_LIMIT | OVER_LIMIT 1/6 reset | OK 2/6 left 1 reset | OVER_LIMIT 0/6 reset
			d | qs=a -> OK | OK 1/6 reset
			d | qs=a | q1=a -> OK | OK 1/6 reset | OVER_LIMIT 1/6 reset`},
		"overrides": {script: `
			d | none=v @3/6 -> OK | OK 3/6 left 2 reset
			d | plain=o @2/6 -> OK | OK 2/6 left 1 reset
			d | shadow=o @0/6 -> OVER_LIMIT | OVER_LIMIT 0/6 reset
			d | base=o @2/7 -> OK | OK 2/7 left 1 reset`},
		"units": {script: `
			d | week=a -> OK | OK 5/7 left 4 reset
			d | month=a -> OK | OK 5/5 left 4 reset`},
		"matching": {script: `
			d | l1=x,l3=y -> OK | OK
			d | l1=z,l3=y -> OK | OK 5/6 left 4 reset
			d | l1=z -> OK | OK
			d | deep=a -> OK | OK 7/6 left 6 reset
			d | deep=a,er=b -> OK | OK 8/6 left 7 reset
			d | deep=a,er=b,est=c -> OK | OK
			d | w=foobar -> OK | OK 3/6 left 2 reset
			d | w=foobaz -> OK | OK 1/6 reset
			d | w=foo -> OK | OK 1/6 reset
			d | w=fo -> OK | OK 4/6 left 3 reset
			d | any=x -> OK | OK 1/6 reset
			d | any= -> OK | OK 1/6 reset
			d | file=a/1 -> OK | OK 2/6 left 1 reset
			d | file=a/2 -> OK | OK 2/6 reset
			d | own=a/1 -> OK | OK 2/6 left 1 reset
			d | own=a/2 -> OK | OK 2/6 left 1 reset`},
		"SHADOW_MODE": {with: []string{"SHADOW_MODE=true", "LIMIT_RESPONSE_HEADERS_ENABLED=true"}, script: `
			d | zero=a -> OK | OVER_LIMIT 0/6 reset ; RateLimit-Limit: 0 ; RateLimit-Remaining: 0 ; RateLimit-Reset: soon`},
		"QUOTA_MODE": {with: []string{"QUOTA_MODE=true"}, script: `
			d | zero=a | plain=a -> OK | OVER_LIMIT 0/6 reset | OK 5/6 left 4 reset
			d | zero=a -> OVER_LIMIT | OVER_LIMIT 0/6 reset
			d | zero=a | none=a -> OK | OVER_LIMIT 0/6 reset | OK`},
		"QUOTA_MODE with headers": {with: []string{"QUOTA_MODE=true", "LIMIT_RESPONSE_HEADERS_ENABLED=true"}, script: `
			d | plain=a +5 | zero=a -> OK | OK 5/6 reset | OVER_LIMIT 0/6 reset ; RateLimit-Limit: 5 ; RateLimit-Remaining: 0 ; RateLimit-Reset: soon`},
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": {with: []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, script: `
			d | zero=a | plain=a -> OVER_LIMIT | OVER_LIMIT 0/6 reset | OK 5/6 left * reset
			d | plain=a -> OK | OK 5/6 left 4 reset`},
		"headers": {with: []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=x-l", "LIMIT_REMAINING_HEADER=x-r", "LIMIT_RESET_HEADER=x-reset"}, script: `
			d | none=a -> OK | OK
			d | free=a -> OK | OK left 4294967295
			d | plain=a | week=a -> OK | OK 5/6 left 4 reset | OK 5/7 left 4 reset ; x-l: 5 ; x-r: 4 ; x-reset: soon
			d | plain=a | deep=a -> OK | OK 5/6 left 3 reset | OK 7/6 left 6 reset ; x-l: 5 ; x-r: 3 ; x-reset: soon
			d | zero=a | plain=a -> OVER_LIMIT | OVER_LIMIT 0/6 reset | OK 5/6 left 2 reset ; x-l: 0 ; x-r: 0 ; x-reset: soon`},
		"dynamic metadata": {with: []string{"RESPONSE_DYNAMIC_METADATA=true"}, script: `
			d +1 | meta=a | meta2=b +0 -> OK | OK 1/6 reset | OK 5/6 left 5 reset ; {"descriptors":[{"entries":["meta=a"]},{"entries":["meta2=b"],"hitsAddend":0}],"domain":"d","hitsAddend":1,"metadata":{"a":{"x":1,"y":[2]},"b":"one"}}
			d | meta=a | meta2=b -> OVER_LIMIT | OVER_LIMIT 1/6 reset | OK 5/6 left 4 reset ; {"descriptors":[{"entries":["meta=a"]},{"entries":["meta2=b"]}],"domain":"d","metadata":{"a":{"y":[2]},"b":"two"}}
			d | none=a @2/2 -> OK | OK 2/2 left 1 reset ; {"descriptors":[{"entries":["none=a"],"limit":"requests_per_unit:2 unit:MINUTE"}],"domain":"d"}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, scripted, test.with...)
			for line := range strings.Lines(strings.TrimSpace(test.script)) {
				asked, want, _ := strings.Cut(strings.TrimSpace(line), " -> ")
				answer, err := r.ask(t, parseRequest(t, asked))
				got := show(t, answer, err)
				before, after, any := strings.Cut(want, "*")
				if got != want && (!any || !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after)) {
					t.Errorf("%s\n got %s\nwant %s", asked, got, want)
				}
			}
		})
	}
}

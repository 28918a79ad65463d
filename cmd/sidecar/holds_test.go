package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const holdRules = `domain: models
descriptors:
  - key: model
    rate_limit: {algorithm: concurrency, max_in_flight: 2, hold: {begin: request, end: done, at_most: 1h}}
`

func TestHoldsListsAndReleases(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, holdRules))
	client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ask := func(request string) ratelimitv3.RateLimitResponse_Code {
		t.Helper()
		answer, err := client.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "models", Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "model", Value: "a"}, {Key: "request", Value: request}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetOverallCode()
	}
	sidecar := func(code int, args ...string) string {
		t.Helper()
		var out strings.Builder
		err := run(t.Context(), append([]string{"holds", "--server=" + r.address["admin tcp"]}, args...), strings.NewReader(""), &out, io.Discard)
		got := 0
		if f, ok := errors.AsType[failure](err); ok {
			got = f.code
		} else if err != nil {
			got = exitBad
		}
		if got != code {
			t.Fatalf("%v: got exit code %d (%v), want %d", args, got, err, code)
		}
		return out.String()
	}
	ask("id-1")
	ask("id-2")
	if ask("id-3") != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		t.Error("a third request holds one of two slots")
	}
	const id1, id2 = "eb66c623572f8a2a5167ce017dee0541", "d5d5b1c80e944e2340db7bc056e06497" // sha256sum
	for _, tt := range []struct {
		code int
		args string
		want []string
	}{
		{0, "models model=a", []string{"limit   2 at once, concurrency, held at most 1h\n", "held    2 holders\nholder  " + id1 + " holds 1 hit since ", "holder  " + id2}},
		{0, "models model=a --most=1", []string{"holder  " + id1, "        and 1 more\n"}},
		{0, "models model=a --output=json", []string{`"id": "` + id1 + `"`}},
		{0, "models model=a,request=id-9 --release=id-1", []string{"was     " + id1 + " holds 1 hit since "}},
		{3, "models model=a --release=id-1", []string{"was     " + id1 + ": not known\n"}},
		{0, "models model=a --release-id=" + id2, []string{"was     " + id2 + " holds 1 hit since "}},
		{0, "models model=a --most=0", []string{"held    0 holders\n"}},
		{exitBad, "models other=a", nil},
		{exitBad, "elsewhere model=a", nil},
	} {
		got := sidecar(tt.code, strings.Fields(tt.args)...)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("holds %s: got\n%s\nwant %q", tt.args, got, want)
			}
		}
	}
	if ask("id-3") != ratelimitv3.RateLimitResponse_OK || ask("id-4") != ratelimitv3.RateLimitResponse_OK {
		t.Error("the released slots are not free")
	}
	if out := sidecar(0, "models", "model=a"); !strings.Contains(out, "held    2 holders") {
		t.Errorf("holds after two more: got\n%s", out)
	}
}

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const topRules = `domain: shop
descriptors:
  - {key: client, rate_limit: {unit: year, requests_per_unit: 4}}
`

func TestTopShowsWhoHasTheMostHits(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, topRules))
	client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ask := func(value string, hits uint32) {
		t.Helper()
		_, err := client.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "shop", HitsAddend: hits, Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "client", Value: value}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	ask("few", 1)
	ask("many", 4)
	ask("many", 2)
	ask("\x1b[2J evil", 3)
	var out strings.Builder
	top := func(args ...string) string {
		t.Helper()
		out.Reset()
		if err := run(ctx, append([]string{"top", "--server", r.address["admin tcp"]}, args...), nil, &out, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	text := top("--once")
	lines := strings.Split(text, "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "tracked keys: 3; hits in ") {
		t.Fatalf("got:\n%s", text)
	}
	for i, want := range [][]string{
		{"HITS", "DENIED", "USED", "LEFT", "RESET", "DOMAIN,", "DESCRIPTOR", "AND", "LIMIT"},
		{"6", "2", "100%", "0", "in", "", "shop", "client=many", "4", "per", "365d,"},
		{"3", "0", "75%", "1", "in", "", "shop", `client="\x1b[2J`, `evil"`},
		{"1", "0", "25%", "3", "in", "", "shop", "client=few"},
	} {
		got := strings.Fields(lines[i+1])
		for n, word := range want {
			if word != "" && (n >= len(got) || got[n] != word) {
				t.Errorf("line %d: got %q; want words %q", i+1, lines[i+1], want)
				break
			}
		}
	}
	if text := top("--by", "denied"); strings.Count(text, "\n") != 3 || !strings.Contains(text, "client=many") {
		t.Errorf("by denied hits got:\n%s", text)
	}
	var all struct {
		Keys []struct{ Hits string }
	}
	if err := json.Unmarshal([]byte(top("--output", "json", "--window", "10m", "--most", "2")), &all); err != nil || len(all.Keys) != 2 || all.Keys[0].Hits != "6" {
		t.Errorf("as JSON got %+v, %v", all, err)
	}
	for _, test := range [][2]string{
		{"--by=hit", `--by: "hit": must be hits, denied or used`},
		{"--window=5m", "--window: 5m0s: must be 1m or 10m"},
		{"--every=1ms", "--every: 1ms: must be at least 100ms"},
		{"--most=1001", "most: 1001: must be from 1 to 1000, or 0 for 20"},
	} {
		err := run(ctx, []string{"top", "--server", r.address["admin tcp"], test[0]}, nil, &out, &out)
		if err == nil || !strings.Contains(err.Error(), test[1]) {
			t.Errorf("%s: got %v; want %q", test[0], err, test[1])
		}
	}
}

func TestTopFitsItsTerminal(t *testing.T) {
	const table = "tracked\nHITS  KEY\n   9  éé€€ab\n   1  b\n"
	for _, test := range []struct {
		columns, rows int
		want          string
	}{
		{0, 0, table},
		{12, 5, table},
		{11, 4, "tracked\nHITS  KEY\n   9  éé€€…\n"},
		{1, 2, "…\n"},
	} {
		if got := fit(table, test.columns, test.rows); got != test.want {
			t.Errorf("%d columns, %d rows: got %q; want %q", test.columns, test.rows, got, test.want)
		}
	}
}

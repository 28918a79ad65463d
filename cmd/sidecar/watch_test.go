package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/logtest"
)

const watchRules = `domain: edge
descriptors:
  - {key: path, value: /cart, rate_limit: {unit: hour, algorithm: token_bucket, requests_per_unit: 2}}
`

// asks returns a function that sends a request with one entry to a sidecar.
func asks(t *testing.T, r *running) func(key, value string) {
	t.Helper()
	client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
	return func(key, value string) {
		t.Helper()
		if _, err := client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchShowsRequestsAndSumsThemUp(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, watchRules))
	ask := asks(t, r)
	watch := func(args ...string) (out *logtest.Log, cancel func(), ended chan error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		out, ended = new(logtest.Log), make(chan error, 1)
		go func() {
			ended <- run(ctx, append([]string{"watch", "--server=" + r.address["admin tcp"]}, args...), strings.NewReader(""), out, out)
		}()
		out.Await(t, 0, logtest.Has("TIME ")) // the watch has begun
		return out, cancel, ended
	}
	all, cancel, ended := watch()
	misses, cancelMisses, endedMisses := watch("edge", "pathh", "--outcome", "unmatched,no_domain", "--count=1")
	defer cancelMisses()
	for range 3 {
		ask("path", "/cart")
	}
	ask("pathh", "\x1b[2J")
	if err := <-endedMisses; err != nil { // by the count
		t.Error(err)
	}
	all.Await(t, 0, logtest.Has("unmatched"))
	cancel() // as Ctrl-C does
	if err := <-ended; err != nil {
		t.Error(err)
	}
	plain := func(text string) string {
		for of, by := range map[string]string{`20\d\d-\S+Z`: "NOW", `\S*\d(ms|µs|s)\n`: "SHORT\n", `after \S+,`: "after SOON,"} {
			text = regexp.MustCompile(of).ReplaceAllString(text, by)
		}
		return regexp.MustCompile(` +`).ReplaceAllString(text, " ")
	}
	const miss = `NOW unmatched edge pathh="\x1b[2J" - key "pathh": this level has path=/cart, in SHORT
`
	want := `TIME OUTCOME DOMAIN DESCRIPTOR RULE RESULT
NOW ok edge path=/cart path=/cart rules.yaml:3 1 left of 2 per 1h, in SHORT
NOW ok edge path=/cart path=/cart rules.yaml:3 0 left of 2 per 1h, in SHORT
NOW over_limit edge path=/cart path=/cart rules.yaml:3 0 left of 2 per 1h, retry after SOON, in SHORT
` + miss + `
4 requests, 1 over limit
DOMAIN RULE DESCRIPTORS OUTCOMES
edge path=/cart 3 ok 2, over_limit 1
edge none for pathh 1 unmatched 1
`
	if got := plain(all.String()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := plain(misses.String()); !strings.HasPrefix(got, "TIME OUTCOME DOMAIN DESCRIPTOR RULE RESULT\n"+miss+"\n1 request, 0 over limit\n") {
		t.Errorf("unmatched: got\n%s", got)
	}
}

func TestWatchPrintsALineOfJSONForEachRequest(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, watchRules))
	ask := asks(t, r)
	var out, notes logtest.Log
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"watch", "--server=" + r.address["admin tcp"], "--output=json", "--count=2"}, strings.NewReader(""), &out, &notes)
	}()
	for done := false; !done; {
		select {
		case err := <-ended:
			if done = true; err != nil {
				t.Error(err)
			}
		default:
			ask("path", "/\u009b31m") // until the watch has begun
		}
	}
	lines := out.Lines()
	if len(lines) != 2 || !strings.Contains(lines[0], `/\u009b31m`) || strings.Contains(out.String(), "\u009b") {
		t.Fatalf("got %q; want two lines without control characters", lines)
	}
	for _, line := range lines {
		var one struct {
			Domain      string
			Descriptors []struct{ Outcome string }
		}
		if err := json.Unmarshal([]byte(line), &one); err != nil || one.Domain != "edge" || one.Descriptors[0].Outcome != "OUTCOME_UNMATCHED" {
			t.Errorf("got %s, %v", line, err)
		}
	}
}

func TestWatchRefusesNonsense(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, watchRules))
	for args, want := range map[string]string{
		"--outcome=denied":            `--outcome: "denied": must be ok, over_limit, shadowed, unlimited, replaced, not_limited, unmatched, no_domain, failed`,
		"--outcome=unspecified":       `--outcome: "unspecified": must be`,
		"--max-per-second=0":          "--max-per-second: 0: must be from 1 to 100000",
		"--max-per-second=200000":     "InvalidArgument: max_per_second: 200000: must be at most 100000",
		"--for=-1s":                   "--for: -1s: must not be negative",
		"edge =x":                     "the key of an entry must not be empty",
		"edge path=/cart more":        "watch: got 3 arguments",
		"--output=yaml":               `--output: "yaml": must be text or json`,
		"--server=127.0.0.1:1":        "Unavailable: ",
		"--for=1ns nonsense nonsense": "",
	} {
		var out logtest.Log
		err := run(t.Context(), append([]string{"watch", "--server=" + r.address["admin tcp"]}, strings.Fields(args)...), strings.NewReader(""), &out, &out)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("watch %s: got %v; want %s", args, err, want)
		}
		if want != "" && strings.Contains(out.String(), "TIME") {
			t.Errorf("watch %s: got %q before the error; want nothing, as no watch began", args, out.String())
		}
	}
}

func TestLogLevelChangesTheLogOfARunningSidecar(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, watchRules), "--log-denials=6/m")
	ask := asks(t, r)
	level := func(args ...string) string {
		t.Helper()
		var out logtest.Log
		if err := run(t.Context(), append([]string{"log-level", "--server=" + r.address["admin tcp"]}, args...), strings.NewReader(""), &out, &out); err != nil {
			return err.Error()
		}
		return out.String()
	}
	for _, c := range []struct{ args, want string }{
		{"", "level    info\ndenials  6 per minute\n"},
		{"debug --denials=1000/s", "level    debug\ndenials  1000 per second\n"},
		{"warn", "level    warn\ndenials  1000 per second\n"},
		{"loud", `level: "loud": must be debug, info, warn or error`},
		{"--denials=1/d", `--denials: "1/d": must be a number per s, m or h, such as 1/s or 10/m, of at most 1000/s, or 0`},
		{"--denials=-1/s", `--denials: "-1/s": must be a number`},
		{"--denials=NaN/s", `--denials: "NaN/s": must be a number`},
		{"--denials=1001/s", `--denials: "1001/s": must be a number`},
		{"--output=json", `"denials_per_second": 1000`},
	} {
		if got := level(strings.Fields(c.args)...); !strings.Contains(got, c.want) {
			t.Errorf("log-level %s: got %q; want %q", c.args, got, c.want)
		}
	}
	for range 3 {
		ask("path", "/cart")
	}
	r.await(t, "a request was denied")
}

// Each descriptor of a request may have a nearest miss with many entries. gRPC refuses messages
// above 4 MiB unless the client says more.
func TestWatchShowsARequestWithManyMisses(t *testing.T) {
	rules := "domain: edge\ndescriptors:\n"
	for i := range 30 {
		rules += fmt.Sprintf("  - {key: path, value: /%d%s, rate_limit: {unit: hour, requests_per_unit: 2}}\n", i, strings.Repeat("x", 240))
	}
	r := start(t, "--rules", rulesFile(t, rules))
	out, ended := new(logtest.Log), make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"watch", "--server=" + r.address["admin tcp"], "--count=1"}, strings.NewReader(""), out, out)
	}()
	out.Await(t, 0, logtest.Has("TIME ")) // the watch has begun
	request := &ratelimitv3.RateLimitRequest{Domain: "edge"}
	for range 1000 {
		request.Descriptors = append(request.Descriptors, &commonv3.RateLimitDescriptor{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "path", Value: "/"}},
		})
	}
	if _, err := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"])).ShouldRateLimit(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the watch ended: %v", err)
	}
}

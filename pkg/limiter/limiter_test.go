package limiter_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// fixture is a limiter on a fresh store with rules.
type fixture struct {
	*limiter.Limiter
	tb testing.TB
}

func (f fixture) rules(text string) {
	f.tb.Helper()
	rules, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text)}}, descriptors.Options{})
	if err != nil {
		f.tb.Fatal(err)
	}
	f.SetRules(rules)
}

func newFixture(tb testing.TB, rules string) fixture {
	tb.Helper()
	return newFixtureWith(tb, rules, limiter.Options{})
}

// newFixtureWith is newFixture with options. Without rules there is no SetRules. The sweep takes an
// hour, as days pass in bubbles.
func newFixtureWith(tb testing.TB, rules string, o limiter.Options) fixture {
	tb.Helper()
	s := must.Get(memstore.New(memstore.Options{SweepInterval: time.Hour}))(tb)
	tb.Cleanup(s.Close)
	return newFixtureOn(tb, s, rules, o)
}

func newFixtureOn(tb testing.TB, s store.Store, rules string, o limiter.Options) fixture {
	tb.Helper()
	l := must.Get(limiter.New(s, o))(tb)
	f := fixture{l, tb}
	if rules != "" {
		f.rules(rules)
	}
	return f
}

// request writes a request as text: the domain, then descriptors of "k=v,k=v" with, each after a
// blank, "hits=N", "refund", "override=N" (per minute).
func request(domain string, texts ...string) *limiter.Request {
	r := &limiter.Request{Domain: domain}
	for _, text := range texts {
		d := r.Add()
		words := strings.Fields(text)
		for pair := range strings.SplitSeq(words[0], ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, descriptors.Entry{Key: key, Value: value})
		}
		for _, word := range words[1:] {
			name, number, _ := strings.Cut(word, "=")
			n, _ := strconv.ParseUint(number, 10, 64)
			switch name {
			case "hits":
				d.Hits, d.Probe = n, n == 0
			case "refund":
				d.Refund = true
			case "override":
				d.Override = &limiter.Override{Requests: uint32(n), Unit: descriptors.Minute}
			}
		}
	}
	return r
}

// check decides a request and writes the answer as text: "OVER" or "OK", then each status.
func (f fixture) check(r *limiter.Request) string {
	f.tb.Helper()
	var v limiter.Verdict
	if err := f.Check(f.tb.Context(), r, &v); err != nil {
		return "error: " + err.Error()
	}
	words := []string{"OK"}
	if v.OverLimit {
		words[0] = "OVER"
	}
	for _, s := range v.Statuses {
		words = append(words, describe(s))
	}
	return strings.Join(words, " ")
}

func describe(s limiter.DescriptorStatus) string {
	switch s.Outcome {
	case limiter.NoLimit:
		return "none"
	case limiter.Unlimited:
		return "unlimited"
	case limiter.Replaced:
		return "replaced"
	case limiter.Limited:
	}
	name := "ok"
	if s.OverLimit {
		name = "over"
	} else if s.Shadowed {
		name = "shadowed"
	}
	return fmt.Sprintf("%s:%d/%d", name, s.Decision.Remaining, s.Limit.PerPeriod())
}

const rules = `
domain: edge
default: {unit: minute, requests_per_unit: 2}
descriptors:
  - key: path
    value: /search
    rate_limit: {name: search, unit: minute, requests_per_unit: 3}
    descriptors:
      - key: client
        rate_limit: {unit: minute, requests_per_unit: 2, algorithm: token_bucket}
  - key: vip
    rate_limit: {unit: hour, requests_per_unit: 100, replaces: [{name: search}]}
  - key: staff
    rate_limit: {unlimited: true, replaces: [{name: search}]}
  - key: api_key
    rate_limits:
      - {unit: second, requests_per_unit: 2, count_rejected: false}
      - {unit: day, requests_per_unit: 3, count_rejected: false}
  - key: plan
    rate_limits:
      - {name: per_second, unit: second, requests_per_unit: 1, count_rejected: false}
      - {name: per_day, unit: day, requests_per_unit: 9, count_rejected: false}
  - key: bursty
    rate_limit: {unit: hour, requests_per_unit: 100, replaces: [{name: per_second}]}
  - key: free
    rate_limit: {unlimited: true, replaces: [{name: per_second}, {name: per_day}]}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: quota_a
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: quota_b
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: quota_shadow
    quota_mode: true
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: whitelisted
  - key: folder
    value: files/*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: coarse
    rate_limit: {period: 1ms, requests_per_unit: 1000000, algorithm: token_bucket_integer}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_window_log}
---
`

func TestRequestsAreDecidedAsTheRulesSay(t *testing.T) {
	type step struct {
		request *limiter.Request
		want    string
	}
	probeOf := func(hits uint64) *limiter.Request {
		r := request("edge", "path=/search")
		r.Descriptors[0].Hits, r.Descriptors[0].Probe = hits, true
		return r
	}
	edge := func(texts ...string) *limiter.Request { return request("edge", texts...) }
	for name, steps := range map[string][]step{
		"a limit per value": {
			{edge("path=/search,client=a"), "OK ok:1/2"},
			{edge("path=/search,client=a"), "OK ok:0/2"},
			{edge("path=/search,client=a"), "OVER over:0/2"},
			{edge("path=/search,client=b"), "OK ok:1/2"},
		},
		"no match falls to the default, one count per descriptor": {
			{edge("unknown=1"), "OK ok:1/2"},
			{edge("unknown=2"), "OK ok:1/2"},
			{edge("unknown=1"), "OK ok:0/2"},
			{edge("unknown=1"), "OVER over:0/2"},
			{edge("path=/search,client=a,more=1"), "OK ok:1/2"},
		},
		"a domain without rules does not limit":    {{request("nowhere", "path=/search", "x=y"), "OK none none"}},
		"a node without a limit does not limit":    {{edge("whitelisted=x"), "OK none"}},
		"an override in a domain without rules":    {{request("nowhere", "x=y override=1"), "OK none"}},
		"an override is not the default's":         {{edge("x=y"), "OK ok:1/2"}, {edge("x=y override=1"), "OVER over:0/1"}, {edge("y=z override=9"), "OK ok:8/9"}},
		"an override of what nothing matches":      {{edge("x=y override=1"), "OK ok:0/1"}, {edge("x=y override=1"), "OVER over:0/1"}},
		"an override shares the rule's count":      {{edge("path=/search"), "OK ok:2/3"}, {edge("path=/search override=9"), "OK ok:7/9"}, {edge("path=/search"), "OK ok:0/3"}},
		"an override of a bucket keeps its tokens": {{edge("path=/search,client=a"), "OK ok:1/2"}, {edge("path=/search,client=a override=10"), "OK ok:0/10"}},
		"an override is not in shadow":             {{edge("watched=1 override=0"), "OVER over:0/0"}},
		"an override of a log is bounded":          {{edge("log=1 override=10001"), "error: descriptor 0: override requests: 10001 is more than sliding_window_log remembers, must be at most 10000"}},
		"hits of the descriptor":                   {{edge("path=/search hits=2"), "OK ok:1/3"}, {edge("path=/search hits=0"), "OK ok:1/3"}, {edge("path=/search hits=1 refund"), "OK ok:2/3"}},
		"a refund without hits is of one":          {{edge("path=/search hits=3"), "OK ok:0/3"}, {edge("path=/search refund"), "OK ok:1/3"}},
		"unlimited":                                {{edge("staff=me"), "OK unlimited"}},
		"replaces":                                 {{edge("path=/search hits=3"), "OK ok:0/3"}, {edge("path=/search", "vip=x"), "OK replaced ok:99/100"}, {edge("vip=x", "path=/search"), "OK ok:98/100 replaced"}},
		"replaces of one limit of several": {
			{edge("plan=a hits=5", "bursty=x"), "OK ok:4/9 ok:99/100"},
			{edge("plan=a hits=5", "bursty=x"), "OVER over:4/9 ok:98/100"},
			{edge("plan=a hits=5", "free=x"), "OK replaced unlimited"},
			{edge("plan=a"), "OK ok:0/1"},
		},
		"an unlimited rule replaces":               {{edge("path=/search hits=3"), "OK ok:0/3"}, {edge("path=/search", "staff=me"), "OK replaced unlimited"}},
		"an override is neither replaced nor does": {{edge("path=/search override=5", "vip=x"), "OK ok:4/5 ok:99/100"}, {edge("path=/search", "vip=x override=5"), "OK ok:1/3 ok:4/5"}},
		"several limits: the least remaining is reported": {
			{edge("api_key=k"), "OK ok:1/2"},
			{edge("api_key=k"), "OK ok:0/2"},
			{edge("api_key=k"), "OVER over:0/2"},
		},
		"several limits: the longest retry is reported": {{edge("api_key=k hits=4"), "OVER over:3/3"}},
		"shadow reports OK and does not deny others": {
			{edge("watched=1", "path=/search"), "OK ok:0/1 ok:2/3"},
			{edge("watched=1", "path=/search"), "OK shadowed:0/1 ok:1/3"},
		},
		"quota: over only when all are": {
			{edge("quota_a=1", "quota_b=1"), "OK ok:0/1 ok:1/2"},
			{edge("quota_a=1", "quota_b=1"), "OK over:0/1 ok:0/2"},
			{edge("quota_a=1", "quota_b=1"), "OVER over:0/1 over:0/2"},
			{edge("quota_a=1"), "OVER over:0/1"},
			{edge("quota_a=1", "whitelisted=1"), "OVER over:0/1 none"},
		},
		"quota in shadow counts as one that is not over": {
			{edge("quota_shadow=1"), "OK shadowed:0/0"},
			{edge("quota_a=1 hits=2", "quota_shadow=1"), "OK over:0/1 shadowed:0/0"},
			{edge("quota_a=1"), "OVER over:0/1"},
		},
		"all or nothing": {
			{edge("path=/search,client=a hits=2", "log=1"), "OK ok:0/2 ok:4/5"},
			{edge("path=/search,client=a", "log=1"), "OVER over:0/2 ok:4/5"},
			{edge("log=1"), "OK ok:3/5"},
		},
		"fixed windows count what is denied": {
			{edge("path=/search,client=a hits=2", "path=/search"), "OK ok:0/2 ok:2/3"},
			{edge("path=/search,client=a", "path=/search"), "OVER over:0/2 ok:1/3"},
			{edge("path=/search"), "OK ok:0/3"},
		},
		"the same descriptor twice": {{edge("path=/search", "path=/search"), "OK ok:2/3 ok:1/3"}},
		"share_threshold counts all matches as one": {
			{edge("folder=files/a"), "OK ok:1/2"},
			{edge("folder=files/b"), "OK ok:0/2"},
			{edge("folder=files/c"), "OVER over:0/2"},
		},
		"a probe with hits is a mistake": {{probeOf(5), "error: descriptor 0: hits: 5: must be 0 in a probe"}},
		"everything wrong is said at once": {
			{request("", "=x hits=4294967296", "a=b"), "error: rate limit domain must not be empty; descriptor 0: entry 0: key: must not be empty; descriptor 0: hits: 4294967296: must be at most 4294967295"},
			{edge(), "error: rate limit descriptor list must not be empty"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, rules)
				for i, s := range steps {
					if got := f.check(s.request); got != s.want {
						t.Errorf("step %d: %s; want %s", i, got, s.want)
					}
				}
			})
		})
	}
}

// An empty entry takes two bytes of a message, and its mistake hundreds: in memory, and in the
// headers of a gRPC answer.
func TestTheListOfMistakesIsBounded(t *testing.T) {
	f := newFixture(t, rules)
	entries := new(limiter.Request)
	entries.Domain = "edge"
	entries.Add().Entries = make([]descriptors.Entry, 5000)
	for name, r := range map[string]*limiter.Request{
		"descriptors": request("edge", slices.Repeat([]string{"=x hits=4294967296"}, 1000)...),
		"entries":     entries,
	} {
		var v limiter.Verdict
		var invalid *limiter.InvalidError
		if err := f.Check(t.Context(), r, &v); !errors.As(err, &invalid) || len(invalid.Violations) > 25 ||
			!strings.HasSuffix(err.Error(), "there may be more mistakes: only the first are listed") {
			t.Errorf("%s: got %d mistakes; want about 20, and that there may be more", name, len(invalid.Violations))
		}
	}
}

func TestOverridesThatAreNoLimitAreRefused(t *testing.T) {
	f := newFixture(t, rules)
	for o, field := range map[limiter.Override]limiter.Field{
		{Requests: 1}:            limiter.FieldOverrideUnit,
		{Requests: 1, Unit: 8}:   limiter.FieldOverrideUnit,
		{Requests: 1, Unit: 255}: limiter.FieldOverrideUnit,
		{Requests: 1, Unit: descriptors.Year, Multiplier: 11}:        limiter.FieldOverrideMultiplier,
		{Requests: 1, Unit: descriptors.Year, Multiplier: 1 << 31}:   limiter.FieldOverrideMultiplier,
		{Requests: 1, Unit: descriptors.Year, Multiplier: 1<<32 - 1}: limiter.FieldOverrideMultiplier,
	} {
		r := request("edge", "path=/search override=1")
		r.Descriptors[0].Override = &o
		var invalid *limiter.InvalidError
		if err := f.Check(t.Context(), r, new(limiter.Verdict)); !errors.As(err, &invalid) || invalid.Violations[0].Field != field {
			t.Errorf("%+v: %v; want a violation of the %v", o, err, field)
		}
	}
}

func TestAnOverrideThatItsAlgorithmCannotKeepIsRefused(t *testing.T) {
	f := newFixture(t, rules)
	r := request("edge", "coarse=1 override=4000000000")
	r.Descriptors[0].Override.Unit = descriptors.Second
	want := "error: descriptor 0: override: requests: 4000000000: token_bucket_integer cannot refill more than a token per " +
		"nanosecond, must be at most 1000000000 for 1s"
	if got := f.check(r); got != want {
		t.Errorf("%s; want %s", got, want)
	}
	r.Descriptors[0].Override.Unit = descriptors.Minute
	if got, want := f.check(r), "OK ok:3999999999/4000000000"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

func TestOverridesOfOtherPeriodsCountApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, rules)
		for unit := descriptors.Second; unit <= descriptors.Week; unit++ {
			for _, multiplier := range []uint32{1, 3} {
				r := request("edge", "x=y override=5")
				r.Descriptors[0].Override = &limiter.Override{Requests: 5, Unit: unit, Multiplier: multiplier}
				if got := f.check(r); got != "OK ok:4/5" {
					t.Errorf("%d of %v: %s; want a count of its own", multiplier, unit, got)
				}
			}
		}
	})
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/regular", "internal/top", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/store", "pkg/store/memstore"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13/viper"},
	})
}

// Each row is a request, or several in turns.
func TestChecksAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	const id = "8f0c1a9e-7c1d-4a60-9b7e-0a52a4b0c0de" // longer than a text that Go keeps on the stack
	quiet, n := newNoting(t)
	n.silent = true
	tracked, tabled, held := newFixtureWith(t, rules, limiter.Options{TopKeys: 8}), tabledFixture(t), newFixture(t, heldRules)
	for name, row := range map[string]struct {
		f    fixture
		tell bool
		all  []*limiter.Request
	}{
		"one":                 {tracked, false, []*limiter.Request{request("edge", "path=/search,client=a")}},
		"two":                 {tracked, false, []*limiter.Request{request("edge", "path=/search,client=a", "api_key=k")}},
		"override":            {tracked, false, []*limiter.Request{request("edge", "path=/search override=5")}},
		"replaces":            {tracked, false, []*limiter.Request{request("edge", "path=/search", "vip=x")}},
		"default":             {tracked, false, []*limiter.Request{request("edge", "nothing=matches")}},
		"source":              {tracked, true, []*limiter.Request{request("edge", "path=/search", "bursty=x")}},
		"table":               {tabled, false, []*limiter.Request{request("edge", "tenant=gold", "tenant=other", "several=slow")}},
		"holders of a rate":   {held, false, pairs("bucket", 10)},
		"holders of slots":    {held, false, pairs("slots", 10)},
		"begin":               {quiet, false, []*limiter.Request{request("edge", "tenant=a,request="+id, "model=a,request="+id)}},
		"end":                 {quiet, false, []*limiter.Request{request("edge", "tenant=a,done="+id, "model=a,done="+id)}},
		"holder without name": {quiet, false, []*limiter.Request{request("edge", "tenant=a,request=", "model=a,done=")}},
		"override of slots":   {quiet, false, []*limiter.Request{request("edge", "model=a,request="+id+" override=5")}},
	} {
		v := limiter.Verdict{TellSource: row.tell}
		check := func() {
			for _, r := range row.all {
				must.Do(t, row.f.Check(t.Context(), r, &v))
			}
		}
		check()
		if got := testing.AllocsPerRun(100, check); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, got)
		}
	}
	allow := func() {
		if _, err := tracked.Allow(t.Context(), "edge", limiter.Entry{Key: "path", Value: "/search"}, limiter.Entry{Key: "client", Value: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	allow()
	if got := testing.AllocsPerRun(100, allow); got != 0 {
		t.Errorf("Allow: got %v allocations, want 0", got)
	}
}

func TestAllowSaysWhatTheCheckOfOneDescriptorDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, rules)
		client := []limiter.Entry{{Key: "path", Value: "/search"}, {Key: "client", Value: "a"}}
		for i, step := range []struct {
			domain  string
			entries []limiter.Entry
			want    limiter.Result
		}{
			{"edge", client, limiter.Result{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: 30 * time.Second}},
			{"edge", client, limiter.Result{Allowed: true, Limit: 2, Remaining: 0, ResetAfter: time.Minute}},
			{"edge", client, limiter.Result{Limit: 2, RetryAfter: 30 * time.Second, ResetAfter: time.Minute}},
			{"edge", []limiter.Entry{{Key: "staff", Value: "me"}}, limiter.Result{Allowed: true}},
			{"nowhere", client, limiter.Result{Allowed: true}},
		} {
			got, err := f.Allow(t.Context(), step.domain, step.entries...)
			if err != nil || got != step.want {
				t.Errorf("step %d: Allow = %+v, %v; want %+v", i, got, err, step.want)
			}
		}
		if _, err := f.Allow(t.Context(), ""); err == nil || err.Error() != "rate limit domain must not be empty" {
			t.Errorf("Allow without a domain: got %v", err)
		}
	})
}

func TestLoadFilesPutsRulesInForceOrNamesEveryMistake(t *testing.T) {
	f := newFixture(t, rules)
	before := f.Rules()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for path, text := range map[string]string{
		good: "domain: a\ndescriptors: [{key: k, value: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
		bad:  "domain: b\ndescriptors: [{key: k, rate_limit: {unit: fortnight}}]\n",
	} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	if _, err := f.LoadFiles(good, filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("LoadFiles with a missing file: got %v", err)
	}
	if _, err := f.LoadFiles(good, bad); err == nil || !strings.Contains(err.Error(), "bad.yaml:2: descriptors[0].rate_limit.unit") {
		t.Errorf("LoadFiles with a mistake: got %v", err)
	} else if _, ok := errors.AsType[descriptors.Errors](err); !ok {
		t.Errorf("LoadFiles with a mistake: got %T; want descriptors.Errors", err)
	}
	_, err := f.LoadFiles(bad, filepath.Join(dir, "missing"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "bad.yaml:2: ") {
		t.Errorf("LoadFiles with a missing file and a mistake: got %v; want both", err)
	}
	pipe, endless, named := filepath.Join(dir, "pipe"), filepath.Join(dir, "endless.csv"), filepath.Join(dir, "named.yaml")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	must.Do(t, os.Symlink("/dev/zero", endless))
	must.Do(t, os.WriteFile(named, []byte("domain: c\ndescriptors: [{key: k, rate_limit: {unit: day, table: endless.csv}}]\n"), 0o600))
	for path, want := range map[string]string{
		pipe: "pipe: must be a regular file", "/dev/zero": "/dev/zero: must be a regular file", named: "endless.csv: must be a regular file",
	} {
		if _, err := f.LoadFiles(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadFiles of %s: got %v, want %q", path, err, want)
		}
	}
	if _, err := f.LoadFiles(); !errors.Is(err, limiter.ErrNoDocuments) {
		t.Errorf("LoadFiles of no file: got %v", err)
	}
	if f.Rules() != before {
		t.Error("refused files changed the rules")
	}
	warnings, err := f.LoadFiles(good)
	if err != nil || len(warnings) != 1 || f.Rules().Domain("a") == nil {
		t.Errorf("LoadFiles: got %v, %v; want a warning and the rules of the file", warnings, err)
	}
}

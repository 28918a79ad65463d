package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// compared compares two services with rules of their own. Requests are about the rules of the
// first service, or recorded.
func compared(t *testing.T, older, newer string, recorded string) (out string, err error) {
	t.Helper()
	a, b, root := start(t, older), start(t, newer), t.TempDir()
	lay(t, root, map[string]string{"config/rules.yaml": older})
	args := []string{a.address["grpc"], b.address["grpc"]}
	if recorded != "" {
		args = append(args, filepath.Join(root, "record.jsonl"))
		must.Do(t, os.WriteFile(args[2], []byte(recorded), 0o600))
	}
	var stdout, stderr bytes.Buffer
	err = compareServices(t.Context(), environ("RUNTIME_ROOT="+root), args, &stdout, &stderr)
	if stderr.Len() > 0 {
		t.Errorf("standard error: %s", stderr.String())
	}
	return stdout.String(), err
}

func TestTwoServicesWithTheSameRulesAnswerTheSame(t *testing.T) {
	t.Parallel()
	out, err := compared(t, scripted, scripted, "")
	if err != nil || !strings.HasPrefix(out, "the same: ") || !strings.HasSuffix(out, " answers, of 28 places in the rules\n") {
		t.Errorf("got %v, and\n%s", err, out)
	}
}

// Each change of one rule shows, at the place of that rule in the file.
func TestCompareFindsEachKindOfDifference(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ old, new, want string }{
		"a number": {
			"{key: plain, rate_limit: {unit: year, requests_per_unit: 5}}", "{key: plain, rate_limit: {unit: year, requests_per_unit: 6}}",
			"d | plain=",
		},
		"a unit":      {"{key: week, rate_limit: {unit: week,", "{key: week, rate_limit: {unit: year,", "d | week="},
		"shadow mode": {"{key: shadow, shadow_mode: true,", "{key: shadow,", "d | shadow="},
		"a wildcard":  {`value: "foo*"`, `value: "fox*"`, "d | w=foocompare-"},
		"a value":     {`value: "foobar"`, `value: "foobaz"`, "d | w=foobar"},
		"a name":      {"{name: base, unit", "{name: bass, unit", "d | base="},
		"a level": {
			"descriptors: [{key: l3, rate_limit: {unit: year, requests_per_unit: 5}}]", "rate_limit: {unit: year, requests_per_unit: 5}",
			"d | l1=compare-",
		},
		"a replacement": {"replaces: [{name: base}]}", "replaces: [{name: none}]}", "d | base=compare-"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newer := strings.Replace(scripted, test.old, test.new, 1)
			if newer == scripted {
				t.Fatal("nothing is replaced")
			}
			before, _, _ := strings.Cut(scripted, test.old)
			want := fmt.Sprintf("rules.yaml:%d\nrequest %s", strings.Count(before, "\n")+1, test.want)
			out, err := compared(t, scripted, newer, "")
			if err == nil || !strings.Contains(err.Error(), " answers differ, of 28 places in the rules") || !strings.Contains(out, want) {
				t.Errorf("want %q, got %v, and\n%s", want, err, out)
			}
		})
	}
}

func TestCompareAsksRecordedRequests(t *testing.T) {
	t.Parallel()
	const line = `{"at":"2026-11-23T04:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"plain","value":"a"}]}],"hits":3}` + "\n"
	if out, err := compared(t, scripted, scripted, line+line); err != nil || out != "the same: 2 answers, of recorded requests\n" {
		t.Errorf("got %v, and\n%s", err, out)
	}
	newer := strings.Replace(scripted, "plain, rate_limit: {unit: year, requests_per_unit: 5}", "plain, rate_limit: {unit: year, requests_per_unit: 6}", 1)
	out, err := compared(t, scripted, newer, line+line)
	if err == nil || !strings.Contains(err.Error(), "2 of 2 answers differ, of recorded requests") ||
		strings.Count(out, "request d | plain=a | hits 3\n") != 2 || !strings.Contains(out, ": OVER_LIMIT | OVER_LIMIT, 0 left of 5 per year, reset in ") {
		t.Errorf("got %v, and\n%s", err, out)
	}
}

func TestCompareSaysWhyItCannotAsk(t *testing.T) {
	t.Parallel()
	r, root := start(t, scripted), t.TempDir()
	lay(t, root, map[string]string{"bad/config/a.yaml": "domain: b\ndescriptors: 7\n"})
	at := r.address["grpc"]
	for name, test := range map[string]struct {
		args    []string
		environ []string
		want    string
	}{
		"one address":         {args: []string{at}, want: "usage: ratelimit compare OLD NEW"},
		"nobody answers":      {args: []string{at, "127.0.0.1:1"}, want: "compare: 127.0.0.1:1: "},
		"another server":      {args: []string{r.address["http"], at}, want: "compare: " + r.address["http"] + ": "},
		"no such record":      {args: []string{at, at, root + "/none.jsonl"}, want: "none.jsonl"},
		"rules with mistakes": {args: []string{at, at}, environ: []string{"RUNTIME_SUBDIRECTORY=bad"}, want: "/bad/config/a.yaml:2: descriptors: "},
		"rules by xDS":        {args: []string{at, at}, environ: []string{"CONFIG_TYPE=GRPC_XDS_SOTW"}, want: "rules come by xDS (CONFIG_TYPE=GRPC_XDS_SOTW), name files of recorded requests"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := compareServices(t.Context(), environ(append(test.environ, "RUNTIME_ROOT="+root)...), test.args, &out, &out)
			if err == nil || !strings.Contains(err.Error(), test.want) || out.Len() > 0 {
				t.Errorf("want %q, got %v, and %q", test.want, err, out.String())
			}
		})
	}
}

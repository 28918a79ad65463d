package render

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/printable"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// requestOf returns a watched request from its text.
func requestOf(tb testing.TB, text string) *adminv1.WatchedRequest {
	tb.Helper()
	r := new(adminv1.WatchedRequest)
	if err := prototext.Unmarshal([]byte(text), r); err != nil {
		tb.Fatal(err)
	}
	r.At, r.Took = timestamppb.New(time.Date(2026, 11, 23, 4, 5, 6, 7e6, time.UTC)), durationpb.New(41_300)
	return r
}

func TestAWatchedRequestIsABlockAndTheLineThatDecidesComesFirst(t *testing.T) {
	limits := func(allowed bool, remaining, wait int) string {
		return fmt.Sprintf(`limits { allowed: %t remaining: %d retry_after { seconds: %d } limit { requests_per_unit: 10 burst: 10 period { seconds: 60 } } } hits: 1 `, allowed, remaining, wait)
	}
	d := func(outcome, key, limits string) string {
		return `descriptors { outcome: OUTCOME_` + outcome + ` rule: "` + key + `" file: "rules/edge.yaml" line: 3 entries { key: "` + key + `" } ` + limits + `} `
	}
	w := Watched{Sources: []string{"/etc/weir/rules", "/etc/weir/more.yaml"}}
	got := w.Lines(requestOf(t, `domain: "edge" over_limit: true `+d("OK", "a", limits(true, 1, 0))+d("OVER_LIMIT", "b", limits(false, 0, 2))+d("SHADOWED", "c", limits(false, 0, 9))+d("OVER_LIMIT", "d", limits(false, 0, 5)))) +
		w.Lines(requestOf(t, `domain: "edge" `+d("UNLIMITED", "e", "")+d("OK", "f", limits(true, 7, 0))+d("OK", "g", limits(true, 6, 0)))) +
		w.Lines(requestOf(t, `domain: "edge" `+d("UNLIMITED", "h", "")+d("UNLIMITED", "i", "")))
	const want = `2026-11-23T04:05:06.007Z  over_limit   edge    d=                          d rules/edge.yaml:3         0 left of 10 per 1m, retry after 5s, in 41µs
                          ok                   a=                          a rules/edge.yaml:3         1 left of 10 per 1m
                          over_limit           b=                          b rules/edge.yaml:3         0 left of 10 per 1m, retry after 2s
                          shadowed             c=                          c rules/edge.yaml:3         0 left of 10 per 1m, retry after 9s
2026-11-23T04:05:06.007Z  ok           edge    g=                          g rules/edge.yaml:3         6 left of 10 per 1m, in 41µs
                          unlimited            e=                          e rules/edge.yaml:3
                          ok                   f=                          f rules/edge.yaml:3         7 left of 10 per 1m
2026-11-23T04:05:06.007Z  unlimited    edge    h=                          h rules/edge.yaml:3         in 41µs
                          unlimited            i=                          i rules/edge.yaml:3
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAPlaceOfAWatchIsRelativeToTheRulesThatTheServerReads(t *testing.T) {
	w := Watched{Sources: []string{"/etc/weir/rules/", "/srv/one.yaml", "rules", "xds://plane:18000"}}
	for file, want := range map[string]string{
		"/etc/weir/rules/edge.yaml":       "rules/edge.yaml",
		"/etc/weir/rules/team/edge.yaml":  "rules/team/edge.yaml",
		"/etc/weir/rulesold/edge.yaml":    "/etc/weir/rulesold/edge.yaml",
		"/srv/one.yaml":                   "one.yaml",
		"/srv/two.yaml":                   "/srv/two.yaml",
		"rules/edge.yaml":                 "rules/edge.yaml",
		"xds://plane:18000/config/edge":   "xds://plane:18000/config/edge",
		"":                                "",
		"/etc/weir/rules/../../etc/other": "/etc/weir/rules/../../etc/other",
	} {
		if got := w.file(file); got != want {
			t.Errorf("%q: got %q, want %q", file, got, want)
		}
	}
}

func TestWatchedRequestsAreAlignedLines(t *testing.T) {
	var w Watched
	got := w.Header()
	limit := `limits { allowed: %t remaining: %d retry_after { seconds: %d } source: "%s" limit { requests_per_unit: 10 burst: %d period { seconds: %d } } }`
	for _, text := range []string{
		`domain: "edge" descriptors { outcome: OUTCOME_OK hits: 1 rule: "path=/cart" file: "rules.yaml" line: 3 entries { key: "path" value: "/cart" } ` + fmt.Sprintf(limit, true, 9, 0, "memory", 10, 60) + `}`,
		`domain: "edge" over_limit: true
		 descriptors { outcome: OUTCOME_OVER_LIMIT hits: 5 rule: "path,client" file: "rules.yaml" line: 7 entries { key: "path" value: "/a b" } entries { key: "client" value: "c1" } ` +
			fmt.Sprintf(limit, true, 7, 0, "lease", 10, 1) + fmt.Sprintf(limit, false, 0, 30, "remembered denial", 12, 86400) + `}
		 descriptors { outcome: OUTCOME_UNMATCHED hits: 1 entries { key: "pathh" value: "/cart" } nearest_miss { why: "key \"pathh\": this level has path" } }`,
		`domain: "edge" descriptors { outcome: OUTCOME_OK hits: 1 rule: "model" file: "r.yaml" line: 1 entries { key: "model" } limits { allowed: true remaining: 1 source: "without redis" grant: "g1" limit { requests_per_unit: 2 burst: 2 } } }`,
		`domain: "edge" descriptors { outcome: OUTCOME_OVER_LIMIT hits: 13 override: true entries { key: "o" } ` + fmt.Sprintf(limit, false, 12, 2, "memory", 12, 60) + `}
		 descriptors { outcome: OUTCOME_OVER_LIMIT hits: 1 entries { key: "ban" } limits { retry_after { seconds: 9 } limit { period { seconds: 60 } } } }`,
		`domain: "edge" descriptors { outcome: OUTCOME_UNLIMITED hits: 1 rule: "free" file: "x" entries { key: "free" value: "" } }`,
		`domain: "" error: "rate limit domain must not be empty"`,
	} {
		got += w.Lines(requestOf(t, text))
	}
	want := `TIME                      OUTCOME      DOMAIN  DESCRIPTOR                  RULE                        RESULT
2026-11-23T04:05:06.007Z  ok           edge    path=/cart                  path=/cart rules.yaml:3     9 left of 10 per 1m, in 41µs
2026-11-23T04:05:06.007Z  over_limit   edge    'path=/a b,client=c1'       path,client rules.yaml:7    5 hits, 0 left of 10 per 1d with a burst of 12, retry after 30s, by remembered denial, in 41µs
                          unmatched            pathh=/cart                 -                           key "pathh": this level has path
2026-11-23T04:05:06.007Z  ok           edge    model=                      model r.yaml:1              1 left of 2 at once, without redis, grant g1, in 41µs
2026-11-23T04:05:06.007Z  over_limit   edge    ban=                        -                           0 left of 0 per 1m, these hits never pass, in 41µs
                          over_limit           o=                          -                           13 hits, 12 left of 10 per 1m with a burst of 12 by override, these hits never pass
2026-11-23T04:05:06.007Z  unlimited    edge    free=                       free x                      in 41µs
2026-11-23T04:05:06.007Z  failed       -       -                           -                           rate limit domain must not be empty, in 41µs
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// hostile is a text that a client may send to harm a terminal, or to look like another line.
const hostile = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202e\r\nok  edge\x00\x7f\t<script>alert(1)</script>\u2028\U000e0041"

func TestLinesOfATerminalObeyNoClient(t *testing.T) {
	r := requestOf(t, "")
	r.Domain, r.Error = hostile, hostile
	huge := strings.Repeat(hostile, 10_000)
	for range 30 {
		d := &adminv1.WatchedDescriptor{Rule: hostile, File: hostile, NearestMiss: &adminv1.NearestMiss{Why: hostile}, Limits: []*adminv1.WatchedLimit{{Grant: hostile}}}
		for range 100 {
			d.Entries = append(d.Entries, &adminv1.Entry{Key: hostile, Value: huge})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	var w Watched
	var s WatchSummary
	s.Add(r)
	failed := requestOf(t, "")
	failed.Error = hostile
	text := w.Lines(r) + w.Lines(failed) + s.String()
	if n := strings.Count(text, "\n"); n != maxShownDescriptors+1+1+3 {
		t.Errorf("got %d lines; want %d", n, maxShownDescriptors+5)
	}
	for _, c := range strings.ReplaceAll(text, "\n", "") {
		if !strconv.IsPrint(c) {
			t.Fatalf("a line has the character %q", c)
		}
	}
	if len(text) > 1<<20 || w.widths[3] > 56 {
		t.Errorf("the lines have %d bytes, and a column is %d wide; want both bounded", len(text), w.widths[3])
	}
	if part := `\x1b[2J\x1b]0;owned\a\u009b31m\u202e\r\nok  edge\x00\x7f\t<script>`; !strings.Contains(text, part) {
		t.Errorf("got\n%.500s\nwant %s", text, part)
	}
}

func TestJSONForATerminalMeansTheSame(t *testing.T) {
	data, err := json.Marshal(hostile + "é")
	if err != nil {
		t.Fatal(err)
	}
	out := printable.JSON(data)
	for _, c := range string(out) {
		if !strconv.IsPrint(c) {
			t.Errorf("got the character %q in %s", c, out)
		}
	}
	var back string
	if err := json.Unmarshal(out, &back); err != nil || back != hostile+"é" {
		t.Errorf("got %q, %v; want the same text", back, err)
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add(hostile)
	f.Add("\xff\xef\xbf\xbdx")
	f.Fuzz(func(t *testing.T, text string) {
		got := printable.Text(text)
		for _, c := range got {
			if !strconv.IsPrint(c) {
				t.Errorf("printable.Text(%q) has %q", text, c)
			}
		}
		if !utf8.ValidString(got) {
			t.Errorf("printable.Text(%q) is no UTF-8", text)
		}
	})
}

func TestASummaryCountsByRuleAndByKeysWithoutOne(t *testing.T) {
	var s WatchSummary
	if got := s.String(); got != "0 requests, 0 over limit\n" {
		t.Errorf("empty: got %q", got)
	}
	for i := range 12_000 {
		r := requestOf(t, `domain: "edge" over_limit: true descriptors { outcome: OUTCOME_OVER_LIMIT rule: "a" } descriptors { outcome: OUTCOME_UNMATCHED entries { key: "b" value: "1" } entries { key: "c" } }`)
		if i > 0 {
			r = requestOf(t, `domain: "edge" descriptors { outcome: OUTCOME_OK rule: "a" }`)
		}
		if i >= 2 {
			r.Descriptors[0].Rule = fmt.Sprintf("r%d", i)
		}
		s.Add(r)
	}
	got := strings.Split(s.String(), "\n")
	want := []string{
		"12000 requests, 1 over limit",
		"DOMAIN  RULE          DESCRIPTORS  OUTCOMES",
		"edge    a             2            ok 1, over_limit 1",
		"edge    none for b,c  1            unmatched 1",
	}
	for i, line := range want {
		if got[i] != line {
			t.Errorf("line %d: got %q, want %q", i, got[i], line)
		}
	}
	if last := got[len(got)-2]; len(got) != 2+maxSummary+2 || last != "and 9950 more rules, and 2000 descriptors that were not counted apart" {
		t.Errorf("got %d lines, the last %q", len(got), last)
	}
}

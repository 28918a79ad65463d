package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func TestEntriesOfTheCommandLine(t *testing.T) {
	tests := []struct {
		name, text string
		want       []descriptors.Entry
	}{
		{"one", "a=b", []descriptors.Entry{{Key: "a", Value: "b"}}},
		{"several", "a=b,c=d,e=", []descriptors.Entry{{Key: "a", Value: "b"}, {Key: "c", Value: "d"}, {Key: "e"}}},
		{"escaped", `a\=1=b\,c\\,d=e=f`, []descriptors.Entry{{Key: "a=1", Value: `b,c\`}, {Key: "d", Value: "e=f"}}},
		{"spaces_count", "a= b", []descriptors.Entry{{Key: "a", Value: " b"}}},
		{"empty", "", nil},
		{"no_value", "a=b,c", nil},
		{"no_key", "a=b,=c", nil},
		{"end", "a=b,", nil},
		{"backslash_at_the_end", `a=b\`, nil},
		{"backslash_before_a_letter", `a=\n`, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseEntries(test.text)
			if (err != nil) != (test.want == nil) {
				t.Fatalf("parseEntries(%q) = %v", test.text, err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("parseEntries(%q) (-want +got):\n%s", test.text, diff)
			}
		})
	}
}

func FuzzEntriesComeBackAsTheyWereWritten(f *testing.F) {
	f.Add("key", "value", "k", "")
	f.Add(`\`, "=,", `=`, `\\`)
	escape := strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`)
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		if k1 == "" || k2 == "" {
			t.Skip()
		}
		text := fmt.Sprintf("%s=%s,%s=%s", escape.Replace(k1), escape.Replace(v1), escape.Replace(k2), escape.Replace(v2))
		got, err := parseEntries(text)
		if want := []descriptors.Entry{{Key: k1, Value: v1}, {Key: k2, Value: v2}}; err != nil || !cmp.Equal(got, want) {
			t.Errorf("parseEntries(%q) = %q, %v; want %q", text, got, err, want)
		}
	})
}

func FuzzRequestLine(f *testing.F) {
	f.Add("request a 0")
	f.Add("request\ta  -9223372036 4294967295")
	f.Add("request \"\xff\\ 1 2 3")
	f.Fuzz(func(t *testing.T, line string) {
		q, err := parseRequest([]byte(line), time.Second)
		if err != nil {
			return
		}
		fields := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\v\f\r", r) })
		if len(fields) < 3 || string(q.client) != fields[1] || q.hits < 0 || q.hits > algorithms.MaxHits ||
			q.at != algorithms.Instant(q.timestamp)*1e9 {
			t.Fatalf("parseRequest(%q) = %+v", line, q)
		}
		var back struct {
			Client    string
			Timestamp int64
		}
		if err := json.Unmarshal(appendJSON(nil, q, algorithms.Decision{}, false), &back); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if want := string(q.client); back.Timestamp != q.timestamp || utf8.ValidString(want) && back.Client != want {
			t.Errorf("%q came back as %+v", line, back)
		}
	})
}

func TestALineThatNeverEndsIsRefused(t *testing.T) {
	l := newLines(strings.NewReader("# short\n" + strings.Repeat("x", maxLine+1)))
	if _, err := l.next(); err == nil || !strings.HasPrefix(err.Error(), "line 2: is longer than") {
		t.Errorf("got %v", err)
	}
}

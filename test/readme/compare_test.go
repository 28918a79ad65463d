package readme

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tolerance is how much longer or shorter a wait may be than the document says: a busy machine
// takes its time between two commands.
const tolerance = 15 * time.Second

// waits match a time to wait; the last group is that time, as a Go duration or in seconds.
var waits = []*regexp.Regexp{
	regexp.MustCompile(`"durationUntilReset":\s*"([0-9.]+s)"`),
	regexp.MustCompile(`"(?:retry|reset)_?[aA]fter":\s*"([0-9.]+s)"`),
	regexp.MustCompile(`(?i)(?:x-ratelimit-reset|retry-after|ratelimit-reset): ([0-9]+)`),
	regexp.MustCompile(`\b(?:in|after) ([0-9][0-9.hmsµn]*[hms])\b`),
	regexp.MustCompile(`;t=([0-9]+)`),
}

// passing match the parts that differ at every run.
var passing = []*regexp.Regexp{
	regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z`),
	regexp.MustCompile(`(?mi)^date: .*$`),
	regexp.MustCompile(`x-envoy-upstream-service-time: [0-9]+`),
	regexp.MustCompile(`[0-9]\.[0-9]+e\+09\b`),    // a time in Unix seconds
	regexp.MustCompile(`\bgrant +[0-9a-f]{16}\b`), // the id of a grant
}

// column matches the space before a wait in a table, or before the head of its column, which is as
// wide as the longest wait.
var column = regexp.MustCompile(` {2,}(RESET\b|in [0-9])`)

// differ returns how the output differs from the document, or "". anyWait takes waits of any
// length.
func differ(want, got string, anyWait bool) string {
	want, wantWaits := plain(want)
	got, gotWaits := plain(got)
	if !matches(strings.Split(want, "\n"), strings.Split(got, "\n")) {
		return cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n"))
	}
	if anyWait || strings.Contains(want, "…\n") {
		return ""
	}
	for i := range wantWaits {
		if difference := wantWaits[i] - gotWaits[i]; difference.Abs() > tolerance {
			return fmt.Sprintf("wait %d: got %v, the document says %v", i+1, gotWaits[i], wantWaits[i])
		}
	}
	return ""
}

// plain returns a text without the parts that may differ, and the waits in the text. JSON is spaced
// anew.
func plain(text string) (string, []time.Duration) {
	text = strings.ReplaceAll(text, "\r", "")
	if spaced, err := spaceJSON(text); err == nil {
		text = spaced
	} else {
		text = partOfJSON.ReplaceAllStringFunc(text, tight)
	}
	for _, p := range passing {
		text = p.ReplaceAllString(text, "<passing>")
	}
	text = column.ReplaceAllString(text, "  $1")
	var all []time.Duration
	for _, w := range waits {
		text = w.ReplaceAllStringFunc(text, func(found string) string {
			wait := w.FindStringSubmatch(found)[1]
			d, err := time.ParseDuration(wait)
			if err != nil {
				seconds, _ := strconv.Atoi(wait) // as the expression has it
				d = time.Duration(seconds) * time.Second
			}
			all = append(all, d)
			return strings.Replace(found, wait, "<wait>", 1)
		})
	}
	return strings.TrimRight(text, "\n") + "\n", all
}

// spaceJSON returns a text of JSON objects with the space that the encoder of protobuf varies on
// purpose as it is everywhere else.
func spaceJSON(text string) (string, error) {
	var out bytes.Buffer
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		var value json.RawMessage
		switch err := dec.Decode(&value); {
		case errors.Is(err, io.EOF) && out.Len() > 0:
			return out.String(), nil
		case err != nil:
			return "", err
		}
		if value[0] != '{' {
			return "", errors.New("not an object")
		}
		if err := json.Indent(&out, value, "", "  "); err != nil {
			return "", err
		}
		out.WriteString("\n")
	}
}

// partOfJSON matches lines of JSON in a text that is more than that.
var partOfJSON = regexp.MustCompile(`(?m)^[{"].*$`)

// tight returns a line of JSON without space between its parts.
func tight(line string) string {
	var out strings.Builder
	inText := false
	for i := range len(line) {
		if line[i] == '"' && (i == 0 || line[i-1] != '\\') {
			inText = !inText
		}
		if inText || line[i] != ' ' {
			out.WriteByte(line[i])
		}
	}
	return out.String()
}

// matches reports whether lines are the wanted ones, of which `…` stands for any.
func matches(want, got []string) bool {
	for i, line := range want {
		if strings.TrimSpace(line) == "…" {
			for skip := 0; skip <= len(got)-i; skip++ {
				if matches(want[i+1:], got[i+skip:]) {
					return true
				}
			}
			return false
		}
		if i >= len(got) || got[i] != line {
			return false
		}
	}
	return len(want) == len(got)
}

func TestWhatDiffersAtEveryRunDoesNotCountAndAllElseDoes(t *testing.T) {
	tests := []struct {
		name, want, got string
		same            bool
	}{
		{"the same", "a\nb\n", "a\r\nb\n", true},
		{"another word", "a\nb\n", "a\nc\n", false},
		{"a line more", "a\n", "a\nb\n", false},
		{"left out", "a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"left out at the end", "a\n…\n", "a\nb\nc\n", true},
		{"left out, and another end", "a\n…\nd\n", "a\nb\nc\n", false},
		{"a date", "date: Sat\n", "date: Sun\n", true},
		{"a time", `"at": "2026-11-21T06:23:13.7Z"`, `"at": "2027-01-01T00:00:00Z"`, true},
		{"the id of a grant", "grant   34cdc93cb56c4910\n", "grant   0ef4661c3b2aa8f5\n", true},
		{"another length of an id", "grant   34cdc93cb56c4910\n", "grant   0ef4661c\n", false},
		{"space in JSON", `{"a": 1, "b":{"c":[]}}`, `{"a":1,"b":{ "c":[] }}`, true},
		{"space in JSON and a line more", `{"a": "b, c",  "d":1}` + "\n200\n", `{"a":"b, c","d":1}` + "\n200\n", true},
		{"space in a text in JSON", `{"a": "b, c"}` + "\n200\n", `{"a": "b,c"}` + "\n200\n", false},
		{"a number in JSON", `{"a": 1}`, `{"a": 2}`, false},
		{"a wait a little shorter", `{"durationUntilReset": "40s"}`, `{"durationUntilReset":"39s"}`, true},
		{"a wait much shorter", `{"durationUntilReset": "40s"}`, `{"durationUntilReset":"4s"}`, false},
		{"a header a little shorter", "retry-after: 20\n", "retry-after: 19\n", true},
		{"a header much longer", "retry-after: 20\n", "retry-after: 60\n", false},
		{"words a little shorter", "pass in 59.9s, reset after 60s\n", "pass in 58.1s, reset after 59s\n", true},
		{"words much shorter", "reset after 59.9s\n", "reset after 5s\n", false},
		{"a table with a shorter wait", "LEFT     RESET\n   1  in 54m0s\n", "LEFT      RESET\n   1  in 53m58s\n", true},
		{"a table with another number", "LEFT     RESET\n   1  in 54m0s\n", "LEFT     RESET\n   2  in 54m0s\n", false},
		{"no wait at all", "retry-after: 20\n", "retry-after: soon\n", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := differ(test.want, test.got, false); (diff == "") != test.same {
				t.Errorf("got %q, want the same: %t", diff, test.same)
			}
		})
	}
	if diff := differ("retry-after: 20\n", "retry-after: 6000\n", true); diff != "" {
		t.Errorf("any wait: got %q, want the same", diff)
	}
}

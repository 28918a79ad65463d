package descriptors

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// counted is the content of a key. Two charges share a count if and only if their contents are
// equal.
type counted struct {
	Domain  string
	Entries []countedEntry
	Limit   string
}

type countedEntry struct {
	Key, Value string
	Shared     bool // Value is a pattern
}

// readKey reads a key back. That this gives everything that went into the key shows that no two
// different things have the same key.
func readKey(key string) (c counted, err error) {
	text := func(marks string) (s string, mark byte) {
		end := strings.IndexAny(key, marks)
		if end < 0 {
			err = fmt.Errorf("no length in %q", key)
			return "", 0
		}
		n, e := strconv.Atoi(key[:end])
		if e != nil || n > len(key)-end-1 {
			err = fmt.Errorf("bad length in %q", key)
			return "", 0
		}
		s, mark, key = key[end+1:end+1+n], key[end], key[end+1+n:]
		return s, mark
	}
	c.Domain, _ = text(":")
	for err == nil && strings.HasPrefix(key, "|") {
		var e countedEntry
		key = key[1:]
		if e.Key, _ = text(":"); err != nil || !strings.HasPrefix(key, "=") {
			return c, errors.Join(err, fmt.Errorf("no = at %q", key))
		}
		key = key[1:]
		var mark byte
		e.Value, mark = text(":*~")
		e.Shared = mark == '*'
		c.Entries = append(c.Entries, e)
	}
	if err == nil && !strings.HasPrefix(key, "#") {
		err = fmt.Errorf("no limit at %q", key)
	}
	c.Limit = key
	return c, err
}

func checkKey(t interface {
	Helper()
	Fatalf(string, ...any)
}, want counted, limit Limit,
) {
	t.Helper()
	rule := &Rule{}
	var entries []Entry
	shared := false
	for _, e := range want.Entries {
		l, value := Level{}, e.Value
		if e.Shared {
			l, value, shared = Level{Value: e.Value, ShareThreshold: true}, "whatever matches", true
		}
		rule.Levels = append(rule.Levels, l)
		entries = append(entries, Entry{e.Key, value})
	}
	want.Limit = limit.suffix
	key := rule.AppendKey([]byte("kept:"), want.Domain, entries, &limit)
	got, err := readKey(strings.TrimPrefix(string(key), "kept:"))
	if err != nil {
		t.Fatalf("key %q of %+v: %v", key, want, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("key %q (-want +got):\n%s", key, diff)
	}
	if domain := KeyDomain(key[len("kept:"):]); domain == nil || string(domain) != want.Domain {
		t.Fatalf("domain of the key %q: got %q, want %q", key, domain, want.Domain)
	}
	var readable []string
	for _, e := range want.Entries {
		readable = append(readable, e.Key+"="+e.Value)
	}
	if got, want := ReadableKey(string(key[len("kept:"):])), strings.Join(readable, ", "); len(readable) > 0 && got != want {
		t.Fatalf("key %q for people: got %q, want %q", key, got, want)
	}
	if own := AppendKey([]byte("kept:"), want.Domain, entries, &limit); (string(own) == string(key)) == shared {
		t.Fatalf("the descriptor's own key is %q, that of a rule %q, with share_threshold %t", own, key, shared)
	}
}

func TestNoTwoDescriptorsHaveTheSameKey(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("4:|=#*.12a\x00é")), 0, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		want := counted{Domain: text.Draw(t, "domain")}
		want.Entries = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) countedEntry {
			return countedEntry{text.Draw(t, "key"), text.Draw(t, "value"), rapid.Bool().Draw(t, "shared")}
		}), 0, 4).Draw(t, "entries")
		if len(want.Entries) == 0 {
			want.Entries = nil
		}
		checkKey(t, want, NewLimit(algorithms.Limit{Algorithm: algorithms.TokenBucket, Period: time.Second}, Second, 1, false, 1))
	})
}

func FuzzKey(f *testing.F) {
	f.Add("edge", "path", "/search", false, "client_id", "c1", true)
	f.Add("1:a|", "|1:a=1:b#", "=0:|", true, "", "4*####", false)
	f.Fuzz(func(t *testing.T, domain, key1, value1 string, shared1 bool, key2, value2 string, shared2 bool) {
		checkKey(t, counted{Domain: domain, Entries: []countedEntry{{key1, value1, shared1}, {key2, value2, shared2}}},
			NewLimit(algorithms.Limit{Algorithm: algorithms.FixedWindow, Period: 90 * time.Second}, Second, 90, true, 2))
	})
}

func TestBytesThatAreNoKeyHaveNoDomain(t *testing.T) {
	for _, key := range []string{
		"", ":", "edge", "4:edge", "4:edg|", "4:edge=", "5:edge|", "04:edge|", "00:|", "-4:edge|", "+4:edge|", "4 :edge|", ":edge|",
		"4edge|", "999999999:edge|", "1000000004:edge|", "18446744073709551620:edge|",
	} {
		if got := KeyDomain([]byte(key)); got != nil {
			t.Errorf("%q: got the domain %q, want none", key, got)
		}
	}
}

func TestTheEntriesOfAKeyAreReadable(t *testing.T) {
	for key, want := range map[string]string{
		"4:edge|4:path=7:/search|9:client_id=2:c1#token_bucket/1s": "path=/search, client_id=c1",
		"4:edge|4:plan=6*free_*#fixed_window/1d":                   "plan=free_*",
		"4:edge|1:a=3:x|y#concurrency":                             "a=x|y",
		"nonsense":                                                 "nonsense",
		"4:edge":                                                   "4:edge",
		"99:edge|":                                                 "99:edge|",
		"4:edge|9999999999:a=1:b#x":                                "4:edge|9999999999:a=1:b#x",
		"4*edge|1:a=1:b#x":                                         "4*edge|1:a=1:b#x",
		"4:edge|1*a=1:b#x":                                         "4:edge|1*a=1:b#x",
		"4:edge|1:a":                                               "4:edge|1:a",
		"4:edge|1:a=1:b":                                           "4:edge|1:a=1:b",
		"4:edge#concurrency":                                       "4:edge#concurrency",
	} {
		if got := ReadableKey(key); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
}

// FuzzKeyDomain: bytes begin with the domain that KeyDomain finds in them.
func FuzzKeyDomain(f *testing.F) {
	for _, key := range []string{"4:edge|4:path=7:/search#token_bucket/1s", "0:#fixed_window/1s", "4:edge", "3:4:||"} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		domain := KeyDomain(key)
		if domain == nil {
			return
		}
		if rest, ok := bytes.CutPrefix(key, appendText(nil, ':', string(domain))); !ok || rest[0] != '|' && rest[0] != '#' {
			t.Errorf("key %q is said to have the domain %q", key, domain)
		}
		if cap(domain) != len(domain) {
			t.Errorf("to append to the domain of %q would write over the key", key)
		}
	})
}

func TestTheBaseOfAKeyNamesDomainAndEntries(t *testing.T) {
	for key, want := range map[string]string{
		"4:edge|4:path=7:/search|9:client_id=2:c1#token_bucket/1s": "4:edge|4:path=7:/search|9:client_id=2:c1",
		"4:edge|4:plan=6*free_*#fixed_window/1d.2":                 "4:edge|4:plan=6*free_*",
		"4:edge|1:a=3:x#y#concurrency/cut":                         "4:edge|1:a=3:x#y",
		"4:edge|1:a=3:x#y#token_bucket/1s/learned/a#b}|1:c=1:d#e":  "4:edge|1:a=3:x#y",
		"4:edge#concurrency":                                       "4:edge",
		"4:edge|1:a=1:b":                                           "",
		"4:edge|1*a=1:b#x":                                         "",
		"4:edge|1:a#x":                                             "",
		"4*edge#x":                                                 "",
		"nonsense#x":                                               "",
	} {
		if got := KeyBase([]byte(key)); string(got) != want || cap(got) != len(got) {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}

func TestLimitsHaveTheSameKeyOnlyWithAlgorithmPeriodAndOrdinal(t *testing.T) {
	type same struct {
		algorithm algorithms.Algorithm
		period    time.Duration
		ordinal   int
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) (same, Limit) {
			s := same{
				rapid.SampledFrom(algorithms.RateAlgorithms()).Draw(t, name),
				time.Duration(rapid.Int64Range(1, 100).Draw(t, name) * rapid.SampledFrom([]int64{1e6, 1e9, 60e9, 3600e9, 86400e9, 1}).Draw(t, name)),
				rapid.IntRange(1, 12).Draw(t, name),
			}
			l := algorithms.Limit{Algorithm: s.algorithm, Period: s.period, Requests: rapid.Uint32().Draw(t, name)}
			return s, NewLimit(l, UnitUnknown, 0, rapid.Bool().Draw(t, name), s.ordinal)
		}
		a, limitA := draw("a")
		b, limitB := draw("b")
		keyA, keyB := AppendKey(nil, "edge", nil, &limitA), AppendKey(nil, "edge", nil, &limitB)
		if (a == b) != (string(keyA) == string(keyB)) {
			t.Fatalf("keys %q of %+v and %q of %+v", keyA, a, keyB, b)
		}
	})
}

func TestOrdinalBelowTwoIsTheFirst(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Second}
	for ordinal, want := range map[int]string{-1: "#fixed_window/1s", 0: "#fixed_window/1s", 1: "#fixed_window/1s", 2: "#fixed_window/1s.2", 12: "#fixed_window/1s.12"} {
		if got := NewLimit(l, Second, 1, true, ordinal).suffix; got != want {
			t.Errorf("ordinal %d: got %q, want %q", ordinal, got, want)
		}
	}
}

func TestTextsOfEveryLengthFollowTheirLengthInDigits(t *testing.T) {
	for _, length := range []int{0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 65536} {
		text := strings.Repeat("x", length)
		key := AppendKey(nil, "d", []Entry{{Key: "k", Value: text}}, &Limit{})
		if want := fmt.Sprintf("1:d|1:k=%d:%s", length, text); string(key) != want {
			t.Errorf("length %d: key %.20q, want %.20q", length, key, want)
		}
	}
}

func TestOriginalKeysEqualKeysOfTheOriginal(t *testing.T) {
	minute := NewLimit(algorithms.Limit{Algorithm: algorithms.FixedWindow, Period: time.Minute}, Minute, 1, true, 1)
	for _, test := range []struct {
		entries []Entry
		want    string
	}{
		{[]Entry{{"plain", "ov"}}, "d_plain_ov_"},
		{[]Entry{{"path", "/search"}, {"client_id", "c1"}}, "d_path_/search_client_id_c1_"},
		{[]Entry{{"k", ""}}, "d_k__"},
		{[]Entry{{"k", "a|b=c:#fixed_window/1s"}}, "d_k_a|b=c:#fixed_window/1s_"},
		{[]Entry{{"k", "v3"}, {"k2", "v2"}}, "d_k_v3_k2_v2_"}, // and so is the next: the original does not tell them apart
		{[]Entry{{"k", "v3_k2_v2"}}, "d_k_v3_k2_v2_"},
	} {
		name, counted := AppendOriginalKey([]byte("p:"), AppendKey(nil, "d", test.entries, &minute))
		if string(name) != "p:"+test.want || !counted {
			t.Errorf("%v: %q, %v; want p:%s", test.entries, name, counted, test.want)
		}
	}
}

// A level that shares gives its pattern, as in the original.
func TestOriginalKeysOfSharedPatterns(t *testing.T) {
	r := load(t, `
domain: d
descriptors:
  - {key: path, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`)
	entries := []Entry{{"path", "files/a.pdf"}}
	rule := r.Domain("d").Match(entries)
	name, counted := AppendOriginalKey(nil, rule.AppendKey(nil, "d", entries, &rule.Limits[0]))
	if string(name) != "d_path_files/*_" || !counted {
		t.Errorf("%q, %v", name, counted)
	}
}

func TestOnlyLimitsOfTheOriginalHaveOriginalKeys(t *testing.T) {
	entries := []Entry{{"k", "v"}}
	for _, test := range []struct {
		algorithm algorithms.Algorithm
		period    time.Duration
		ordinal   int
		want      bool
	}{
		{algorithms.FixedWindow, time.Second, 1, true},
		{algorithms.FixedWindow, time.Minute, 1, true},
		{algorithms.FixedWindow, time.Hour, 1, true},
		{algorithms.FixedWindow, 24 * time.Hour, 1, true},
		{algorithms.FixedWindow, 7 * 24 * time.Hour, 1, true},
		{algorithms.FixedWindow, 30 * 24 * time.Hour, 1, true},
		{algorithms.FixedWindow, 365 * 24 * time.Hour, 1, true},
		{algorithms.FixedWindow, time.Second, 2, false},
		{algorithms.FixedWindow, 10 * time.Second, 1, false},
		{algorithms.FixedWindow, 60 * time.Hour, 1, false},
		{algorithms.FixedWindow, time.Millisecond, 1, false},
		{algorithms.TokenBucket, time.Second, 1, false},
		{algorithms.SlidingWindowLog, time.Minute, 1, false},
		{algorithms.SlidingWindowCounter, time.Hour, 1, false},
		{algorithms.TokenBucketInteger, time.Hour, 1, false},
	} {
		l := NewLimit(algorithms.Limit{Algorithm: test.algorithm, Period: test.period}, 0, 1, true, test.ordinal)
		key := AppendKey(nil, "d", entries, &l)
		name, counted := AppendOriginalKey([]byte("p"), key)
		if counted != test.want || !counted && string(name) != "p" {
			t.Errorf("%s: %q, %v; want %v", key, name, counted, test.want)
		}
	}
}

// Keys of limits that the original does not have keep the limits apart.
func TestRulesOfSeveralLimitsHaveNoOriginalKeys(t *testing.T) {
	const document = `
domain: d
descriptors:
  - key: one
    rate_limits: [{unit: second, requests_per_unit: 1}]
  - key: two
    rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]
`
	for _, original := range []bool{false, true} {
		r := must.First(Load([]Source{{Name: "x", Data: []byte(document)}}, Options{OriginalKeys: original}))(t)
		for key, want := range map[string]bool{"one": true, "two": !original} {
			entries := []Entry{{key, "v"}}
			rule := r.Domain("d").Match(entries)
			for i := range rule.Limits {
				text := rule.AppendKey(nil, "d", entries, &rule.Limits[i])
				if _, counted := AppendOriginalKey(nil, text); counted != want {
					t.Errorf("with OriginalKeys %v %s is one of the original's: %v; want %v", original, text, counted, want)
				}
			}
		}
	}
}

// The original's key has the texts of our key, in the same order, for any texts.
func TestOriginalKeysOfAnyTexts(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab_:|=#*01/é\x00")), 0, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		domain := text.Draw(t, "domain")
		want := domain + "_"
		entries := make([]Entry, rapid.IntRange(1, 4).Draw(t, "entries"))
		for i := range entries {
			entries[i] = Entry{text.Draw(t, "key"), text.Draw(t, "value")}
			want += entries[i].Key + "_" + entries[i].Value + "_"
		}
		l := NewLimit(algorithms.Limit{Algorithm: algorithms.FixedWindow, Period: time.Hour}, Hour, 1, true, 1)
		name, counted := AppendOriginalKey(nil, AppendKey(nil, domain, entries, &l))
		if string(name) != want || !counted {
			t.Errorf("%q, %v; want %q", name, counted, want)
		}
	})
}

// FuzzAppendOriginalKey: bytes that are no key of ours leave dst unchanged, and nothing panics.
func FuzzAppendOriginalKey(f *testing.F) {
	for _, seed := range []string{
		"", "1:d", "1:d#fixed_window/1s", "1:d|1:k=1:v#fixed_window/1s", "1:d|1:k#fixed_window/1s", "1:d|1:k=1*v#fixed_window/7d",
		"9:d|1:k=1:v", "99999999999999999999:d", "1:d|1:k=9:v#fixed_window/1s", "01:d|1:k=1:v#fixed_window/1s", "1*d|1:k=1:v#fixed_window/1s",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		before := string(key)
		name, counted := AppendOriginalKey([]byte("p"), key)
		if !counted && string(name) != "p" || counted && (!strings.HasPrefix(string(name), "p") || len(name) > 1+len(key)) {
			t.Errorf("%q: %q, %v", key, name, counted)
		}
		if string(key) != before {
			t.Errorf("the key is %q now; it was %q", key, before)
		}
	})
}

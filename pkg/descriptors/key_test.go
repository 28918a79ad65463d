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
		e.Value, mark = text(":*")
		e.Shared = mark == '*'
		c.Entries = append(c.Entries, e)
	}
	if err == nil && !strings.HasPrefix(key, "#") {
		err = fmt.Errorf("no limit at %q", key)
	}
	c.Limit = key
	return c, err
}

// checkKey makes the key of a charge and reads it back.
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

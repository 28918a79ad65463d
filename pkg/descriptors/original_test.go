package descriptors

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
)

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
		r, _, err := Load([]Source{{Name: "x", Data: []byte(document)}}, Options{OriginalKeys: original})
		if err != nil {
			t.Fatal(err)
		}
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

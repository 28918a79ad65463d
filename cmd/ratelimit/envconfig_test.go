package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/testing/must"
)

// The original reads its environment with envconfig. Weir takes and refuses the same texts, and
// reads the same values; a row lists the texts that only one of them refuses. envconfig's answers
// are in testdata/envconfig.json: a test in deploy proves them.
func TestValuesAreReadAsTheOriginalReadsThem(t *testing.T) {
	var (
		anInt   int
		flag    bool
		span    time.Duration
		ratio   float64
		many    []string
		tags    map[string]string
		plain   string
		readers = map[string]struct {
			value  settings.Value
			read   func() string
			differ []string // texts that one takes and the other refuses
		}{
			"number":   {settings.Integer(&anInt, -1<<63, 1<<63-1), func() string { return fmt.Sprint(anInt) }, nil},
			"boolean":  {settings.Bool(&flag), func() string { return fmt.Sprint(flag) }, nil},
			"duration": {duration(&span), func() string { return span.String() }, []string{"-1s", "1d"}},
			"fraction": {settings.Fraction(&ratio, 32), func() string { return fmt.Sprint(float32(ratio)) }, []string{"-0.1", "NaN", "Inf"}},
			"list":     {settings.Words(&many), func() string { return fmt.Sprintf("%q", many) }, nil},
			"pairs":    {settings.Pairs(&tags), func() string { return fmt.Sprintf("%q", tags) }, nil},
			"text":     {text(&plain, nil), func() string { return fmt.Sprintf("%q", plain) }, nil},
		}
	)
	content := must.Get(os.ReadFile("testdata/envconfig.json"))(t)
	var answers map[string]map[string]string
	must.Do(t, json.Unmarshal(content, &answers))
	for kind, r := range readers {
		if len(answers[kind]) == 0 {
			t.Errorf("%s: no recorded answers", kind)
		}
		for in, want := range answers[kind] {
			t.Run(kind+"="+in, func(t *testing.T) {
				anInt, flag, span, ratio, many, tags, plain = 0, false, 0, 0, nil, nil, ""
				got := "refused"
				if err := r.value.Set(in); err == nil {
					got = r.read()
				}
				if slices.Contains(r.differ, in) {
					if (want == "refused") == (got == "refused") {
						t.Errorf("envconfig: %s, Weir: %s; want that one of them refuses", want, got)
					}
					return
				}
				if got != want {
					t.Errorf("got %s, want %s as envconfig", got, want)
				}
			})
		}
	}
}

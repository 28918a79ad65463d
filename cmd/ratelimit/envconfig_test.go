package main

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kelseyhightower/envconfig"
)

// The original reads its environment with envconfig: what that takes is taken here and means the same, and what it refuses is
// refused. Where we are narrower, on purpose, the row says so.
func TestValuesAreReadAsTheOriginalReadsThem(t *testing.T) {
	var (
		ours   int
		flag   bool
		span   time.Duration
		ratio  float64
		many   []string
		tags   map[string]string
		plain  string
		theirs struct {
			Number int               `envconfig:"NUMBER"`
			Bool   bool              `envconfig:"BOOL"`
			Span   time.Duration     `envconfig:"SPAN"`
			Ratio  float32           `envconfig:"RATIO"`
			Many   []string          `envconfig:"MANY"`
			Tags   map[string]string `envconfig:"TAGS"`
			Plain  string            `envconfig:"PLAIN"`
		}
	)
	readers := map[string]struct {
		value        value
		ours, theirs func() any
		texts        []string
		narrower     []string // texts that the original takes and we refuse
	}{
		"NUMBER": {
			number(&ours, -1<<63, 1<<63-1), func() any { return ours }, func() any { return theirs.Number },
			[]string{"", "0", "12", "-3", "0x1F", "010", "0o17", "0b11", "1_000", " 1", "1 ", "1.0", "1e3", "ten", "9223372036854775807", "9223372036854775808"},
			nil,
		},
		"BOOL": {
			boolean(&flag), func() any { return flag }, func() any { return theirs.Bool },
			[]string{"", "1", "0", "t", "F", "true", "TRUE", "True", "tRue", "yes", "on", " true"},
			nil,
		},
		"SPAN": {
			duration(&span), func() any { return span }, func() any { return theirs.Span },
			[]string{"", "0", "10", "10s", "1m30s", "1.5h", "150us", "1d", " 1s", "-1s"},
			[]string{"-1s"},
		},
		"RATIO": {
			fraction(&ratio, 32), func() any { return ratio }, func() any { return float64(theirs.Ratio) },
			[]string{"", "0", "0.8", "1", "2", "1e-3", ".5", "0,8", "80%", "-0.1", "NaN", "Inf", "1e99"},
			[]string{"-0.1", "NaN", "Inf"},
		},
		"MANY": {
			list(&many), func() any { return many }, func() any { return theirs.Many },
			[]string{"", " ", "a", "a,b", "a, b", "a,,b", ","},
			nil,
		},
		"TAGS": {
			pairs(&tags), func() any { return tags }, func() any { return theirs.Tags },
			[]string{"", " ", "a:b", "a:b,c:d", "a:", ":b", "a", "a:b:c", "a:b,", "a:b, c:d"},
			nil,
		},
		"PLAIN": {
			text(&plain, nil), func() any { return plain }, func() any { return theirs.Plain },
			[]string{"", " a ", "a,b:c"},
			nil,
		},
	}
	for name, r := range readers {
		for _, in := range r.texts {
			t.Run(name+"="+in, func(t *testing.T) {
				t.Setenv(name, in)
				ours, flag, span, ratio, many, tags, plain = 0, false, 0, 0, nil, nil, ""
				theirs.Number, theirs.Bool, theirs.Span, theirs.Ratio, theirs.Many, theirs.Tags, theirs.Plain = 0, false, 0, 0, nil, nil, ""
				want, got := envconfig.Process("", &theirs), r.value.store(in)
				if slices.Contains(r.narrower, in) {
					if want != nil || got == nil {
						t.Errorf("envconfig says %v, we say %v; want ours alone to refuse it", want, got)
					}
					return
				}
				if (want == nil) != (got == nil) {
					t.Fatalf("envconfig says %v, we say %v", want, got)
				}
				if diff := cmp.Diff(r.theirs(), r.ours(), equateEmpty()); want == nil && diff != "" {
					t.Errorf("(-envconfig +ours):\n%s", diff)
				}
			})
		}
	}
}

// equateEmpty makes none and an empty one the same, as they mean the same.
func equateEmpty() cmp.Option {
	return cmp.FilterValues(func(a, b any) bool { return empty(a) && empty(b) },
		cmp.Comparer(func(_, _ any) bool { return true }))
}

func empty(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Map, reflect.Slice:
		return r.Len() == 0
	default:
		return false
	}
}

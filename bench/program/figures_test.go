package program

import (
	"testing"
	"time"
)

func TestAtIsAPartOfTheSortedOnes(t *testing.T) {
	var all []time.Duration
	for i := range 1000 {
		all = append(all, time.Duration(i+1))
	}
	for part, want := range map[float64]time.Duration{0.5: 501, 0.99: 991, 0.999: 1000, 1: 1000} {
		if got := At(all, part); got != want {
			t.Errorf("%v of 1 to 1000: got %d; want %d", part, got, want)
		}
	}
	if got := At(nil, 0.5); got != 0 {
		t.Errorf("of none: got %v; want 0", got)
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		all  []time.Duration
		want time.Duration
	}{{nil, 0}, {[]time.Duration{5}, 5}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{9, 1, 5, 7}, 6}} {
		if got := Median(test.all); got != test.want {
			t.Errorf("Median(%v) = %v; want %v", test.all, got, test.want)
		}
	}
}

package program

import (
	"fmt"
	"slices"
	"time"
)

// At returns the duration below or at which that part of the sorted ones lies, 0 of none.
func At(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// Median returns the middle of some durations, the mean of the middle two, 0 of none.
func Median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Microseconds returns a duration for a table, with so many decimals; "-" if it is 0.
func Microseconds(d time.Duration, decimals int) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, d.Seconds()*1e6)
}

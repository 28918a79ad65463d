package lane

import (
	"os"
	"strconv"
	"testing"
)

// seeds returns the number of random conversations of a test: so many, or WEIR_LANE_SEEDS for a
// long run.
func seeds(tb testing.TB, usual uint64) uint64 {
	tb.Helper()
	text := os.Getenv("WEIR_LANE_SEEDS")
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tb.Fatalf("WEIR_LANE_SEEDS: %v", err)
	}
	return max(n, usual)
}

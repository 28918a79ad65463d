package records

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestInstantsAreReadExactly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	at := time.Unix(1_800_000_000, 0).UTC()
	for range 10_000 {
		at = at.Add(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
		at = at.Truncate([]time.Duration{1, time.Microsecond, time.Millisecond, time.Second}[r.IntN(4)])
		if got, err := instant(at.Format(time.RFC3339Nano)); err != nil || int64(got) != at.UnixNano() {
			t.Fatalf("%v: got %d, %v", at, got, err)
		}
	}
}

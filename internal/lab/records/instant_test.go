package records

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The instant before does not change an instant.
func FuzzAnInstantInTheLastSecondIsTheSame(f *testing.F) {
	f.Add("2026-11-23T04:31:55Z", "2026-11-23T04:31:55.123456789Z")
	f.Add("2026-11-23T04:31:55.5Z", "2026-11-23T04:31:55.Z")
	f.Add("2026-11-23T4:31:55.5Z", "2026-11-23T4:31:55.Z")
	f.Add("2026-11-23T04:31:55Z", "2026-11-23T04:31:55.1234567891Z")
	f.Add("2026-11-23T04:31:55Z", "2026-11-23T04:31:55,5Z")
	f.Add("2026-11-23T04:31:55Z", "2026-11-23T04:31:55.5+01:00")
	f.Add("2026-11-23T04:31:55+01:00", "2026-11-23T04:31:55Z")
	f.Add("1970-01-01T00:00:00Z", "1969-12-31T23:59:59.9Z")
	f.Fuzz(func(t *testing.T, before, text string) {
		var last second
		_, _ = last.instant(before)
		for _, text := range []string{text, before, text} {
			got, err := last.instant(text)
			want, wantErr := instant(text)
			if got != want || (err == nil) != (wantErr == nil) {
				t.Errorf("%q after %q: got %d, %v, want %d, %v", text, before, got, err, want, wantErr)
			}
		}
	})
}

func TestInstantsAreReadExactly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var last second
	at := time.Unix(1_800_000_000, 0).UTC()
	for range 10_000 {
		at = at.Add(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
		at = at.Truncate([]time.Duration{1, time.Microsecond, time.Millisecond, time.Second}[r.IntN(4)])
		if got, err := last.instant(at.Format(time.RFC3339Nano)); err != nil || int64(got) != at.UnixNano() {
			t.Fatalf("%v: got %d, %v", at, got, err)
		}
	}
}

package drive

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestArrivalsComeAtTheirRateHoweverLongEachTakes(t *testing.T) {
	for name, pause := range map[string]time.Duration{"none": 0, "as_long_as_the_gap": time.Millisecond, "an_hour_once": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, n := time.Now(), 0
				var last time.Time
				for due := range Arrivals(t.Context(), 1000, 10*time.Second) {
					if due.Before(last) || due.After(time.Now()) || due.Sub(begun) >= 10*time.Second {
						t.Fatalf("arrival %d is due after %v, and came after %v", n, due.Sub(begun), time.Since(begun))
					}
					if n == 0 || pause < time.Second {
						time.Sleep(pause)
					}
					last = due
					n++
				}
				if n < 9000 || n > 11_000 { // ten standard deviations
					t.Errorf("%d arrivals in 10 seconds; want about 10000", n)
				}
			})
		})
	}
}

func TestArrivalsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := 0
		for range Arrivals(ctx, 1, 1000*time.Hour) {
			n++
		}
		if got := time.Since(begun); n == 0 || got != time.Second {
			t.Errorf("%d arrivals, the end after %v; want the first, and the end after a second", n, got)
		}
	})
}

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
				wait := func(d time.Duration) bool {
					time.Sleep(d)
					return true
				}
				arrivals(1000, 10*time.Second, wait, func(all []time.Time) bool {
					for _, due := range all {
						if due.Before(last) || due.After(time.Now()) || due.Sub(begun) >= 10*time.Second {
							t.Fatalf("arrival %d is due after %v, and came after %v", n, due.Sub(begun), time.Since(begun))
						}
						last = due
						n++
					}
					if n == len(all) || pause < time.Second {
						time.Sleep(pause)
					}
					return true
				})
				if n < 9000 || n > 11_000 { // ten standard deviations
					t.Errorf("%d arrivals in 10 seconds; want about 10000", n)
				}
			})
		})
	}
}

func TestArrivalsEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for all := range Arrivals(ctx, 1, 1000*time.Hour) {
		n += len(all)
		cancel()
	}
	if n != 1 {
		t.Errorf("%d arrivals; want the first alone", n)
	}
}

func TestArrivalsEndWithTheirLoop(t *testing.T) {
	n := 0
	for all := range Arrivals(t.Context(), 1_000_000, 1000*time.Hour) {
		if n += len(all); n > 100 {
			break
		}
	}
	if n <= 100 {
		t.Errorf("%d arrivals; want more than 100", n)
	}
}

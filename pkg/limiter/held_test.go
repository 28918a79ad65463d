package limiter

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// instants returns the time of the bubble as a store tells it, on a clock that is ahead.
func instants() algorithms.Instant {
	return algorithms.Instant(time.Now().Add(90 * time.Second).UnixNano())
}

func wantHeld(t *testing.T, h *held, held int64, ranOut uint64) {
	t.Helper()
	if now, out := h.read(time.Now()); now != held || out != ranOut {
		t.Errorf("after %v: %d hold and %d have run out; want %d and %d", time.Now().Format(time.TimeOnly), now, out, held, ranOut)
	}
}

func TestHoldersThatRunOutAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const atMost = 32 * time.Second
		var h held
		wantHeld(t, &h, 0, 0)
		begun := instants()
		for range 3 {
			h.begin(begun, atMost)
		}
		wantHeld(t, &h, 3, 0)
		time.Sleep(atMost - 1)
		h.end(algorithms.Hold{At: begun, Until: begun.Add(atMost)})
		wantHeld(t, &h, 2, 0)
		time.Sleep(atMost/10 + 1)
		wantHeld(t, &h, 0, 2)
		h.begin(instants(), atMost)
		h.begin(instants(), time.Hour) // after a reload
		wantHeld(t, &h, 2, 2)
		time.Sleep(30 * time.Minute)
		wantHeld(t, &h, 1, 3)
		time.Sleep(time.Hour)
		wantHeld(t, &h, 0, 4)
	})
}

func TestAnEndThatIsCountedLateTakesNothingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const atMost = 32 * time.Second
		var h held
		was := algorithms.Hold{At: instants(), Until: instants().Add(atMost)}
		h.begin(was.At, atMost)
		wantHeld(t, &h, 1, 0)
		time.Sleep(2 * atMost)
		wantHeld(t, &h, 0, 1)
		h.end(was)
		wantHeld(t, &h, 0, 1) // a counter never falls
	})
}

func TestHeldFollowsAStepOfTheStoresClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h held
		h.begin(instants(), time.Minute)
		wantHeld(t, &h, 1, 0)
		h.begin(instants().Add(time.Hour), time.Minute)
		wantHeld(t, &h, 1, 1)
		time.Sleep(67 * time.Second)
		wantHeld(t, &h, 0, 2)
	})
}

// One process counts the begin, and another one the end. A third one has started after the begin.
func TestHeldOfSeveralProcessesAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const atMost = time.Minute
		var first, second, third held
		second.begin(instants(), atMost)
		time.Sleep(time.Second)
		was := algorithms.Hold{At: instants(), Until: instants().Add(atMost)}
		first.begin(was.At, atMost)
		time.Sleep(time.Second)
		third.begin(instants(), atMost)
		second.end(was)
		third.end(was)
		wantHeld(t, &first, 1, 0)
		wantHeld(t, &second, 0, 0)
		wantHeld(t, &third, 1, 0)
		second.end(was)
		wantHeld(t, &second, -1, 0)
	})
}

// Random begins and ends against a list of all holders.
func TestHeldIsNeverFarFromTheTruth(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var h held
			var all []algorithms.Hold
			atMost := []time.Duration{time.Millisecond, 77 * time.Millisecond, time.Minute, 365 * 24 * time.Hour}[r.IntN(4)]
			begun, ended := 0, 0
			count := func(at algorithms.Instant) (n int64) {
				for _, hold := range all {
					if hold.Until > at {
						n++
					}
				}
				return n
			}
			for range 300 {
				time.Sleep(time.Duration(r.Int64N(int64(atMost) / 5)))
				now := instants()
				if i := r.IntN(len(all) + 1); i < len(all) && r.IntN(3) == 0 && all[i].Until > now {
					h.end(all[i])
					all[i] = all[len(all)-1]
					all = all[:len(all)-1]
					ended++
				} else {
					h.begin(now, atMost)
					all = append(all, algorithms.Hold{At: now, Until: now.Add(atMost)})
					begun++
				}
				held, out := h.read(time.Now())
				if least, most := count(now), count(now-algorithms.Instant(atMost/10)); held < least || held > most {
					t.Fatalf("seed %d: at most %v: %d hold; want %d to %d", seed, atMost, held, least, most)
				}
				if held+int64(out) != int64(begun-ended) {
					t.Fatalf("seed %d: %d hold, %d have run out, of %d without an end", seed, held, out, begun-ended)
				}
			}
			time.Sleep(2 * atMost)
			wantHeld(t, &h, 0, uint64(begun-ended))
		})
	}
}

func TestTheRingsOfARuleHaveABound(t *testing.T) {
	var h held
	for n := range 100 {
		h.begin(1e18, time.Duration(n+1)*time.Second)
	}
	if n := len(*h.rings.Load()); n != maxRings {
		t.Errorf("%d rings; want %d", n, maxRings)
	}
}

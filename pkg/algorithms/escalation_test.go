package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// slowEscalation keeps each offense by itself, and looks at all of them.
type slowEscalation struct {
	offenses []Instant // all
	spent    int       // of these, the ones before and at the begin of the last block
	blocks   int
	end      Instant // of the last block
}

// ask returns the end of the block at an instant, 0 without one, and the number of blocks.
func (s *slowEscalation) ask(e Escalate, now Instant) (end Instant, blocks int) {
	if n := len(s.offenses); n > 0 && s.blocks > 0 && now >= max(s.offenses[n-1].Add(e.Forget), s.end) {
		*s = slowEscalation{}
	}
	if s.end > now {
		return s.end, s.blocks
	}
	return 0, s.blocks
}

func (s *slowEscalation) offend(e Escalate, now Instant, seconds int64) {
	if end, _ := s.ask(e, now); end > 0 {
		return
	}
	if n := len(s.offenses); n > 0 {
		last := s.offenses[n-1]
		if e.Windows && last/Instant(e.Period) == now/Instant(e.Period) || !e.Windows && now < last.Add(e.Period) {
			return
		}
	}
	s.offenses = append(s.offenses, now)
	count := uint32(0)
	for _, at := range s.offenses[s.spent:] {
		if now/Instant(time.Second)-at/Instant(time.Second) < Instant(e.Within/time.Second) {
			count++
		}
	}
	if count >= e.Offenses {
		s.spent, s.blocks, s.end = len(s.offenses), min(s.blocks+1, MaxBlocks), now.Add(time.Duration(seconds)*time.Second)
	}
}

func TestBlocksGrowAsASlowModelSays(t *testing.T) {
	blocked, forgotten := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 28)) //nolint:gosec // repeats
		e := Escalate{
			Offenses: 1 + uint32(r.IntN(MaxOffenses)), Within: time.Duration(10+r.IntN(600)) * time.Second,
			Period: time.Duration(1+r.IntN(10000)) * time.Millisecond, Windows: r.IntN(2) == 0,
		}
		e.Forget = e.Within + time.Duration(r.IntN(5000))*time.Second
		l := e.Limit()
		if err := l.Validate(); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		var (
			state State
			slow  slowEscalation
			now   = Instant(1_700_000_000_000_000_000 + r.Int64N(int64(time.Hour))).truncated()
		)
		for step := range 200 {
			end, blocks := slow.ask(e, now)
			_, asked := Take(l, state, now, 0, false)
			if asked.Allowed != (end == 0) || end > 0 && asked.RetryAfter != end.Sub(now) || end == 0 && OffensesOf(asked).Blocks != blocks {
				t.Fatalf("seed %d, step %d, %+v: got %+v, want a block until %v of %d", seed, step, e, asked, end.Sub(now), blocks)
			}
			if end > 0 {
				blocked++
			}
			if r.IntN(3) > 0 {
				seconds := 1 + r.Int64N(100)
				before := len(slow.offenses)
				slow.offend(e, now, seconds)
				if told := OffensesOf(asked).Told; end == 0 && told != (len(slow.offenses) == before) {
					t.Fatalf("seed %d, step %d, %+v: told is %v", seed, step, e, told)
				}
				state, _ = Take(l, state, now, seconds, true)
			}
			if record := AppendRecord(nil, l, state); len(record) > 0 {
				back, limit, err := ParseRecord(string(record), l)
				if err != nil || back != state || limit != l {
					t.Fatalf("seed %d, step %d: a record of %+v gave %+v under %+v, %v", seed, step, state, back, limit, err)
				}
			}
			if !state.Unused() && IdleAt(l, state) <= now {
				forgotten++
				state = State{}
			}
			now = now.Add([]time.Duration{time.Millisecond, e.Period / 2, e.Period, time.Second, e.Within / 3, e.Within, e.Forget}[r.IntN(7)]).truncated()
		}
	}
	if blocked < 1000 || forgotten < 1000 {
		t.Errorf("%d blocked, %d forgotten: the test shows too little", blocked, forgotten)
	}
}

func (i Instant) truncated() Instant { return i - i%Instant(Tick) }

func TestTheScheduleOfTheDesignIsExactToTheSecond(t *testing.T) {
	e := Escalate{Offenses: 3, Within: 10 * time.Minute, Forget: 7 * 24 * time.Hour, Period: time.Minute, Windows: true}
	l, now, state := e.Limit(), Instant(1_700_000_040_000_000_000), State{} // the start of a minute
	lengths := []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour, 24 * time.Hour}
	for n, length := range lengths {
		for range 3 {
			now = now.Add(time.Minute)
			state, _ = Take(l, state, now, int64(length/time.Second), true)
		}
		if _, d := Take(l, state, now.Add(length-1), 0, false); d.Allowed || d.RetryAfter != 1 {
			t.Fatalf("block %d: got %+v 1 ns before its end", n, d)
		}
		now = now.Add(length)
		_, d := Take(l, state, now, 0, false)
		if of := OffensesOf(d); !d.Allowed || of.Blocks != n+1 {
			t.Fatalf("block %d: got %+v at its end", n, d)
		}
	}
	if got := IdleAt(l, state).Sub(now); got != 6*24*time.Hour { // a day was the block
		t.Errorf("the schedule begins anew %v after the last block", got)
	}
}

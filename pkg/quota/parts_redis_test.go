package quota

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// scripted is parts.lua in a Redis, with the model of it beside.
type scripted struct {
	t     *testing.T
	redis *parts.Redis
	model *redisModel
}

func startScripted(tb testing.TB) *parts.Redis {
	tb.Helper()
	return parts.RedisFor(tb, parts.RedisOptions{})
}

func (s *scripted) do(args ...string) []string {
	s.t.Helper()
	m, err := s.redis.Do(s.t.Context(), args...)
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := m.AsStrSlice()
	if err != nil {
		return nil // another kind of answer
	}
	return all
}

// call runs the script and the model, and compares their answers.
func (s *scripted) call(me string, now int64, keys []string, claims []claimModel) {
	s.t.Helper()
	args := []string{"EVAL", PartsScript, strconv.Itoa(len(keys) + 1), "clock"}
	args = append(append(args, keys...), me, strconv.FormatInt(now, 10))
	var want []string
	s.model.tick(now)
	for i, c := range claims {
		args = append(args, c.text())
		want = append(want, s.model.call(me, now, keys[i], c.text()))
	}
	if got := s.do(args...); !slices.Equal(got, want) {
		s.t.Fatalf("%s at %d claims %+v of %v\nthe script answers %x\nthe model answers  %x", me, now, claims, keys, got, want)
	}
}

func (c claimModel) text() string {
	var b []byte
	for i, n := range []int64{c.number, c.rate, c.burst, c.demand, c.weight, c.grain, c.turn, c.fills} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))[:len(b)+[]int{4, 4, 4, 4, 2, 4, 4, 6}[i]]
	}
	return string(b)
}

func TestTheScriptInRedisIsTheModel(t *testing.T) {
	t.Parallel()
	r := startScripted(t)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for round := range rounds {
		random := rand.New(rand.NewPCG(uint64(round), 119))
		s := &scripted{t, r, &redisModel{run: "now", limits: make(map[string]*recordModel)}}
		s.do("FLUSHALL")
		compareAtRandom(s, random)
	}
}

// compareAtRandom makes calls of five processes for three limits.
func compareAtRandom(s *scripted, random *rand.Rand) {
	s.t.Helper()
	keys := []string{"a", "b", "c"}
	var grains, fills []int64
	for range keys {
		grains = append(grains, []int64{One, One / 2, One / 3, One / 200, 1}[random.IntN(5)])
		fills = append(fills, []int64{1, 200, 10_000, 1 << 40}[random.IntN(4)])
	}
	held := make(map[string]Portion) // by process and limit: a part that the process may have
	now, number := int64(1_700_000_000_000), int64(0)
	for range 300 {
		now += []int64{0, 1, 500, 1000, 1000, 3000, 60_000, -2000}[random.IntN(8)]
		me := fmt.Sprintf("process%d", random.IntN(5))
		if number++; random.IntN(10) == 0 {
			number -= 2 // a late call
		}
		var of []string
		var claims []claimModel
		for i, key := range keys {
			if random.IntN(3) == 0 {
				continue
			}
			part := held[me+key]
			if random.IntN(6) == 0 {
				part = Portion{uint32(random.IntN(One)), uint32(random.IntN(One))}
			} else if random.IntN(8) == 0 {
				part = Portion{}
			}
			of = append(of, key)
			claims = append(claims, claimModel{
				number: number, rate: int64(part.Rate), burst: int64(part.Burst), demand: []int64{0, 1, One / 50, One / 2, One + 1}[random.IntN(5)],
				weight: []int64{0, 1, 1, 7, 65_535}[random.IntN(5)], grain: grains[i], turn: 10_000, fills: fills[i],
			})
		}
		s.call(me, now, of, claims)
		for _, key := range of {
			if m := s.memberOf(key, me); m != nil {
				held[me+key] = Portion{uint32(m.rate), uint32(m.burst)}
			}
		}
		s.lose(random, keys)
	}
}

func (s *scripted) memberOf(key, me string) *memberModel {
	all := s.model.limits[key].members
	if i := slices.IndexFunc(all, func(m memberModel) bool { return m.name == me }); i >= 0 {
		return &all[i]
	}
	return nil
}

// lose loses a record, or the clock, or makes another server of the Redis, now and then.
func (s *scripted) lose(random *rand.Rand, keys []string) {
	s.t.Helper()
	switch key := keys[random.IntN(len(keys))]; random.IntN(60) {
	case 0:
		s.do("DEL", key)
		delete(s.model.limits, key)
	case 1:
		s.do("DEL", "clock")
		s.model.clock = nil
	case 2:
		s.do("SETRANGE", "clock", "18", "0123456789")
		s.model.clock.run = "before"
	}
}

func BenchmarkScript(b *testing.B) {
	for _, processes := range []int{1, 4, 32} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			r := startScripted(b)
			const limits = 100
			args := []string{"EVAL", PartsScript, strconv.Itoa(limits + 1), "clock"}
			for i := range limits {
				args = append(args, fmt.Sprint("limit", i))
			}
			number := int64(0)
			call := func(process int) {
				number++
				c := claimModel{number: number, demand: One / 4, weight: 8, grain: One / 200, turn: 10_000, fills: 200}
				all := append(slices.Clone(args), fmt.Sprintf("proc%04d", process), "0")
				for range limits {
					all = append(all, c.text())
				}
				if _, err := r.Do(b.Context(), all...); err != nil {
					b.Fatal(err)
				}
			}
			for i := 0; b.Loop(); i++ {
				call(i % processes)
			}
			info, err := r.Info(b.Context(), "commandstats") // calls=…,usec=…
			if err != nil {
				b.Fatal(err)
			}
			_, text, _ := strings.Cut(info["cmdstat_eval"], "usec=")
			text, _, _ = strings.Cut(text, ",")
			us, err := strconv.Atoi(text)
			if err != nil {
				b.Fatalf("commandstats %q: %v", info["cmdstat_eval"], err)
			}
			b.ReportMetric(float64(us)/float64(number)/limits, "µs/limit")
		})
	}
}

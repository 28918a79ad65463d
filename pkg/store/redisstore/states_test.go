package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// command sends Redis a command of a test.
func command(tb testing.TB, s *Store, args ...string) rueidis.RedisResult {
	tb.Helper()
	return commandTo(tb, s.main, args...)
}

// commandTo is command for one of several servers.
func commandTo(tb testing.TB, s *server, args ...string) rueidis.RedisResult {
	tb.Helper()
	client, err := s.connection.Client()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	return client.Do(ctx, client.B().Arbitrary(args[0]).Keys(args[1]).Args(args[2:]...).Build())
}

// seen is a kept state as a later instant finds it. Probes in between must not change it.
type seen struct {
	Requests, Capacity uint32
	Last               algorithms.Instant
	A, B               uint64
}

func seenAt(k kept, now algorithms.Instant) seen {
	if k.state.Unused() || algorithms.IdleAt(k.limit, k.state) <= now {
		return seen{}
	}
	last, a, b := algorithms.Change(k.limit, k.limit, k.state, now).Parts()
	v := seen{Last: last, A: a, B: b}
	if k.limit.Algorithm == algorithms.TokenBucket || k.limit.Algorithm == algorithms.TokenBucketInteger {
		v.Requests, v.Capacity = k.limit.Requests, uint32(k.limit.Capacity())
	}
	return v
}

// holdsWhat returns an error unless Redis holds the states that a model has after a world.
func holdsWhat(t *testing.T, s *Store, world []recorded) error {
	t.Helper()
	m, charges, names := model.Keys{}, map[model.Name]store.Charge{}, map[model.Name]string{}
	for _, q := range world {
		q.answered(m)
		for _, c := range q.charges {
			charges[model.NameOf(&c)], names[model.NameOf(&c)] = c, s.name(&c)
		}
	}
	now := world[len(world)-1].now
	for name, c := range charges {
		l := c.Limit
		if l.Algorithm == algorithms.SlidingWindowLog {
			log := m[name].Log()
			if err := holdsLog(t, s, names[name], l, log.IdleAt(l)); err != nil {
				return err
			}
			continue
		}
		raw, err := command(t, s, "GET", names[name]).ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			return err
		}
		var k kept
		if raw != "" {
			if k, err = parse(raw, l); err != nil {
				return err
			}
			if k.value() != raw {
				return fmt.Errorf("%v: %x is written again as %x", name, raw, k.value())
			}
		}
		if diff := cmp.Diff(seenAt(kept{limit: m[name].Limit, state: m[name].State}, now), seenAt(k, now)); diff != "" {
			return fmt.Errorf("%v: (-want +in Redis) %s", name, diff)
		}
	}
	return nil
}

// holdsLog returns an error unless the list at a name is a valid sliding_window_log that is idle
// from that instant on.
func holdsLog(t *testing.T, s *Store, name string, l algorithms.Limit, fresh algorithms.Instant) error {
	t.Helper()
	list, err := command(t, s, "LRANGE", name, "0", "-1").AsStrSlice()
	if err != nil {
		return err
	}
	entry := func(i int) (int64, uint64) {
		b := append([]byte(list[i]), make([]byte, 12)...)
		at := binary.LittleEndian.Uint64(b) & (1<<56 - 1)
		return int64(at), uint64(binary.LittleEndian.Uint32(b[7:])) | uint64(b[11])<<32
	}
	var sum uint64
	before := int64(-1)
	for i := range max(0, len(list)-1) {
		at, hits := entry(i)
		if at <= before || hits == 0 {
			return fmt.Errorf("%s: entry %d of %x", name, i, list)
		}
		before, sum = at, sum+hits
	}
	if len(list) == 0 {
		if fresh > 0 {
			return fmt.Errorf("%s: none, but it should be idle from %d", name, fresh)
		}
		return nil
	}
	if _, hits := entry(len(list) - 1); hits != sum || len(list) < 2 {
		return fmt.Errorf("%s: %d hits are noted in %x", name, hits, list)
	}
	if got := instant(uint64(before)).Add(l.Period); got != fresh {
		return fmt.Errorf("%s: idle from %d; want %d: %x", name, got, fresh, list)
	}
	return nil
}

func TestStatesThatAreWrittenAndReadAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRand(rapid.Uint64().Draw(t, "seed"))
		f := families(r, "", 1)[0]
		if f.limits[0].Algorithm == algorithms.SlidingWindowLog {
			return
		}
		var k kept
		var last []algorithms.Decision
		now := algorithms.Instant(r.Int64N(1<<61)) / 1000 * 1000
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			l := f.limits[r.IntN(len(f.limits))]
			d := k.take(l, now, randomHits(r, l, last), algorithms.Counting(r.IntN(2) == 0))
			last = []algorithms.Decision{d}
			raw := k.value()
			if k.state.Unused() != (raw == "") {
				t.Fatalf("%+v is written as %x", k, raw)
			}
			if raw == "" {
				k = kept{}
				continue
			}
			read, err := parse(raw, l)
			if err != nil {
				t.Fatal(err)
			}
			if read.state != k.state || read.value() != raw || seenAt(read, now) != seenAt(k, now) {
				t.Fatalf("%+v is read as %+v from %x", k, read, raw)
			}
			if len(raw) < 14 || len(raw) > 27 {
				t.Fatalf("%d bytes: %x", len(raw), raw)
			}
			k = read
			if now < 1<<62 {
				now += algorithms.Instant(randomPause(r, l, d, now))
			}
		}
	})
}

// FuzzParse: any bytes are a state or an error, and a state can be charged and written again.
func FuzzParse(f *testing.F) {
	for n := range 32 {
		f.Add(make([]byte, n), uint8(n), uint32(n), int64(n)*int64(time.Second), int64(n))
	}
	f.Fuzz(func(t *testing.T, raw []byte, a uint8, requests uint32, period, hits int64) {
		t.Helper()
		l := algorithms.Limit{Algorithm: algorithms.Algorithm(a), Requests: requests, Period: time.Duration(period).Truncate(Granularity)}
		if l.Validate() != nil {
			return
		}
		k, err := parse(string(raw), l)
		if err != nil {
			return
		}
		now := algorithms.Instant(hits)
		k.seenAt(l, now)
		k.value()
		k.take(l, now, hits, algorithms.Count)
		k.take(l, now, -hits, algorithms.Refuse)
		k.seenAt(l, now)
		k.value()
	})
}

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// name returns the name of a charge's state in Redis, now.
func (s *Store) name(c *store.Charge) string {
	name, _ := s.of(c).appendName(nil, c, s.here())
	return string(name)
}

// drawKey returns a string of few kinds of bytes, so that two are often nearly equal.
func drawKey(t *rapid.T, name string) []byte {
	return rapid.SliceOfN(rapid.SampledFrom([]byte("{}:;1234a\x00\xff")), 0, 12).Draw(t, name)
}

func drawCharge(t *rapid.T, name string) store.Charge {
	return store.Charge{Key: drawKey(t, name), Limit: algorithms.Limit{
		Algorithm: rapid.SampledFrom(algorithms.RateAlgorithms()).Draw(t, "algorithm"),
		Period:    time.Duration(rapid.SampledFrom([]int64{1, 2, 11, 12, 1000, 31_536_000_000_000}).Draw(t, "period")) * time.Millisecond,
	}}
}

// domain is a hash tag: the part before the first colon.
func domain(key []byte) []byte {
	for i, b := range key {
		if b == ':' {
			return key[:i]
		}
	}
	return key
}

// namings are the ways in which a store names keys.
func namings() []*Store {
	return []*Store{
		unconnected(names{prefix: "weir:"}),
		unconnected(names{}),
		unconnected(names{prefix: "weir:", cluster: true}),
		unconnected(names{cluster: true}),
		unconnected(names{prefix: "weir:", hashTag: domain, cluster: true}),
		unconnected(names{prefix: "weir:", hashTag: func([]byte) []byte { return []byte("edge") }, cluster: true}),
		unconnected(names{prefix: "}", hashTag: domain, cluster: true}),
		unconnected(names{prefix: "{a}", cluster: true}),
		unconnected(names{prefix: "{", cluster: true}),
	}
}

func TestNoTwoStatesHaveOneName(t *testing.T) {
	for _, s := range namings() {
		rapid.Check(t, func(t *rapid.T) {
			x, y := drawCharge(t, "x"), drawCharge(t, "y")
			if rapid.Bool().Draw(t, "a name as a key") { // such a key could be confused with a name
				y.Key = []byte(s.name(&x))[rapid.IntRange(0, len(s.main.prefix)).Draw(t, "cut"):]
			}
			same := string(x.Key) == string(y.Key) && x.Limit.Algorithm == y.Limit.Algorithm && x.Limit.Period == y.Limit.Period
			if named := s.name(&x) == s.name(&y); named != same {
				t.Errorf("%+v: %q and %q are named %q and %q", s, x.Key, y.Key, s.name(&x), s.name(&y))
			}
		})
	}
}

func TestNamesAreReadable(t *testing.T) {
	c := store.Charge{
		Key:   []byte("4:edge|4:path=7:/search#token_bucket/1s"),
		Limit: algorithms.Limit{Algorithm: algorithms.TokenBucket, Period: time.Second},
	}
	tagged := unconnected(names{prefix: "a:", hashTag: func([]byte) []byte { return []byte("edge") }, cluster: true})
	based := unconnected(names{prefix: "a:", hashTag: func(key []byte) []byte { return key[:23] }, cluster: true})
	for _, test := range []struct {
		store *Store
		name  string
	}{
		{based, "a:{4:edge|4:path=7:/search}#token_bucket/1s;2;1000000"},
		{unconnected(names{prefix: "weir:"}), "weir:4:edge|4:path=7:/search#token_bucket/1s;2;1000000"},
		{unconnected(names{prefix: "weir:", cluster: true}), "weir:4:edge|4:path=7:/search#token_bucket/1s;2;1000000"},
		{tagged, "a:{edge}:4:edge|4:path=7:/search#token_bucket/1s;2;1000000"},
	} {
		if got := test.store.name(&c); got != test.name {
			t.Errorf("got %s; want %s", got, test.name)
		}
	}
}

// The sender of a request must not choose the server that keeps its count.
func TestKeysDoNotChooseTheirSlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCharge(t, "key")
		s := unconnected(names{prefix: "weir:", cluster: true})
		if name := s.name(&c); slotOf(name) != crc16(name)%slots {
			t.Errorf("%q lies where a part of it says", name)
		}
		s.main.hashTag = domain
		other := store.Charge{Key: append(append([]byte{}, domain(c.Key)...), ':'), Limit: c.Limit}
		if len(domain(c.Key)) > 0 && slotOf(s.name(&c)) != slotOf(s.name(&other)) {
			t.Errorf("%q and %q lie in different slots", s.name(&c), s.name(&other))
		}
	})
}

func TestSlotsAreThoseOfRedis(t *testing.T) {
	node := sharedCluster(t).Nodes[0]
	s := open(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), Options{})
	client, err := s.main.connection.Client()
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string) {
		got, err := client.Nodes()[node.Address()].Do(t.Context(), client.B().ClusterKeyslot().Key(name).Build()).AsInt64()
		if err != nil || int64(slotOf(name)) != got {
			t.Errorf("%q lies in slot %d; Redis says %d, %v", name, slotOf(name), got, err)
		}
	}
	for _, name := range []string{"", "{}", "{}a", "{a}b", "a{b}c{d}", "{", "}{", "a{}{b}", "{{a}}", "123456789", "a{b\x00}c", "\xff{\xfe}"} {
		check(name)
	}
	r := newRand(1)
	for range 500 {
		name := make([]byte, r.IntN(20))
		for i := range name {
			name[i] = "{}ab"[r.IntN(4)]
			if r.IntN(3) == 0 {
				name[i] = byte(r.Uint32())
			}
		}
		check(string(name))
	}
}

// namesLeft returns the names of all keys of a store.
func namesLeft(tb testing.TB, s *Store) []string {
	tb.Helper()
	client, err := s.main.connection.Client()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	var names []string
	for _, node := range client.Nodes() {
		for cursor := uint64(0); ; {
			page, err := node.Do(ctx, client.B().Scan().Cursor(cursor).Match(escaped(s.main.prefix)+"*").Count(10_000).Build()).AsScanEntry()
			if err != nil {
				tb.Fatal(err)
			}
			names = append(names, page.Elements...)
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return names
}

// escaped returns a pattern that matches a text.
func escaped(text string) string {
	var pattern []byte
	for i := range len(text) {
		pattern = append(pattern, '\\', text[i])
	}
	return string(pattern)
}

func TestNothingIsLeftOnceAllLimitsHaveReset(t *testing.T) {
	for name, urls := range map[string][]string{
		"single":  urlOf("redis", shared(t).Address()),
		"cluster": urlOf("redis-cluster", sharedCluster(t).Addresses()...),
	} {
		t.Run(name, func(t *testing.T) {
			redis := open(t, urls, Options{})
			s := front(t, redis, time.Second)
			r := newRand(7)
			storm := 400
			for n := range storm {
				charges := make([]store.Charge, 1+r.IntN(3))
				for i := range charges {
					a := algorithms.RateAlgorithms()[r.IntN(len(algorithms.RateAlgorithms()))]
					charges[i] = hit(fmt.Sprint(r.IntN(20)), algorithms.Limit{
						Algorithm: a, Requests: uint32(r.IntN(4)), Period: time.Duration(1+r.IntN(200)) * time.Millisecond,
					})
					charges[i].Hits = int64(r.IntN(8) - 2)
					charges[i].CountRejected = r.IntN(2) == 0
					charges[i].Rule = i
				}
				ask(t, s, charges...)
				if n%50 == 0 {
					checkLifetimes(t, redis)
				}
			}
			eventually(t, "all keys have expired", func() bool { return len(namesLeft(t, redis)) == 0 })
		})
	}
}

// checkLifetimes fails the test if a key of a store has no end, or ends before the key is idle.
func checkLifetimes(t *testing.T, s *Store) {
	t.Helper()
	// PEXPIRETIME is exact. Redis 6.2 has PTTL alone: another process may run between TIME and PTTL,
	// so TIME comes last.
	const look = `
local expiry, time = redis.pcall('PEXPIRETIME', KEYS[1])
if type(expiry) == 'table' then
  local left = redis.call('PTTL', KEYS[1])
  time = redis.call('TIME')
  expiry = left < 0 and left or math.floor((time[1] * 1000000 + time[2]) / 1000) + left + 1
end
time = redis.call('TIME')
local kind = redis.call('TYPE', KEYS[1]).ok
local value = ''
if kind == 'string' then value = redis.call('GET', KEYS[1]) end
if kind == 'list' then value = redis.call('LINDEX', KEYS[1], -2) end
return {time[1] * 1000000 + time[2], expiry, kind, value}`
	for _, name := range namesLeft(t, s) {
		client, err := s.main.connection.Client()
		if err != nil {
			t.Fatal(err)
		}
		seen, err := client.Do(t.Context(), client.B().Eval().Script(look).Numkeys(1).Key(name).Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		us, _ := seen[0].AsInt64()
		expiry, _ := seen[1].AsInt64()
		kind, _ := seen[2].ToString()
		value, _ := seen[3].ToString()
		var l algorithms.Limit
		l.Algorithm, l.Period = limitOf(t, name)
		now := instant(uint64(us))
		var fresh algorithms.Instant
		switch kind {
		case "none": // expired meanwhile
			continue
		case "list":
			a := reader{rest: value}
			fresh = instant(a.uint(7)).Add(l.Period)
		default:
			k, err := parse(value, l)
			if err != nil {
				t.Fatalf("%q: %v", name, err)
			}
			fresh = algorithms.IdleAt(k.limit, k.state)
		}
		end := instant(uint64(expiry) * 1000)
		if expiry < 0 || end < fresh {
			t.Errorf("%q expires at %d, %v before its state is idle", name, expiry, fresh.Sub(end))
		}
		if fresh > now && end > fresh.Add(10*time.Millisecond) {
			t.Errorf("%q expires at %d, %v after its state is idle", name, expiry, end.Sub(fresh))
		}
	}
}

// limitOf reads algorithm and period from a name.
func limitOf(t *testing.T, name string) (algorithms.Algorithm, time.Duration) {
	t.Helper()
	fields := strings.Split(name, ";")
	a, err := strconv.Atoi(fields[len(fields)-2])
	us, wrong := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	if err = errors.Join(err, wrong); err != nil {
		t.Fatal(err)
	}
	return algorithms.Algorithm(a), time.Duration(us) * Granularity
}

package redisstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
	"github.com/weirproxy/weir/test/parts"
)

// A process that ends while Redis is silent leaves all that it owes.
func TestHitsThatASilentRedisWasNotToldAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, again := farBy(time.Millisecond), farBy(time.Millisecond)
		s := away(t, f, Options{})
		front := sharing(t, s)
		c := &caller{
			store: front, deadline: 20 * time.Millisecond, failed: func(err error) { t.Errorf("a request failed: %v", err) },
			charge: store.Charge{Key: []byte("k"), Limit: perAge(algorithms.FixedWindow, 1e9), Hits: 1, Exact: true},
		}
		ask := func(d time.Duration) {
			begun := time.Now()
			inTurn(4, time.Millisecond)(func() bool { return time.Since(begun) > d }, c.ask)
		}
		ask(2 * time.Second)
		thaw := f.freeze()
		ask(2 * time.Second)
		front.Close()
		records := s.CloseKeeping(1<<20, 1<<20)
		if len(records) != 1 || s.Stats().LostHits > 0 {
			t.Fatalf("%d records are left: %+v; want the one of the key", len(records), s.Stats())
		}
		if more := s.CloseKeeping(1<<20, 1<<20); len(more) > 0 {
			t.Errorf("the next Close returns %d records, too", len(more))
		}
		next := away(t, again, Options{})
		must.Do(t, next.Return(records[0]))
		time.Sleep(2 * time.Second)
		for _, when := range []string{"still frozen", "back"} {
			if got := f.took.Load() + f.told.Load() + again.told.Load(); got != c.asked() {
				t.Errorf("the first server is %s: both servers count %d hits of %d requests: %+v", when, got, c.asked(), next.Stats())
			}
			if when == "still frozen" {
				thaw()
				time.Sleep(5 * time.Second)
			}
		}
	})
}

// A silent server may apply a call without an answer. So a process that ends, and can leave its
// hits, sends nothing there.
func TestHitsThatAreLeftAreNotSentToASilentRedis(t *testing.T) {
	direct := open(t, urlOf("redis", shared(t).Address()), Options{})
	proxy := must.Get(parts.StartProxy(shared(t).Address()))(t)
	t.Cleanup(proxy.Close)
	s := open(t, urlOf("redis", proxy.Address()), Options{Prefix: direct.main.prefix, Timeout: DefaultTimeout})
	c := hit("k", perAge(algorithms.FixedWindow, 1000))
	settled(t, s, c)
	wants(t, true, s, c)
	before := count(t, direct, c)
	proxy.Mute()
	eventually(t, "redis is silent", func() bool {
		_ = s.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1))
		return s.reach(&c, 0) == silent
	})
	c.Hits = 5
	s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
	records := s.CloseKeeping(1<<20, 1<<20)
	if len(records) != 1 {
		t.Fatalf("%d records are left, want 1", len(records))
	}
	must.Do(t, direct.Return(records[0]))
	told(t, direct)
	if got := count(t, direct, c); got != before+5 || s.Stats().LostHits > 0 {
		t.Errorf("Redis counts %d hits, and %d before: %+v", got, before, s.Stats())
	}
}

// A process that has told everything leaves nothing. Hits that do not fit into the records are
// lost, and are counted.
func TestOnlyWhatRedisWasNotToldIsLeft(t *testing.T) {
	s, clock := given(t, Options{})
	c := hit("k", perAge(algorithms.FixedWindow, 5))
	s.Later(&c, clock.now(), store.Part{})
	if records := s.CloseKeeping(1<<20, 1<<20); len(records) > 0 || s.Stats().LostHits > 0 {
		t.Errorf("%d records are left: %+v; want none, as Redis answers", len(records), s.Stats())
	}
	s = unconnected(names{prefix: DefaultPrefix})
	s.keeps, s.keepsEach = 700, 700
	for _, key := range []string{"a", "b", "c"} {
		c := hit(key, perAge(algorithms.FixedWindow, 5))
		s.Later(&c, clock.now(), store.Part{})
		s.leaveLocked(s.shard(c.Key))
	}
	if len(s.left) == 0 || len(s.left) == 3 || s.metrics.lostHits.Load() != uint64(3-len(s.left)) {
		t.Errorf("%d records are left of 3 with a bound of bytes, and %d hits are lost", len(s.left), s.metrics.lostHits.Load())
	}
	for _, damaged := range []string{"", "{", "{}", `{"Key":"aw==","Charges":[{}]}`} {
		if err := s.Return([]byte(damaged)); err == nil {
			t.Errorf("Return of %q succeeds", damaged)
		}
	}
}

// Hits under a calendar are left with the calendar, and count in its window.
func TestHitsUnderACalendarAreLeft(t *testing.T) {
	s := open(t, urlOf("redis", shared(t).Address()), Options{})
	away := unconnected(names{prefix: s.main.prefix})
	away.keeps, away.keepsEach = 1<<20, 1<<20
	for _, a := range algorithms.CalendarAlgorithms() {
		for name, spec := range map[string]algorithms.CalendarSpec{
			"a month": {Unit: algorithms.CalendarMonth, Count: 1, Zone: must.Get(zones.Load("Europe/Berlin"))(t), Day: 31, At: time.Hour},
			"a day":   {Unit: algorithms.CalendarDay, Count: 1, FirstHit: true},
		} {
			l := algorithms.Limit{Algorithm: a, Requests: 20, Period: 24 * time.Hour, Extra: algorithms.Extra{Calendar: calendarOf(spec)}}
			c := hit(fmt.Sprint(name, uint8(a)), l)
			c.Hits = 5
			away.Later(&c, away.Now(l), store.Part{})
			away.leaveLocked(away.shard(c.Key))
		}
	}
	if len(away.left) != 4 {
		t.Fatalf("%d records are left, want 4", len(away.left))
	}
	for _, record := range away.left {
		must.Do(t, s.Return(record))
		for _, damaged := range []string{"Europe/Berlim", ""} {
			if bad := strings.ReplaceAll(string(record), "Europe/Berlin", damaged); bad != string(record) && s.Return([]byte(bad)) == nil {
				t.Errorf("Return of %q succeeds", bad)
			}
		}
	}
	s.sendAll()
	eventually(t, "the hits are told", func() bool { return s.idle() && s.Stats().OwedKeys == 0 })
	for _, record := range away.left {
		var l owed.Left
		must.Do(t, json.Unmarshal(record, &l))
		c := hit(string(l.Key), l.Charges[0].Limit)
		c.Limit.Calendar = must.Get(s.returned.calendar(*l.Charges[0].Calendar))(t)
		if got := remains(t, s, c); got != 15 {
			t.Errorf("%s: %d of 20 remain, want 15", l.Key, got)
		}
	}
}

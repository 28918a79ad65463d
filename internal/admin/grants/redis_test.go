package grants

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/test/parts"
)

// startRedis starts a Redis without persistence.
func startRedis(t *testing.T) *parts.Redis {
	t.Helper()
	r, err := parts.StartRedis(t.Context(), parts.NeedRedis(t, filepath.Join("..", "..", "..")), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// do runs a command.
func do(t *testing.T, r *parts.Redis, args ...string) string {
	t.Helper()
	m, err := r.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return m.String()
}

// dial returns a store at some servers.
func dial(t *testing.T, url string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{Target: redisstore.Target{URLs: []string{url}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// join starts a process that shares a Redis.
func join(t *testing.T, r *parts.Redis) *process {
	t.Helper()
	return on(t, dial(t, "redis://"+r.Address()))
}

// soon waits until a condition holds.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in 30 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// soonLimit waits until a tenant has a limit everywhere.
func soonLimit(t *testing.T, name string, want uint32, all ...*process) {
	t.Helper()
	for i, p := range all {
		soon(t, fmt.Sprintf("process %d gives tenant %s %d requests\n%s", i, name, want, &p.log), func() bool { return p.limit(t, name) == want })
	}
}

func TestAllProcessesOfOneRedisObey(t *testing.T) {
	r := startRedis(t)
	a, b := join(t, r), join(t, r)
	given, _ := a.give(t, of("x", 5))
	a.wantLimit(t, "x", 5) // at once where it was given
	soonLimit(t, "x", 5, b)
	if where, durable := b.Kept(); !durable || !strings.Contains(where, "Redis") {
		t.Errorf("kept %s, %v", where, durable)
	}
	c := join(t, r)
	c.wantLimit(t, "x", 5) // from its start
	c.end()

	_, replaced := b.give(t, of("x", 6))
	if replaced == nil || replaced.ID != given.ID {
		t.Errorf("replaced %v, want %v", replaced, given)
	}
	soonLimit(t, "x", 6, a, b)
	if _, _, err := a.Revoke(t.Context(), given.ID, "me"); !errors.Is(err, limiter.ErrUnknownGrant) {
		t.Errorf("revoking the replaced grant: got %v", err)
	}
	fresh, _ := b.give(t, of("y", 7))
	if _, _, err := a.Revoke(t.Context(), fresh.ID, "me"); err != nil { // which a may not have heard of
		t.Error(err)
	}
	soonLimit(t, "y", 2, a, b)
	a.wantLimit(t, "x", 6)
	if n := strings.Count(a.log.String(), given.ID); n != 1 {
		t.Errorf("the log of the process that gave the grant names it %d times, want 1\n%s", n, &a.log)
	}
	for _, p := range []*process{a, b} {
		if strings.Contains(p.log.String(), "Redis has lost") {
			t.Errorf("the first grant of a Redis is taken for a loss\n%s", &p.log)
		}
	}
	if !strings.Contains(b.log.String(), `msg="a grant is in force here" grant=`+given.ID) {
		t.Errorf("the log of the other process does not name the grant\n%s", &b.log)
	}
}

// Two processes give grants for the same keys at once: both end up with the same ones, and none is
// left over.
func TestGrantsForOneKeyAtOnce(t *testing.T) {
	r := startRedis(t)
	a, b := join(t, r), join(t, r)
	var giving sync.WaitGroup
	for n, p := range []*process{a, b} {
		giving.Go(func() {
			for i := range 50 {
				if _, _, err := p.Grant(t.Context(), of(strconv.Itoa(i%5), uint32(10+100*n+i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	giving.Wait()
	soon(t, "both have the same grants", func() bool {
		all, other := a.List(), b.List()
		if len(all) != 5 || len(other) != 5 {
			return false
		}
		for i := range all {
			if all[i].ID != other[i].ID || a.limit(t, all[i].Entries[0].Value) != uint32(all[i].Requests) || b.limit(t, all[i].Entries[0].Value) != uint32(all[i].Requests) {
				return false
			}
		}
		return true
	})
}

// Redis goes away, and comes back with nothing: the known grants go on all the time, and are in
// Redis again.
func TestGrantsOutliveARedisThatForgets(t *testing.T) {
	r := startRedis(t)
	a, b := join(t, r), join(t, r)
	a.give(t, of("x", 5))
	soonLimit(t, "x", 5, b)
	r.Kill()
	soon(t, "a sees that Redis is away", func() bool { where, _ := a.Kept(); return strings.Contains(where, "does not answer") })
	a.wantLimit(t, "x", 5)
	if _, _, err := a.Grant(t.Context(), of("y", 5)); err == nil || errors.Is(err, limiter.ErrInvalidGrant) {
		t.Errorf("a grant without Redis: got %v", err)
	}
	a.wantLimit(t, "y", 2)
	alone := on(t, a.options.Redis) // starts all the same
	alone.wantLimit(t, "x", 2)
	if err := r.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	soonLimit(t, "x", 5, alone)
	for _, p := range []*process{a, b} {
		p.wantLimit(t, "x", 5)
		soon(t, "both know that Redis is back", func() bool { where, _ := p.Kept(); return !strings.Contains(where, "does not answer") })
	}
	for _, text := range []string{"grants cannot be read from Redis", "grants are read from Redis again"} {
		if n := strings.Count(a.log.String(), text); n != 1 {
			t.Errorf("the log says %d times: %s\n%s", n, text, &a.log)
		}
	}
}

// While a process does not look, Redis forgets all, others put the grants back, and a grant is
// revoked. That one does not come back.
func TestALateProcessRevivesNoRevokedGrant(t *testing.T) {
	r := startRedis(t)
	a := join(t, r)
	late := join(t, r)
	revoked, _ := a.give(t, of("x", 5))
	a.give(t, of("y", 6))
	soonLimit(t, "y", 6, late)
	late.mu.Lock() // the process does not look
	do(t, r, "FLUSHALL")
	soon(t, "a puts the grants back", func() bool { return do(t, r, "ZCARD", "weir:{grants}:ends") == "2" || grantsIn(t, r) == 2 })
	if _, _, err := a.Revoke(t.Context(), revoked.ID, "me"); err != nil {
		t.Fatal(err)
	}
	late.mu.Unlock()
	soonLimit(t, "x", 2, late)
	soonLimit(t, "y", 6, late, a)
	a.wantLimit(t, "x", 2)
	if n := grantsIn(t, r); n != 1 {
		t.Errorf("Redis has %d grants, want 1", n)
	}
}

// grantsIn returns how many grants Redis has.
func grantsIn(t *testing.T, r *parts.Redis) int {
	t.Helper()
	m, err := r.Do(t.Context(), "ZCARD", "weir:{grants}:ends")
	if err != nil {
		t.Fatal(err)
	}
	n, err := m.AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// The known grants go on through any damage in Redis, and are whole in Redis afterwards.
func TestDamageInRedis(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage [][]string
		repair [][]string // after a look at the damage
	}{
		{"no grants", [][]string{{"DEL", "weir:{grants}"}}, nil},
		{"no changes", [][]string{{"DEL", "weir:{grants}:changes"}}, nil},
		{"no ends", [][]string{{"DEL", "weir:{grants}:ends"}}, nil},
		{"no epoch", [][]string{{"DEL", "weir:{grants}:meta"}}, nil},
		{"a text in place of the grants", [][]string{{"SET", "weir:{grants}", "x"}}, [][]string{{"DEL", "weir:{grants}"}}},
		{"a text in place of the epoch", [][]string{{"SET", "weir:{grants}:meta", "x"}}, [][]string{{"DEL", "weir:{grants}:meta"}}},
		{"an older version", [][]string{{"HSET", "weir:{grants}:meta", "version", "1"}}, nil},
		{"a replica", [][]string{{"REPLICAOF", "127.0.0.1", "1"}}, [][]string{{"REPLICAOF", "NO", "ONE"}}},
		{"no memory", [][]string{{"CONFIG", "SET", "maxmemory", "1"}}, [][]string{{"CONFIG", "SET", "maxmemory", "0"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			a := join(t, r)
			for i := range 3 {
				a.give(t, of(strconv.Itoa(i), 5))
			}
			for _, args := range c.damage {
				do(t, r, args...)
			}
			if c.repair != nil {
				if _, _, err := a.Grant(t.Context(), of("new", 5)); err == nil {
					t.Error("a grant was given in spite of the damage")
				}
			}
			a.mu.Lock()
			a.syncLocked(t.Context())
			a.mu.Unlock()
			for i := range 3 {
				a.wantLimit(t, strconv.Itoa(i), 5)
			}
			for _, args := range c.repair {
				do(t, r, args...)
			}
			b := join(t, r)
			for i := range 3 {
				soonLimit(t, strconv.Itoa(i), 5, b)
			}
			soon(t, "a grant can be given", func() bool { _, _, err := a.Grant(t.Context(), of("new", 5)); return err == nil })
			soonLimit(t, "new", 5, a, b)
			if n := grantsIn(t, r); n != 4 {
				t.Errorf("Redis has %d grants, want 4\n%s", n, &a.log)
			}
		})
	}
}

func TestAnUnreadableGrantInRedisHasNoEffect(t *testing.T) {
	r := startRedis(t)
	a := join(t, r)
	g, _ := a.give(t, of("x", 5))
	a.give(t, of("y", 5))
	at := a.byID[g.ID]
	for _, value := range []string{"1 nonsense", "nonsense", `9999999999999 {"id":"a","domain":"edge"}`, `9 {"id":"a","domain":"edge","entries":[["tenant","x"]],"requests":1,"until":"2030-01-01T00:00:00Z","reason":"\u001b[2J"}`} {
		do(t, r, "HSET", "weir:{grants}", at, value)
		b := join(t, r)
		b.wantLimit(t, "x", 2)
		b.wantLimit(t, "y", 5)
		if !strings.Contains(b.log.String(), "a grant in Redis cannot be read") || strings.Contains(b.log.String(), "\x1b") {
			t.Errorf("the log of a process that reads %q:\n%s", value, &b.log)
		}
		b.end()
	}
}

// Slots whose grants have ended are forgotten in time, and a process that has not looked meanwhile
// reads all grants.
func TestRedisForgetsEndedGrants(t *testing.T) {
	r := startRedis(t)
	a, late := join(t, r), join(t, r)
	a.give(t, of("x", 5))
	y, _ := a.give(t, of("y", 5))
	soonLimit(t, "y", 5, late)
	late.mu.Lock()
	if _, _, err := a.Revoke(t.Context(), y.ID, "me"); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.ends.past = time.Now() // as after the grace time
	for i := 0; i < 13_000; i += 500 {
		var args []string
		for n := i; n < i+500; n++ {
			args = append(args, fmt.Sprint("slot", n), strconv.FormatInt(time.Now().Add(-time.Minute).UnixMilli(), 10), "{}", "")
		}
		if _, _, err := a.change(t.Context(), "restore", args...); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, _, err := a.change(t.Context(), "restore"); err != nil {
			t.Fatal(err)
		}
	}
	a.mu.Unlock()
	m, err := r.Do(t.Context(), "HLEN", "weir:{grants}")
	if n, _ := m.AsInt64(); err != nil || n > 10_100 || n < 9000 {
		t.Errorf("Redis keeps %d slots, %v; want about 10000", n, err)
	}
	late.mu.Unlock()
	soonLimit(t, "y", 2, late, a)
	late.wantLimit(t, "x", 5)
	if n := grantsIn(t, r); n != 1 {
		t.Errorf("Redis has %d grants, want 1", n)
	}
}

// One wrong clock, of Redis or of a process, costs no grant.
func TestAWrongClockDeletesNoGrantInRedis(t *testing.T) {
	for _, ahead := range []time.Duration{-2 * time.Hour, years} { // of a process; Redis is two hours ahead of the first one
		t.Run(ahead.String(), func(t *testing.T) {
			r := startRedis(t)
			var c clock
			s := dial(t, "redis://"+r.Address())
			a := startAt(t, func(o *Options) { o.Redis = s }, c.now)
			if ahead > 0 {
				a.give(t, of("x", 0))
			}
			c.ahead.Store(int64(ahead))
			given := of("x", 0)
			given.Until = c.now().Add(time.Hour)
			if ahead < 0 {
				a.give(t, given)
			}
			for _, name := range []string{"y", "z"} {
				other := of(name, 5)
				other.Until = c.now().Add(time.Hour)
				a.give(t, other)
			}
			if n := grantsIn(t, r); n != 3 {
				t.Errorf("Redis has %d grants, want 3", n)
			}
			if ahead < 0 {
				a.wantLimit(t, "x", 0)
			}
		})
	}
}

// Of a full Redis the first grant to end makes room, not before its end.
func TestAGrantThatHasEndedMakesRoomInRedis(t *testing.T) {
	r := startRedis(t)
	var c clock
	s := dial(t, "redis://"+r.Address())
	c.ahead.Store(int64(-time.Hour))
	a := startAt(t, func(o *Options) { o.Redis, o.Max = s, 2 }, c.now)
	for i, name := range []string{"x", "y"} {
		g := of(name, 5)
		g.Until = c.now().Add(time.Duration(i+1) * time.Minute)
		a.give(t, g)
	}
	if _, _, err := a.Grant(t.Context(), of("z", 7)); !errors.Is(err, limiter.ErrTooManyGrants) {
		t.Errorf("got %v, want ErrTooManyGrants", err)
	}
	c.ahead.Store(int64(-time.Hour + 90*time.Second))
	a.give(t, of("z", 7))
	soonLimit(t, "z", 7, a)
	a.wantLimit(t, "y", 5)
	if n := grantsIn(t, r); n != 2 {
		t.Errorf("Redis has %d grants, want 2", n)
	}
}

// Redis stands still. The grant that was answered with an error never comes, and the answer says
// that it might have come.
func TestAGrantThatWasAnsweredWithAnErrorComesNoLater(t *testing.T) {
	r := startRedis(t)
	a, b := join(t, r), join(t, r)
	kept, _ := a.give(t, of("x", 5))
	soonLimit(t, "x", 5, a, b)
	must.Do(t, r.Pause(t.Context()))
	_, _, err := a.Grant(t.Context(), of("y", 0))
	if err == nil || !strings.Contains(err.Error(), "it may be in force all the same") {
		t.Errorf("got %v, want an error that the grant may be in force", err)
	}
	if _, _, err := b.Revoke(t.Context(), kept.ID, "me"); err == nil || !strings.Contains(err.Error(), "it may be in force all the same") {
		t.Errorf("got %v, want an error that the revoke may be in force", err)
	}
	for _, p := range []*process{a, b} { // no look may be under way, and the deadline must have passed
		soon(t, "a look has failed", func() bool { return p.shared.failed.Load() })
	}
	deadline := time.Now().Add(syncTimeout)
	soon(t, "the deadline has passed", func() bool { return time.Now().After(deadline) })
	must.Do(t, r.Continue())
	soon(t, "grants are given again", func() bool { _, _, err := a.Grant(t.Context(), of("z", 7)); return err == nil })
	soonLimit(t, "z", 7, a, b)
	for _, p := range []*process{a, b} {
		p.wantLimit(t, "y", 2)
		p.wantLimit(t, "x", 5)
	}
}

// The clock of Redis goes back or ahead, or another server takes over: a grant is given all the
// same.
func TestAGrantIsGivenAfterAStepOfTheClockOfRedis(t *testing.T) {
	r := startRedis(t)
	a := join(t, r)
	for i, ahead := range []time.Duration{-time.Hour, time.Hour} { // of the clock that the process believes Redis to have
		a.mu.Lock()
		a.shared.lead += ahead
		a.mu.Unlock()
		a.give(t, of("x", uint32(5+i)))
		soonLimit(t, "x", uint32(5+i), a)
	}
}

func TestGrantsInACluster(t *testing.T) {
	cluster, err := parts.StartCluster(t.Context(), parts.NeedRedis(t, filepath.Join("..", "..", "..")), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Kill)
	url := "redis-cluster://" + strings.Join(cluster.Addresses(), ",")
	a, b := on(t, dial(t, url)), on(t, dial(t, url))
	g, _ := a.give(t, of("x", 5))
	soonLimit(t, "x", 5, a, b)
	if _, _, err := b.Revoke(t.Context(), g.ID, "me"); err != nil {
		t.Fatal(err)
	}
	soonLimit(t, "x", 2, a, b)
}

// Many grants: as many as WEIR_GRANTS says, else a few thousand. With -v the test shows the times.
func TestManyGrantsInRedis(t *testing.T) {
	n := 3000
	if more, err := strconv.Atoi(os.Getenv("WEIR_GRANTS")); err == nil {
		n = more
	}
	r := startRedis(t)
	a := join(t, r)
	begun := time.Now()
	a.mu.Lock()
	for i := range n {
		g := of(strconv.Itoa(i), 5)
		g.ID, g.Given, g.Rule = newID(), time.Now(), "tenant"
		a.slots[slot(fmt.Sprintf("4:edge|6:tenant=%d:%d", len(strconv.Itoa(i)), i), "")] = &g
	}
	if err := a.restoreLocked(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	clear(a.slots)
	a.mu.Unlock()
	a.end() // else it would read the grants beside the new process
	t.Logf("%d grants were put into Redis in %v", n, time.Since(begun))
	s := dial(t, "redis://"+r.Address())
	begun = time.Now()
	b := on(t, s)
	t.Logf("another process knew %d of them after %v", len(b.List()), time.Since(begun))
	if known := len(b.List()); known != n {
		t.Errorf("a new process knows %d grants at its start, want %d", known, n)
	}
	b.wantLimit(t, "0", 5)
	b.wantLimit(t, strconv.Itoa(n-1), 5)
	begun = time.Now()
	b.give(t, of("0", 6))
	t.Logf("another grant took %v", time.Since(begun))
	begun = time.Now()
	b.load(t, rules)
	t.Logf("a reload of the rules took %v", time.Since(begun))
	b.wantLimit(t, "0", 6)
	if _, err := r.Do(context.Background(), "PING"); err != nil {
		t.Error(err)
	}
}

package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// seeds is the last states that a server has told, with the corrections since. After a restart, or
// when a replica has taken over, the server gets the states back before this process asks anything
// else. So a restart makes no key full. Where the server has a state, the one with more hits
// counts. States of sliding_window_log and of concurrency, and holders, are not kept.
//
// A state that was forgotten on purpose does not come back. A reset here forgets its key. A reset
// elsewhere forgets all states: see markReset. So do other rules.
type seeds struct {
	hash   maphash.Seed
	shards [seedShards]seedShard

	seeding  sync.Mutex    // held while the server gets states back; guards since
	since    time.Time     // of the first try at a server that serves, after the last restart; zero: there was no try
	restarts atomic.Uint64 // of the connection, after which the server has got the states back
}

type seedShard struct {
	mu     sync.Mutex // guards states
	states map[string]seed
}

// seed is the state of a key as an answer left it.
type seed struct {
	kept kept
	told algorithms.Instant // of the answer
}

const (
	seedShards = 64
	maxSeeds   = 65_536 // 200 bytes each
	// seedOvertakes is the longest time by which an answer can overtake another one. If the clock of
	// Redis goes back by more, its answers count at once.
	seedOvertakes = time.Second
	seedsPerCall  = 256 // as maxCharges
	seedsPerRound = 4096
	seedRest      = 10 * time.Millisecond // after a round, in which Redis serves others
	seedTick      = 100 * time.Millisecond
	seedTime      = 3 * time.Second // after which this process asks Redis without its states
)

var errSeeding = fmt.Errorf("%w: it gets lost counts back first", ErrUnavailable)

func newSeeds() *seeds {
	b := &seeds{hash: maphash.MakeSeed()}
	for i := range b.shards {
		b.shards[i].states = make(map[string]seed)
	}
	return b
}

func (b *seeds) shard(name string) *seedShard {
	return &b.shards[maphash.String(b.hash, name)%seedShards]
}

// learn keeps the state of a key as an answer of that instant left it. A full shard forgets any
// other key.
func (b *seeds) learn(name string, k *kept, told algorithms.Instant) {
	sh := b.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.learnLocked(name, k, told)
}

func (sh *seedShard) learnLocked(name string, k *kept, told algorithms.Instant) {
	was, known := sh.states[name]
	switch {
	case known && told < was.told && was.told.Sub(told) < seedOvertakes:
		return
	case k.state.Unused():
		delete(sh.states, name)
		return
	case !known && len(sh.states) >= maxSeeds/seedShards:
		for other := range sh.states {
			delete(sh.states, other)
			break
		}
	}
	if !known {
		name = strings.Clone(name) // shares memory with the names of its batch
	}
	sh.states[name] = seed{*k, told}
}

// correct has the state of a key follow a correction, which an answer of that instant has applied.
// at is the instant of its hits. A state that an answer of a later instant left has them.
func (b *seeds) correct(name string, c *store.Charge, counter bool, at, told algorithms.Instant) {
	sh := b.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	is, known := sh.states[name]
	if known && told <= is.told || !known && c.Hits <= 0 {
		return
	}
	if !known {
		is.kept = kept{limit: c.Limit, counter: counter}
	}
	is.kept.correct(c, at, told)
	sh.learnLocked(name, &is.kept, told)
}

func (b *seeds) forget(name string) {
	sh := b.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.states, name)
}

func (b *seeds) clear() {
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		clear(sh.states)
		sh.mu.Unlock()
	}
}

func (b *seeds) size() (n int) {
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		n += len(sh.states)
		sh.mu.Unlock()
	}
	return n
}

// pending reports whether the server has restarted since it last got the states back.
func (b *seeds) pending(c connection) bool { return c.Restarts() != b.restarts.Load() }

// seedItem is a state on its way back.
type seedItem struct {
	name, value string
	algorithm   byte   // as the script numbers it
	life        int64  // the period in microseconds; of a counter the instant of expiry in Unix milliseconds
	slot        uint16 // 0 without a cluster
}

// items returns the states that matter at an instant, by slot.
func (s *server) items() (all []seedItem) {
	now, here := s.clock.instant(time.Now()), s.here()
	if s.given != nil {
		now = s.given()
	}
	for i := range s.seeds.shards {
		sh := &s.seeds.shards[i]
		sh.mu.Lock()
		for name, is := range sh.states {
			limit, ends, at := is.kept.limit, algorithms.IdleAt(is.kept.limit, is.kept.state), now
			item := seedItem{name: name, value: is.kept.value(), algorithm: byte(limit.Algorithm), life: int64(limit.Period / Granularity)}
			if is.kept.counter {
				at, item.algorithm, item.life = here, counterNumber, int64(ends)/int64(time.Millisecond)+1
			}
			if ends <= at {
				continue
			}
			if s.cluster {
				item.slot = slotOf(name)
			}
			all = append(all, item)
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(all, func(x, y seedItem) int { return cmp.Compare(x.slot, y.slot) })
	return all
}

// seedCalls returns the calls of the script for items, which are sorted by slot. A call has the
// keys of one slot. now is as for appendHeader.
func seedCalls(items []seedItem, now int64) (all []rueidis.LuaExec) {
	for len(items) > 0 {
		n := 1
		for n < min(len(items), seedsPerCall) && items[n].slot == items[0].slot {
			n++
		}
		var e rueidis.LuaExec
		header := appendHeader(nil, now, 0)
		header[16] = isSeeding
		e.Args = append(e.Args, "")
		for _, item := range items[:n] {
			header[17+int(item.algorithm)] = 1
			e.Keys, e.Args = append(e.Keys, item.name), append(e.Args, string([]byte{item.algorithm})+item.value, strconv.FormatInt(item.life, 10))
		}
		e.Args[0] = string(header)
		all, items = append(all, e), items[n:]
	}
	return all
}

// seed gives the server its states back, if it has restarted. Until the end nothing else is asked
// of the server: see client.
func (s *server) seed(ctx context.Context) {
	if !s.seeds.pending(s.connection) || !s.seeds.seeding.TryLock() {
		return
	}
	defer s.seeds.seeding.Unlock()
	restarts := s.connection.Restarts()
	client, err := s.connection.Client()
	if err != nil {
		s.seeds.since = time.Time{}
		return // the connection logs why
	}
	if s.seeds.since.IsZero() {
		s.seeds.since = time.Now()
	}
	written, err := s.giveBack(ctx, client)
	s.metrics.seeded.Add(uint64(written))
	if !s.cluster && unapplied(err) { // such as LOADING: it serves nobody, so nobody waits for the states
		s.seeds.since = time.Time{}
		return
	}
	gaveUp := err != nil && time.Since(s.seeds.since) > seedTime
	if err != nil && !gaveUp {
		return
	}
	if now, err := s.connection.Client(); err == nil && now != client {
		return // another server has taken over meanwhile
	}
	s.seeds.restarts.Store(restarts)
	s.seeds.since = time.Time{}
	if written == 0 && !gaveUp {
		return
	}
	attrs := []slog.Attr{slog.Any("redis", s.target), slog.Int("keys", written)}
	if gaveUp {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	s.logger.LogAttrs(context.Background(), slog.LevelWarn, "redis came back without our counts, which were put back", attrs...)
}

// giveBack sends the states, some at a time, and returns the number of states that the server did
// not have, and the first error.
func (s *server) giveBack(ctx context.Context, client rueidis.Client) (written int, err error) {
	items := s.items()
	for len(items) > 0 {
		n := min(len(items), seedsPerRound)
		round, cancel := context.WithTimeout(ctx, seedTime)
		results := s.seedScript.ExecMulti(round, client, seedCalls(items[:n], s.givenNow())...)
		cancel()
		for _, r := range results {
			more, failed := r.AsInt64()
			err = cmp.Or(err, s.connection.Report(failed))
			written += int(more)
		}
		if err != nil {
			return written, err
		}
		if items = items[n:]; len(items) > 0 {
			select {
			case <-time.After(seedRest):
			case <-ctx.Done():
				return written, ctx.Err()
			}
		}
	}
	return written, nil
}

// client returns the client of the connection, or errSeeding until the server has its lost states
// back.
func (s *server) client() (rueidis.Client, error) {
	if s.seeds.pending(s.connection) {
		return nil, errSeeding
	}
	return s.connection.Client()
}

// seed has all servers get their lost states back until ctx ends.
func (s *servers) seed(ctx context.Context) {
	tick := time.NewTicker(seedTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for server := range s.all() {
				server.seed(ctx)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *servers) forgetSeeds() {
	for server := range s.all() {
		server.seeds.clear()
	}
}

// resets is the key, after the prefix, that each reset changes. Another process finds the change at
// its next beat, and forgets its states. resetsLife is more than the time between two beats.
const (
	resets     = "resets"
	resetsLife = 24 * time.Hour
)

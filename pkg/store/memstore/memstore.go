// Package memstore keeps rate limit states in this process: exactly, for a bounded number of keys,
// without pointers for the garbage collector to follow.
//
// States lie in shards, each with its own lock and a flat table of 40-byte slots (see table). Logs
// of sliding_window_log lie apart, as their size varies. A digest of 104 bits stands for a key. A
// background sweep frees idle states. At Options.MaxKeys a new key replaces a key of its shard that
// has used little of its limit (see candidates). A key that is denied now is never forgotten, and
// neither is a key of concurrency with a holder. The bound counts places, so it bounds logs too.
//
// Holders of a key lie in the shard of the key (see holders), and have a bound of their own,
// Options.MaxHolds. The holders of a key of concurrency stand in the order in which they run out
// (see line). So each decision is exact at its instant.
//
// The instant is the wall clock of the start and the monotonic time since. So windows are aligned
// to the Unix epoch. After a step of the wall clock the store realigns them: the time that has
// passed since a charge stays as it was (see clock).
package memstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dchest/siphash"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Local = (*Store)(nil)

// Store keeps states in memory. All methods are safe for concurrent use. Close it to end the sweep.
type Store struct {
	maxKeys  int64
	maxHolds int64
	onFull   OnFull
	clock    atomic.Pointer[clock]
	wall     func(time.Time) int64 // the wall clock of a reading, in Unix nanoseconds
	logger   *slog.Logger          // nil: no log
	seed     maphash.Seed          // of the second half of digests
	savable  bool
	hashKey  hashKey // of a savable store, in place of seed and store.HashOf; Load changes it before the first use
	shards   []shard
	opens    []atomic.Int64 // of shards[i].candidates; apart, so that a look at all reads little memory
	spent    []atomic.Bool  // of shards[i].holders, as opens
	turn     atomic.Uint32  // of the shards to make room for others
	scratch  sync.Pool
	blocks   blocks
	guarded  sync.Pool // of *guarded
	metrics  metrics
	stop     func()
}

// New returns an empty store and starts its sweep. New fails when an option is out of bounds.
func New(o Options) (*Store, error) {
	wall := time.Time.UnixNano
	if o.Now != nil {
		wall = func(t time.Time) int64 { return int64(o.Now()) - int64(time.Since(t)) }
	}
	return open(o, wall)
}

// open is New with another wall clock.
func open(o Options, wall func(time.Time) int64) (*Store, error) {
	var errs []error
	if o.MaxKeys < 0 || o.MaxKeys > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("max_keys: %d: must be between 1 and %d", o.MaxKeys, math.MaxInt32))
	}
	if o.MaxHolds < 0 || o.MaxHolds > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("max_holds: %d: must be between 1 and %d", o.MaxHolds, math.MaxInt32))
	}
	if o.OnFull > Deny {
		errs = append(errs, fmt.Errorf("on_full: %d: must be allow or deny", o.OnFull))
	}
	if o.SweepInterval < 0 {
		errs = append(errs, fmt.Errorf("sweep interval: %v: must be more than 0", o.SweepInterval))
	}
	if o.Now != nil && o.Virtual != nil {
		errs = append(errs, errors.New("now, virtual: must not both be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	o.MaxKeys, o.MaxHolds = cmp.Or(o.MaxKeys, DefaultMaxKeys), cmp.Or(o.MaxHolds, DefaultMaxHolds)
	o.SweepInterval = cmp.Or(o.SweepInterval, DefaultSweepInterval)
	start := time.Now()
	first := clock{start: start, epoch: wall(start), virtual: o.Virtual}
	s := &Store{
		maxKeys:  int64(o.MaxKeys),
		maxHolds: int64(o.MaxHolds),
		onFull:   o.OnFull,
		wall:     wall,
		logger:   o.Logger,
		seed:     maphash.MakeSeed(),
		savable:  o.Savable,
		hashKey:  newHashKey(),
		shards:   make([]shard, shardCount(o.MaxKeys)),
	}
	s.clock.Store(&first)
	s.opens = make([]atomic.Int64, len(s.shards))
	s.spent = make([]atomic.Bool, len(s.shards))
	for i := range s.shards {
		s.shards[i].holders.all, s.shards[i].holders.anySpent = &s.metrics.holds, &s.spent[i]
		s.shards[i].candidates.opens = &s.opens[i]
		s.shards[i].epoch = first.epoch
	}
	for i := range s.blocks {
		s.blocks[i].epoch = first.epoch
	}
	s.scratch.New = func() any { return new(transaction) }
	s.guarded.New = func() any { return new(guarded) }
	ctx, cancel := context.WithCancel(context.Background())
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.sweep(ctx, o.SweepInterval) })
	s.stop = func() { cancel(); sweeping.Wait() }
	return s, nil
}

// keysPerShard is the number of keys of a shard in a full store. A pass over one shard under its
// lock then takes tens of microseconds. The number is far below the 65536 limits that a shard can
// number.
const keysPerShard = 4096

// shardCount returns the number of shards, a power of two. A store of few keys still gets several,
// so that cores do not wait for each other. Each shard chooses the keys to forget among its own, so
// a shard needs some hundred keys for a good choice.
func shardCount(maxKeys int) int {
	want := max(maxKeys/keysPerShard, min(64, maxKeys/256), 1)
	return 1 << bits.Len(uint(want-1))
}

// Close ends the sweep and waits for its end. The store must not be used after. Closing twice is
// harmless.
func (s *Store) Close() { s.stop() }

// TakeNow implements [store.Store]. TakeNow decides every transaction.
func (s *Store) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	switch {
	case len(charges) != 1 || charges[0].Before != nil:
		if escalates(charges) {
			return s.takeGuarded(charges, decisions), true
		}
		return s.takeSeveral(charges, decisions), true
	case charges[0].Limit.Algorithm == algorithms.Escalation:
		return s.takeGuarded(charges, decisions), true
	case charges[0].Hold != nil:
		s.takeHold(&charges[0], &decisions[0])
	default:
		s.takeOne(&charges[0], &decisions[0])
	}
	return decisions[0].Allowed || charges[0].Mode.Shadows(), true
}

// TakeAll implements [store.Store]. A transaction fails only when its Ctx has ended.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		if t.Admitted, t.Err = false, t.Ended(now); t.Err == nil {
			t.Admitted, _ = s.TakeNow(t.Charges, t.Decisions)
		}
		decided([]int{i})
	}
}

// Forget implements [store.Store]: all answers are of the states themselves.
func (s *Store) Forget() {}

// Peek implements [store.Store]. Peek fails only when ctx has ended.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i := range charges {
		c := &charges[i]
		if c.Limit.Algorithm == algorithms.Escalation {
			decisions[i] = s.blocks.take(s, c, true)
			continue
		}
		if c.Before != nil {
			s.carry(charges[i : i+1])
		}
		key := s.digest(c)
		sh := s.shardOf(key)
		sh.mu.Lock()
		now := sh.instantLocked(s)
		v := sh.loadLocked(key, &c.Limit, now)
		if c.Hold != nil {
			decisions[i] = v.peekHoldLocked(c, now)
		} else {
			decisions[i] = v.take(c, c.Hits, now, algorithms.Counting(c.CountRejected))
		}
		sh.mu.Unlock()
	}
	return nil
}

// Reset implements [store.Store]. Reset fails only when ctx has ended.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	forgotten := 0
	for i := range charges {
		key := s.digest(&charges[i])
		if charges[i].Limit.Algorithm == algorithms.Escalation {
			if s.blocks.forget(s, key) {
				forgotten++
			}
			continue
		}
		sh := s.shardOf(key)
		sh.mu.Lock()
		sh.instantLocked(s)
		sh.forgetHoldersLocked(key, &charges[i].Limit)
		if places := sh.forgetLocked(key); places > 0 {
			forgotten++
			s.metrics.places.Add(-int64(places))
		}
		sh.mu.Unlock()
	}
	return forgotten, nil
}

// takeOne applies a transaction of one charge, the common case, under one lock.
func (s *Store) takeOne(c *store.Charge, d *algorithms.Decision) {
	key := s.digest(c)
	sh := s.shardOf(key)
	var r room
	for {
		sh.mu.Lock()
		now := sh.instantLocked(s)
		if sh.takeKnownLocked(s, key, c, d, now) {
			sh.mu.Unlock()
			break
		}
		v := sh.loadLocked(key, &c.Limit, now)
		*d = v.take(c, c.Hits, now, algorithms.Counting(c.CountRejected))
		if want := r.wantLocked(s, &v, now); want.places > 0 && !s.claimLocked(&r, want, now) {
			sh.mu.Unlock()
			s.makeRoom(&r, want)
			continue
		}
		if v.grows() && r.full {
			s.full(c, d, now)
		} else {
			sh.commitLocked(s, &v, now, &r)
		}
		sh.mu.Unlock()
		break
	}
	s.giveBack(&r)
}

// now returns the instant. A shard may have another one, see instantLocked.
func (s *Store) now() algorithms.Instant { return s.clock.Load().now() }

// digest returns the digest of a charge's key, algorithm and period.
func (s *Store) digest(c *store.Charge) digest {
	var hi, lo uint64
	if s.savable { // seeds of maphash end with the process
		hi, lo = siphash.Hash128(s.hashKey[0], s.hashKey[1], c.Key)
	} else {
		hi, lo = c.KeyHash(), maphash.Bytes(s.seed, c.Key)
	}
	// Odd multipliers spread the period over all bits. The multipliers are public, but the keyed
	// hashes stay secret.
	hi ^= uint64(c.Limit.Period) * 0x9e3779b97f4a7c15
	lo ^= (uint64(c.Limit.Period) ^ uint64(c.Limit.Algorithm)<<60) * 0xd6e8feb86659fd93
	return digest{max(hi, 1), lo &^ (1<<digestBits - 1)}
}

func (s *Store) shardOf(d digest) *shard {
	return &s.shards[s.shardNumber(d)]
}

// shardNumber uses other bits of the digest than the order of slots in a table.
func (s *Store) shardNumber(d digest) int { return int(d.lo>>digestBits) & (len(s.shards) - 1) }

// OnFull is the policy for a new key when the store is full of keys that are denied now.
type OnFull uint8

// The choices.
const (
	Allow OnFull = iota // the key is decided as a full one, and not remembered
	Deny                // the key is denied until another one can be forgotten
)

// Defaults of Options.
const (
	DefaultMaxKeys       = 1_000_000
	DefaultMaxHolds      = 1_000_000
	DefaultSweepInterval = 10 * time.Second
)

// Options configures New. The zero value is valid.
type Options struct {
	MaxKeys int // most places: a key takes one, and a key of sliding_window_log three or more (see places); 0 means DefaultMaxKeys
	// MaxHolds is the most holders, of at most 64 bytes each; 0 means DefaultMaxHolds. At the bound a
	// new holder replaces a denied or ended one, the oldest of its shard. The forgotten name costs
	// little: a late end, or a repeat of it, is charged as one whose begin nobody saw. If all holders
	// hold, OnFull decides a begin. An allowed begin then holds nothing, and a rate limit charges its
	// true cost at the end.
	MaxHolds      int
	OnFull        OnFull        // the policy for a new key, or a begin, when no other can be forgotten
	SweepInterval time.Duration // time in which the sweep visits every key once; 0 means DefaultSweepInterval
	Logger        *slog.Logger  // of steps of the wall clock, at WARN; nil: no log
	// Now returns the instant by the clock whose windows count. The store follows the clock as it
	// follows a wall clock. Nil: this machine's wall clock.
	Now func() algorithms.Instant
	// Virtual tells the instant of each transaction, in place of all clocks, so that hours of traffic
	// can be decided in a second. Virtual must be safe for concurrent use. An instant before an
	// earlier one of the shard counts as the earlier one. Nil: real time. Now must then be nil.
	Virtual func() algorithms.Instant
	Savable bool // Save and Load work; a decision then takes about 30 ns more, for another hash of keys
}

// metrics counts for Stats, on cache lines that a request without a new key does not touch.
type metrics struct {
	places                             atomic.Int64 // of remembered keys, and claimed for others
	holds                              atomic.Int64 // remembered holders, and places claimed for others
	evicted, swept, allowed, deniedNew atomic.Uint64
	joined                             atomic.Uint64
	holdsAllowed, holdsDenied          atomic.Uint64
	clockSteps                         atomic.Uint64
}

// Stats is the store's metrics at one moment.
type Stats struct {
	Keys        int    // remembered now
	Places      int    // that these keys take, at most MaxKeys: one for a key, and three or more for a key of sliding_window_log
	MaxKeys     int    // the bound
	Evicted     uint64 // forgotten to make room
	Swept       uint64 // freed because they were idle
	FullAllowed uint64 // new keys that were decided but not remembered
	FullDenied  uint64 // new keys that were denied
	FullJoined  uint64 // charges of known logs that joined the newest hits, as the log found no place to grow
	ClockSteps  uint64 // steps of the wall clock that the store has followed

	Offenders       int    // keys of algorithms.Escalation that are remembered, at most MaxBlocks
	Blocked         int    // of these, blocked now
	OffendersForced uint64 // forgotten or not remembered, because there are MaxBlocks

	HoldersHeld        int    // holders that hold hits now; until a sweep also holders that have run out
	HoldersDenied      int    // denied ones that are remembered
	HoldersEnded       int    // ended ones that are remembered
	MaxHolds           int    // the bound of the three together
	HoldersRanOut      uint64 // that held hits until they ran out
	HoldersDropped     uint64 // denied and ended ones that were forgotten to make room
	FullHoldersAllowed uint64 // begins that were decided but not remembered
	FullHoldersDenied  uint64 // begins that were denied
}

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	st := Stats{
		Places:      int(s.metrics.places.Load()),
		MaxKeys:     int(s.maxKeys),
		Evicted:     s.metrics.evicted.Load(),
		Swept:       s.metrics.swept.Load(),
		FullAllowed: s.metrics.allowed.Load(),
		FullDenied:  s.metrics.deniedNew.Load(),
		FullJoined:  s.metrics.joined.Load(),
		ClockSteps:  s.metrics.clockSteps.Load(),

		MaxHolds:           int(s.maxHolds),
		FullHoldersAllowed: s.metrics.holdsAllowed.Load(),
		FullHoldersDenied:  s.metrics.holdsDenied.Load(),
	}
	st.Offenders, st.Blocked, st.OffendersForced = s.blocks.stats(s)
	for i := range s.shards { // one after the other
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += int(sh.table.count)
		h := &sh.holders
		st.HoldersHeld += h.kinds[kindSlots] + h.kinds[kindHeld]
		st.HoldersDenied += h.kinds[kindDenied]
		st.HoldersEnded += h.kinds[kindEnded]
		st.HoldersRanOut += h.ranOut
		st.HoldersDropped += h.dropped
		sh.mu.Unlock()
	}
	return st
}

// Package store is the contract of every store of rate limit states. A store applies the charges of
// one request as one transaction, and returns the decisions. Package memstore keeps states in this
// process, package redisstore in Redis. Package storetest has the contract as cases that every
// store must pass.
//
// # The transaction
//
// Each (Key, Limit.Algorithm, Limit.Period) has a state of its own; Charge.Before carries hits over
// from one to another. Limit.Requests or Limit.Burst
// may differ from the last charge of the state; then hits are taken as [algorithms.TakeAs] says.
//
// The charges are evaluated in order, all at one instant, each on top of the charges before. So a
// key charged twice is charged twice. Then [Admitted] gives the verdict on the request as a whole:
//
//   - Admitted: every charge that its limit allows is applied. A denied charge (in shadow mode, or
//     of one of several quota rules) is applied only with CountRejected.
//   - Denied: only the charges with CountRejected are applied, all of these, in order. A charge
//     that was denied keeps its decision. A charge that was allowed but not applied stays Allowed,
//     with the Remaining and ResetAfter that the request leaves. A charge that was allowed and is
//     applied gets the decision of that: a denial if a refund that is not applied had made room.
//
// No other transaction sees a part of a transaction. An instant before the last instant of a key
// counts as the last instant.
package store

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Mode is the effect of a denied charge on the request.
type Mode uint8

// The modes.
const (
	Enforce     Mode = iota // the request is denied
	Quota                   // the request is denied when every rule in quota mode is
	Shadow                  // none: the charge is decided and counted only
	ShadowQuota             // none, and the rule counts as a quota that is not over
)

// Shadows reports whether a denial has no effect on the request.
func (m Mode) Shadows() bool { return m == Shadow || m == ShadowQuota }

// OnError is the policy for a charge whose store cannot be asked.
type OnError uint8

// The choices.
const (
	OnErrorLocal OnError = iota // the limit is kept in this process's own memory until the store is back
	OnErrorAllow                // the charge is allowed
	OnErrorDeny                 // the charge is denied
)

// ErrLimit is wrapped by the error of a store that cannot keep a limit exactly. The error is no
// sign of the store's health.
var ErrLimit = errors.New("this store cannot keep the limit exactly")

// ErrNotListed is the error of a store that cannot list the holders of a state.
var ErrNotListed = errors.New("this store does not list the holders of a rate limit")

// Charge is hits applied to one key.
type Charge struct {
	Key           []byte           // any bytes; belongs to the caller, who may change them after the call
	Limit         algorithms.Limit // must be valid
	Hits          int64            // -algorithms.MaxHits to algorithms.MaxHits; 0 is a probe, negative a refund
	Rule          int              // a number that all charges of one rule in a request share; these stand side by side
	Mode          Mode
	CountRejected bool // denied hits count, too
	OnError       OnError
	Exact         bool // each hit is decided by the shared store, never from hits taken in advance

	// Hash is HashOf(Key), or 0. A caller that has hashed the key sets Hash in its own charge, so that
	// a store does not hash the key again. A store changes no Hash of its caller.
	Hash uint64

	// Hold makes the charge the begin or the end of a holder. Nil: an ordinary charge. Concurrency
	// needs a holder: without one a charge asks as a probe, and holds nothing. A store may keep no
	// pointer to Hold after the call.
	Hold *Hold

	// Before is the limits that Limit replaced, each ahead of the one that takes its hits, see Taker.
	// The used hits under these carry over to the state of the charge, as [algorithms.Carry] says, and
	// then the charge is decided. Nil: none. Hits carry over also when the charge is denied, and by a
	// Peek.
	Before []Former

	// Left receives the state of the key as the request leaves it, for callers that go on from the
	// state. Nil: no need. A store that does not tell states leaves *Left as it is.
	Left *State
}

// Former is a limit that the limit of a charge replaced.
type Former struct {
	Key   []byte // of the charge, under this limit
	Limit algorithms.Limit
	Both  bool // other processes may still use the limit: the hits of the charge carry over to its state, too

	// Skips is the number of limits in Before between this one and the limit that takes its hits.
	Skips uint8

	// Parts and To are the parts in which the two stores of states count a hit: under this limit, and
	// under its taker. 0 means 1.
	Parts, To uint32
}

// Taker returns the place in Before of the limit that takes the hits of limit n there. The length
// of Before stands for the limit of the charge.
func (c *Charge) Taker(n int) int { return n + 1 + int(c.Before[n].Skips) }

//nolint:gochecknoglobals // all rooms find the same hash for a key; nothing changes the seed
var seed = maphash.MakeSeed()

// HashOf returns the hash of a key, at least 1. Clients cannot foresee it. A key has the same hash
// as long as the process runs.
func HashOf(key []byte) uint64 { return max(maphash.Bytes(seed, key), 1) }

// KeyHash returns Hash, or computes it.
func (c *Charge) KeyHash() uint64 {
	if c.Hash != 0 {
		return c.Hash
	}
	return HashOf(c.Key)
}

// Store keeps states. All methods are safe for concurrent use.
type Store interface {
	// TakeNow applies the charges as one transaction and writes the decision for charges[i] to
	// decisions[i], which must be at least as long. admitted is the verdict on the request as a whole.
	// TakeNow waits for no network, file or other process; locks that are held for microseconds are no
	// wait. If the transaction needs a wait, or fails, TakeNow changes nothing, and decided is false.
	// The caller may then call TakeAll. A server may call TakeNow on the goroutine that reads a
	// connection.
	TakeNow(charges []Charge, decisions []algorithms.Decision) (admitted, decided bool)

	// TakeAll applies independent transactions, in any order, with one wait where the store can. An
	// Err, of Ctx or of the store, means that the transaction was not decided. As far as the store can
	// know it charged nothing then. As soon as transactions are decided or have failed, TakeAll calls
	// decided with their indexes, on the calling goroutine. A call may have several indexes, and each
	// index comes once. The slice is valid during the call. TakeAll returns after all indexes.
	//
	// A transaction whose Ctx ends, by its deadline or by its cancellation, waits no longer. A store
	// may decide a transaction after its deadline, if that takes no wait. A Ctx may have a deadline
	// and a nil Done.
	TakeAll(transactions []Transaction, decided func(indexes []int))

	// Peek writes the decision that charges[i] alone would get now to decisions[i]. Peek charges
	// nothing and creates nothing. A store that tells its source sets charges[i].Left.Source; the rest
	// of Left means nothing then. An error is of ctx or of the store.
	Peek(ctx context.Context, charges []Charge, decisions []algorithms.Decision) error

	// Reset forgets the states of the charges' keys, so that the keys are full, and returns the number
	// of states. Only Key, Limit.Algorithm and Limit.Period of a charge count. An error is of ctx or
	// of the store.
	Reset(ctx context.Context, charges []Charge) (forgotten int, err error)

	// Holders returns the holders of the charge's state, the next one to run out first, at most that
	// many, and the number of all. A store that cannot list the holders of a rate limit returns
	// ErrNotListed. Only Key, Limit.Algorithm and Limit.Period of the charge count.
	Holders(ctx context.Context, charge *Charge, most int) (held []Held, all int, err error)

	// Forget makes a store that answers some requests from its memory of earlier answers ask again for
	// each key. Forget drops no counts, and no hits that are owed. A limiter calls Forget when rules
	// change, so that no answer comes from the rules before.
	Forget()
}

// Take lets a store decide one transaction: at once if the store can, else with a wait. err is of
// ctx or of the store, and means that Take decided nothing.
func Take(ctx context.Context, s Store, charges []Charge, decisions []algorithms.Decision) (admitted bool, err error) {
	if ctx.Err() == nil {
		if admitted, decided := s.TakeNow(charges, decisions); decided {
			return admitted, nil
		}
	}
	one := [1]Transaction{{Ctx: ctx, Charges: charges, Decisions: decisions}}
	s.TakeAll(one[:], func([]int) {})
	return one[0].Admitted, one[0].Err
}

// Local is a store in this process that can go on from the states of another store. TakeNow of a
// Local decides every transaction, and no method fails but with an error of ctx.
type Local interface {
	Store

	// Continue puts the states of another store in place of the own states of the charges' keys. The
	// other store told states[i] in the Left of charges[i], and decided decisions[i]. A zero states[i]
	// leaves the key as it is. An algorithm without a state goes on from the decision, and from
	// [State.Own], so that the key has at most as much left. All three must have the same length, and
	// are not kept. A state's age counts by its own clock, so the clocks of the two stores may differ.
	// An older state than the last one of the key may be ignored.
	Continue(charges []Charge, states []State, decisions []algorithms.Decision)
}

// Remote is a store that several processes share, and that may be slow or away. TakeNow of a Remote
// decides nothing.
type Remote interface {
	Store

	// Later charges c.Hits to the key of c as at an earlier instant of the store's clock, also hits
	// above the limit, and returns at once. Only Key, Limit and Hits of c count. The store adds up the
	// hits of a key and applies the sum after a moment. A later Take, Peek or Reset of that key comes
	// after the sum. Hits of a bucket cost their number less the gain of their part. Hits that cannot
	// be charged in time, and hits above the store's bounds, are dropped and counted in metrics.
	Later(c *Charge, at algorithms.Instant, part Part)

	// HoldLater applies a charge with a Hold as at an earlier instant of the store's clock, and
	// returns at once. HoldLater keeps a copy of the charge and of its Hold, and writes no Was. The
	// phase is HoldBegun, HoldEnd, HoldCancel or HoldPair, which is HoldEnd or HoldBegun with the
	// estimate. Charges of one holder are applied in the order of the calls, and may be merged. The
	// store sends them after a moment, but before any later Take, Peek or Reset of the key. A charge
	// without an answer is sent again: its effect does not repeat while the holder is known. A charge
	// that cannot be sent before the holder has run out, or is above the store's bounds, is dropped
	// and counted in metrics.
	HoldLater(c *Charge, at algorithms.Instant)

	// Now returns the instant by the store's clock, which aligns the windows of a limit. The zero
	// Limit: the clock of [State].Now, of Later and of HoldLater.
	Now(l algorithms.Limit) algorithms.Instant

	// Shards returns the names of the store's shards: the parts that may be away alone. A shard has
	// its index as number, and "" stands for a number without a shard. At least one shard has a name.
	Shards() []string

	// Shard returns the number of the shard of a charge's key. Only Key, Limit, and whether there is a
	// Hold, count. Each request calls Shard for each charge.
	Shard(c *Charge) int

	// Health returns how a shard answers now, without a lock.
	Health(shard int) Health

	// Silences returns a channel that holds a value after a shard has fallen silent. While callers
	// wait for a silent shard, more values come.
	Silences() <-chan struct{}

	// Release has all calls for a shard fail, as after their deadline. Calls of Await go on. Release
	// does not wait for that, and returns the number of the calls.
	Release(shard int) (calls int)

	// Await returns nil if a shard would serve now. While ctx lasts, Await waits for a connection that
	// is being made, and asks the shard.
	Await(ctx context.Context, shard int) error
}

// Health says how a shard of a [Remote] answers.
type Health struct {
	Answered time.Time // when the shard last completed a round trip, in time for its callers or not; zero: never

	// Silent is how long the shard has owed answers without giving one; 0 as long as that is usual. A
	// stall of this process is no silence.
	Silent time.Duration
	Fleet  int   // processes that share the store; 0: not known
	Share  Share // of this process
	Told   bool  // all processes have told their hits since the store was last away
}

// Circle is the length of the circle of [Share].
const Circle = 1 << 24

// Share is the share of a process in each limit, while the store is away. The share is an arc of a
// circle, and no two processes have one part of the circle. The hits of a limit are points on the
// circle at equal distances. So the shares in a limit are whole numbers, and their sum is at most
// the limit. The zero value is not known: the whole.
type Share struct{ From, To uint32 }

// Part returns the share as a part of the circle, from 0 to 1.
func (s Share) Part() float64 { return float64(s.To-s.From) / Circle }

// Admitted gives the verdict on a request. A denied charge in Enforce mode denies the request. So
// do the rules in Quota mode, if there is at least one, each has a denied charge, and no rule is in
// ShadowQuota mode. A charge with a Hold counts only if it is a begin. len(decisions) must be at
// least len(charges).
func Admitted(charges []Charge, decisions []algorithms.Decision) bool {
	quotas, over, last := 0, 0, -1 // last is the charge before that counts
	for i := range charges {
		c := &charges[i]
		if c.IsEnd() {
			continue
		}
		denied := !decisions[i].Allowed
		switch c.Mode {
		case Enforce:
			if denied {
				return false
			}
		case Quota:
			again := last >= 0 && charges[last].Mode == Quota && charges[last].Rule == c.Rule
			if !again {
				quotas++
			}
			if denied && !(again && ruleDenied(charges, decisions, last)) {
				over++
			}
		case ShadowQuota:
			quotas++
		case Shadow:
		}
		last = i
	}
	return quotas == 0 || over < quotas
}

// ruleDenied reports whether the rule of charges[i] has a denied charge at i or before.
func ruleDenied(charges []Charge, decisions []algorithms.Decision, i int) bool {
	for rule := charges[i].Rule; i >= 0 && charges[i].Rule == rule; i-- {
		if !decisions[i].Allowed {
			return true
		}
	}
	return false
}

// Package store is the contract of every store of rate limit states: to apply the charges of one
// request as one transaction, and to return the decisions. Package memstore keeps states in this
// process, package redisstore in Redis. Package storetest has the contract as cases that every
// store must pass.
//
// # The transaction
//
// Each (Key, Limit.Algorithm, Limit.Period) has a state of its own. Limit.Requests or Limit.Burst
// may differ from the last charge of the state; then hits are taken as [algorithms.TakeAs] says.
//
// Take evaluates the charges in order, all at one instant, each on top of the charges before. So a
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
	Local OnError = iota // the limit is kept in this process's own memory until the store is back
	Allow                // the charge is allowed
	Deny                 // the charge is denied
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

	// Take and TakeNow of a store that is [Hashing] set Hash to a hash of the key, the algorithm and
	// the period, at least 1. Clients cannot foresee the hash. The same key has the same hash as long
	// as the process runs.
	Hash uint64

	// Hold makes the charge the begin or the end of a holder. Nil: an ordinary charge. Concurrency
	// needs a holder: without one a charge asks as a probe, and holds nothing. A store may keep no
	// pointer to Hold after the call.
	Hold *Hold

	// Left receives the state of the key as the request leaves it, for callers that go on from the
	// state. Nil: no need. A store that does not tell states leaves *Left as it is.
	Left *State
}

// Store keeps states. All methods are safe for concurrent use.
type Store interface {
	// Take applies the charges as one transaction and writes the decision for charges[i] to
	// decisions[i], which must be at least as long. Take reports whether the request as a whole is
	// admitted. An error, of ctx or of the store, means that Take decided nothing. As far as the store
	// can know it charged nothing then.
	Take(ctx context.Context, charges []Charge, decisions []algorithms.Decision) (admitted bool, err error)

	// Peek writes the decision that charges[i] alone would get now to decisions[i]. Peek charges
	// nothing and creates nothing. A store that tells its source sets charges[i].Left.Source; the rest
	// of Left means nothing then.
	Peek(ctx context.Context, charges []Charge, decisions []algorithms.Decision) error

	// Reset forgets the states of the charges' keys, so that the keys are full, and returns the number
	// of states. Only Key, Limit.Algorithm and Limit.Period of a charge count.
	Reset(ctx context.Context, charges []Charge) (forgotten int, err error)
}

// Prompt is a store that decides some transactions, or all, without waiting for a network, a file
// or another process. Locks that are held for microseconds are no wait.
type Prompt interface {
	// Prompt reports whether TakeNow decides every transaction. The answer never changes.
	Prompt() bool

	// TakeNow is Take for a transaction that needs no wait. If the transaction needs one, or fails,
	// TakeNow changes nothing, and decided is false; the caller may then call Take. A server may call
	// TakeNow on the goroutine that reads a connection.
	TakeNow(charges []Charge, decisions []algorithms.Decision) (admitted, decided bool)
}

// Hashing is a store that tells the hash of each charge, as it needs the hash anyway.
type Hashing interface {
	// SetsHash reports whether Take and TakeNow set Charge.Hash of all charges. The answer never
	// changes.
	SetsHash() bool
}

// Admitted gives the verdict on a request. A denied charge in Enforce mode denies the request. So
// do the rules in Quota mode, if there is at least one, each has a denied charge, and no rule is in
// ShadowQuota mode. A charge with a Hold counts only if it is a begin. len(decisions) must be at
// least len(charges).
func Admitted(charges []Charge, decisions []algorithms.Decision) bool {
	quotas, over, last := 0, 0, -1 // last is the charge before that counts
	for i := range charges {
		c := &charges[i]
		if c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin {
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

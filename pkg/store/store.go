// Package store says what every store of rate limit states promises: to apply the charges of one request as one
// transaction and to say what it decided. It keeps nothing itself; memstore keeps states in this process. The promises are
// written as cases in storetest, which every store must pass.
//
// # The transaction
//
// A state is kept for each (Key, Limit.Algorithm, Limit.Period): charges that differ in any of them share nothing. Where
// Limit.Requests or Limit.Burst differ from those of the state's last charge, hits are taken as [algorithms.TakeAs] says.
//
// Take evaluates the charges in order, all at one instant, each on top of those before it; so a key charged twice is charged
// twice. Then [Admitted] gives the verdict on the request as a whole:
//
//   - Admitted: every charge that its limit allows is applied. One that is denied (in shadow mode, or one of several quota
//     rules) is not, unless it has CountRejected.
//   - Denied: nothing is applied but the charges with CountRejected, all of those, in order. A charge that was denied keeps
//     the decision it was given in the evaluation. One that was allowed but not applied stays Allowed; its Remaining and
//     ResetAfter are those of the key as it is left. One that was allowed and is applied has the decision of that, which is a
//     denial where it passed only thanks to a refund of the same request that is not applied.
//
// No other transaction sees a part of it. An instant earlier than one that the key has seen counts as that one.
package store

import (
	"context"
	"errors"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Mode says what a denied charge means for the request.
type Mode uint8

// The modes.
const (
	Enforce     Mode = iota // the request is denied
	Quota                   // the request is denied when every rule in quota mode is
	Shadow                  // nothing: it is decided and counted only
	ShadowQuota             // nothing, but it is a rule in quota mode that is not over, so that the others alone do not deny
)

// Shadows reports whether a denial means nothing for the request.
func (m Mode) Shadows() bool { return m == Shadow || m == ShadowQuota }

// OnError says what becomes of a charge when its store cannot be asked.
type OnError uint8

// The choices.
const (
	Local OnError = iota // the limit is kept in this process's own memory until the store is back
	Allow                // the charge is allowed
	Deny                 // the charge is denied
)

// ErrLimit is wrapped by the error of a store that cannot keep a limit exactly. It says nothing of the store's health.
var ErrLimit = errors.New("this store cannot keep the limit exactly")

// Charge is hits applied to one key.
type Charge struct {
	Key           []byte           // any bytes; belongs to the caller, who may change it after the call
	Limit         algorithms.Limit // must be valid
	Hits          int64            // -algorithms.MaxHits to algorithms.MaxHits; 0 is a probe, negative a refund
	Rule          int              // charges of one rule in a request carry the same number and stand side by side
	Mode          Mode
	CountRejected bool // the hits count even when they are denied
	OnError       OnError
}

// Store keeps states. All methods are safe for concurrent use.
type Store interface {
	// Take applies the charges as one transaction and writes the decision for charges[i] to decisions[i], which must be at
	// least as long. It reports whether the request as a whole is admitted. An error (that of ctx when it has ended, or one
	// of the store's own) means that nothing was decided; nothing was charged then as far as the store can know.
	Take(ctx context.Context, charges []Charge, decisions []algorithms.Decision) (admitted bool, err error)

	// Peek writes to decisions[i] what charges[i] alone would find now. It charges nothing and creates nothing.
	Peek(ctx context.Context, charges []Charge, decisions []algorithms.Decision) error

	// Reset forgets the states of the charges' keys, so that these are as if never used, and returns how many there were.
	// Only Key, Limit.Algorithm and Limit.Period of a charge count.
	Reset(ctx context.Context, charges []Charge) (forgotten int, err error)
}

// Admitted gives the verdict on a request: it is denied when a charge in Enforce mode is, or when there are rules in Quota
// mode, each of them has a denied charge, and there is none in ShadowQuota mode. len(decisions) must be at least len(charges).
func Admitted(charges []Charge, decisions []algorithms.Decision) bool {
	quotas, over := 0, 0
	for i := range charges {
		c := &charges[i]
		denied := !decisions[i].Allowed
		switch c.Mode {
		case Enforce:
			if denied {
				return false
			}
		case Quota:
			again := i > 0 && charges[i-1].Mode == Quota && charges[i-1].Rule == c.Rule
			if !again {
				quotas++
			}
			if denied && !(again && ruleDenied(charges, decisions, i-1)) {
				over++
			}
		case ShadowQuota:
			quotas++
		case Shadow:
		}
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

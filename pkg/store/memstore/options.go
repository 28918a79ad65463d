package memstore

import (
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

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

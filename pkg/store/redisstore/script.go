package redisstore

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// parts of the script, in their order. The first comment says what the script is given and what it returns.
//
//go:embed script/*.lua
var scriptParts embed.FS

// readScript returns the script, which applies transactions to the states of its keys.
func readScript() (string, error) {
	var script strings.Builder
	files, err := scriptParts.ReadDir("script")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		part, err := scriptParts.ReadFile("script/" + f.Name())
		if err != nil {
			return "", err
		}
		script.Write(part)
	}
	return script.String(), nil
}

// kind is what the script does with a transaction.
type kind uint8

// The kinds, as the script numbers them.
const (
	take    kind = iota // a transaction as package store has them
	reserve             // the part of one that lies in one slot: as if the request were admitted, without what only gives back
	peek                // one charge, of which nothing is kept
	correct             // charges that belong to an earlier instant
)

// correction is what the first charge of a key brings along in a transaction of kind correct. The charges are what should have
// been applied to the state before; that is what happens when the state is what it was after what was applied instead. Else
// the key is charged the difference, as at the instant to which it belongs.
type correction struct {
	at         int64    // the instant, in Unix microseconds
	deficits   deficits // of the key at that instant, before what is now given back
	difference int64    // hits
	after      string   // as the script keeps states; notAState for none that there can be
	before     string
}

// notAState is no state of any algorithm.
const notAState = "?"

// deficits is how far a bucket is below its capacity: whole hits, and the rest in 1/period hits.
type deficits struct{ whole, part uint64 }

// What the answer says of the whole of it.
const (
	done = 0
	late = 1 // it came too late and was not applied
)

var errAnswer = errors.New("the script's answer cannot be read")

const headerSize = 8 + 8 + 6 + 1

// appendHeader begins a request. now is 0 for the server's own time, deadline 0 for none, both in Unix microseconds.
func appendHeader(b []byte, now, deadline int64) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(now))
	b = binary.LittleEndian.AppendUint64(b, uint64(deadline))
	return append(b, 0, 0, 0, 0, 0, 0, 0)
}

// appendTransaction adds the beginning of a transaction of n charges.
func appendTransaction(b []byte, k kind, times, n int) []byte {
	if n > 1 || k == correct {
		b[headerSize-1] = 1
	}
	b = append(b, byte(k))
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// appendCharge adds a charge to the key with that number, counted from 0, of an algorithm and a capacity as the script has
// them, and notes the algorithm in the header of b. A correction of that key may follow.
func appendCharge(b []byte, key int, c *store.Charge, algorithm byte, capacity uint32, sameRule bool, fix *correction) []byte {
	b[8+8+int(algorithm)-1] = 1
	flags := byte(c.Mode)
	if c.CountRejected {
		flags |= 4
	}
	if sameRule {
		flags |= 8
	}
	if fix != nil {
		flags |= 16
	}
	hits := min(max(c.Hits, -algorithms.MaxHits), algorithms.MaxHits)
	b = binary.LittleEndian.AppendUint32(b, uint32(key)+1)
	b = append(b, algorithm, flags)
	b = binary.LittleEndian.AppendUint32(b, c.Limit.Requests)
	b = binary.LittleEndian.AppendUint32(b, capacity)
	b = appendInt(b, int64(c.Limit.Period/Granularity), 7)
	b = appendInt(b, hits, 5)
	if fix == nil {
		return b
	}
	b = appendInt(b, fix.at, 8)
	b = appendInt(b, int64(fix.deficits.whole), 5)
	b = appendInt(b, int64(fix.deficits.part), 7)
	b = appendInt(b, min(max(fix.difference, -algorithms.MaxHits), algorithms.MaxHits), 5)
	for _, state := range []string{fix.after, fix.before} {
		b = append(append(b, byte(len(state))), state...)
	}
	return b
}

// appendInt adds the low size bytes of v.
func appendInt(b []byte, v int64, size int) []byte {
	for range size {
		b = append(b, byte(v))
		v >>= 8
	}
	return b
}

// answer reads what the script returned, from the front on.
type answer struct {
	rest string
	bad  bool // it was shorter than what was read of it
}

func (a *answer) bytes(n int) string {
	if len(a.rest) < n {
		a.bad, a.rest = true, ""
		return ""
	}
	b := a.rest[:n]
	a.rest = a.rest[n:]
	return b
}

func (a *answer) uint(size int) uint64 {
	var v uint64
	b := a.bytes(size)
	for i := len(b) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// added is what a reservation has put into a key's log: hits, at an instant in Unix microseconds.
type added struct{ hits, at int64 }

// decision reads a decision of sliding_window_log, and what a reservation has added to the log.
func (a *answer) decision() (d algorithms.Decision, to added) {
	d = algorithms.Decision{Allowed: a.uint(1) == 1, Remaining: uint32(a.uint(4))}
	d.RetryAfter = microseconds(a.uint(8))
	d.ResetAfter = microseconds(a.uint(8))
	return d, added{hits: int64(a.uint(5)), at: int64(a.uint(7))}
}

// check returns an error unless all of the answer was read and nothing beyond.
func (a *answer) check() error {
	if a.bad || a.rest != "" {
		return fmt.Errorf("%w: %d bytes left, too short: %v", errAnswer, len(a.rest), a.bad)
	}
	return nil
}

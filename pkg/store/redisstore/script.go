package redisstore

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// The parts of the script. request.lua describes the request and the answer. Each algorithm has a
// file of its name.
//
//go:embed script/*.lua
var scriptParts embed.FS

// maxAlgorithms bounds the numbers of algorithms, for which the header of a request has a byte
// each. The last byte says that hits carry over.
const maxAlgorithms = 15

// farthestBack is how far the last charge of a key may lie ahead of Redis's clock. Up to that the
// key stands still until the clock has caught up. A key further ahead goes on from now, as the
// clock must have gone back.
const farthestBack = 2 * time.Second

// scriptOf returns a script: the parts that all scripts have, and further ones.
func scriptOf(further ...string) (string, error) {
	var script strings.Builder
	var errs []error
	read := func(name string) {
		text, err := scriptParts.ReadFile("script/" + name + ".lua")
		errs = append(errs, err)
		script.Write(text)
	}
	algorithm := func(name string, number int, layout string) {
		var format strings.Builder
		for _, size := range layout {
			format.WriteString("I" + string(size))
		}
		fmt.Fprintf(&script, "if uses_%d == 1 then\nlocal algorithm = {format = '<%s'}\n", number, format.String())
		read(name)
		fmt.Fprintf(&script, "algorithms[%d] = algorithm\nend\n", number)
	}
	all := append(algorithms.Algorithms(), algorithms.InternalAlgorithms()...)
	last := int(slices.Max(all))
	fmt.Fprintf(&script, "local BACK = %d\n", farthestBack/Granularity)
	script.WriteString("local now, deadline, general")
	for n := range last + 1 {
		fmt.Fprintf(&script, ", uses_%d", n)
	}
	fmt.Fprintf(&script, " = struct.unpack('<I8I8I1I1%s', ARGV[1])\n", strings.Repeat("I1", last))
	script.WriteString("local uses_calendars = false")
	for _, a := range algorithms.CalendarAlgorithms() {
		fmt.Fprintf(&script, " or uses_%d == 1", a)
	}
	script.WriteString("\n")
	read("request")
	read("calendars")
	algorithm("counter", counterNumber, "")
	for _, a := range all {
		algorithm(fileOf(a), int(a), a.Layout())
	}
	for _, part := range further {
		read(part)
	}
	if last >= maxAlgorithms {
		errs = append(errs, fmt.Errorf("algorithm %d: must be at most %d", last, maxAlgorithms-1))
	}
	return script.String(), errors.Join(errs...)
}

func fileOf(a algorithms.Algorithm) string {
	name := a.String()
	if a.HasCalendar() { // the same name as without a calendar
		name = "calendar" + name[strings.LastIndexByte(name, '_'):]
	}
	return name
}

type action uint8

// The actions, as the script numbers them.
const (
	take    action = iota // applies a transaction as package store says
	reserve               // applies the part in one slot as if the request were admitted, without refunds that exceed the hits
	peek                  // evaluates one charge and keeps nothing
	correct               // charges hits that belong to an earlier instant

	holding // is added to the others if a charge has a holder

	carryOver = 8 // moves hits from limits to their successors, ahead of the transactions
)

// Values of the header's third field: the script makes only the functions that the request needs.
const (
	isGeneral = 1  // a transaction has several charges, or is a correction
	isHolding = 2  // a charge has a holder, and its transaction is not lone
	isEnding  = 4  // a charge has a holder and is no begin
	isBegun   = 8  // a charge is a begin; both, if it may be
	isLone    = 16 // a transaction is lone, see call.lone
	isSeeding = 32 // states are put back, see seeds
)

// fix comes with the first charge of a key in a transaction of action correct. Unless the Fix fits,
// the script charges the hits as at the instant to which they belong.
type fix struct {
	owed.Fix

	at int64 // the instant, in Unix microseconds
}

// First byte of the script's answer.
const (
	done = 0
	late = 1 // the deadline had passed, and the script did nothing

	otherTime = 2 // the windows of a calendar are of another time, and the script did nothing
)

var errReply = errors.New("the script's answer cannot be read")

const headerSize = 8 + 8 + 1 + 1 + maxAlgorithms

// appendHeader begins a request. now is 0 for the server's own time, deadline 0 for none, both in
// Unix microseconds.
func appendHeader(b []byte, now, deadline int64) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(now))
	b = binary.LittleEndian.AppendUint64(b, uint64(deadline))
	return append(b, make([]byte, headerSize-16)...)
}

// appendTransaction adds the beginning of a transaction of n charges. holds says that one of these
// has a holder, lone see call.lone.
func appendTransaction(b []byte, a action, times, n int, holds, lone bool) []byte {
	if n > 1 || a == correct || holds && a == reserve {
		b[16] |= isGeneral
	}
	switch {
	case lone:
		b[16] |= isLone
	case holds:
		b[16] |= isHolding
	}
	if holds && a != correct {
		a += holding
	}
	b = append(b, byte(a))
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// appendCharge adds a charge to the key with that number, counted from 0, and marks the algorithm
// in the header of b. algorithm and capacity are as the script has them. f may be nil.
func appendCharge(b []byte, key int, c *store.Charge, algorithm byte, capacity uint32, sameRule bool, f *fix) []byte {
	b[17+int(algorithm)] = 1
	flags := byte(c.Mode)
	if c.CountRejected {
		flags |= 4
	}
	if sameRule {
		flags |= 8
	}
	if f != nil {
		flags |= 16
	}
	if c.Hold != nil && c.Hold.Phase != 0 {
		flags |= 32
	}
	hits := min(max(c.Hits, -algorithms.MaxHits), algorithms.MaxHits)
	b = binary.LittleEndian.AppendUint32(b, uint32(key)+1)
	b = append(b, algorithm, flags)
	b = appendInt(b, int64(c.Limit.PerPeriod()), 7)
	b = binary.LittleEndian.AppendUint32(b, capacity)
	b = appendInt(b, int64(c.Limit.Period/Granularity), 7)
	b = appendInt(b, hits, 5)
	if f == nil {
		return b
	}
	b = appendInt(b, f.at, 8)
	for _, value := range []string{f.Left, f.Target, f.Was} {
		b = append(append(b, byte(len(value))), value...)
	}
	return b
}

func appendInt(b []byte, v int64, size int) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(v))[:len(b)+size]
}

type reader struct {
	rest string
	bad  bool // the answer was too short
}

func (r *reader) bytes(n int) string {
	if len(r.rest) < n {
		r.bad, r.rest = true, ""
		return ""
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint(size int) uint64 {
	var b [8]byte
	copy(b[:], r.bytes(size))
	return binary.LittleEndian.Uint64(b[:])
}

// added is the hits that a reservation has put into a list, and their instant in Unix microseconds.
type added struct{ hits, at int64 }

// decision reads a decision about a list, and the hits that a reservation has added.
func (r *reader) decision() (d algorithms.Decision, in added) {
	d = algorithms.Decision{Allowed: r.uint(1) == 1, Remaining: r.uint(4)}
	d.RetryAfter = microseconds(r.uint(8))
	d.ResetAfter = microseconds(r.uint(8))
	return d, added{hits: int64(r.uint(5)), at: int64(r.uint(7))}
}

// check returns an error unless the answer was read to its end and not beyond.
func (r *reader) check() error {
	if r.bad || r.rest != "" {
		return fmt.Errorf("%w: %d bytes left, too short: %v", errReply, len(r.rest), r.bad)
	}
	return nil
}

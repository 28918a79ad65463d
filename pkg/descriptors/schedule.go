package descriptors

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// MaxSchedule is the most entries of a schedule.
const MaxSchedule = 100

// MaxFactor is the largest factor of an entry of a schedule.
const MaxFactor = 1_000_000

// Schedule gives a limit other numbers at some times. The first entry that holds counts. While no
// entry holds, the limit's own numbers count. Safe for concurrent use.
type Schedule struct {
	entries []Scheduled
	most    uint64               // largest capacity at any time, by the numbers of the rule
	last    atomic.Pointer[span] // found last; nil before the first
}

// Scheduled is an entry of a schedule.
type Scheduled struct {
	// As configured; "" for a part that is left out. Zone is not empty.
	From, Until, Days, Hours, Zone string

	Factor string // "" for an entry with Limit's requests
	Limit  algorithms.Limit

	micros      uint64 // of Factor; 0 without
	from, until algorithms.Instant
	days        uint8 // a bit for each time.Weekday
	zone        *time.Location
	opens       *algorithms.Calendar // days that begin with the entry's hours; nil: at all hours of all days
	closes      *algorithms.Calendar // days that begin at the end of the hours; nil: with the next day
}

// span is a time in which one entry of a schedule holds.
type span struct {
	from, until algorithms.Instant // from <= instant < until
	entry       int                // index; the number of entries while no entry holds
}

// steps bounds the search for the end of a span: a year of days that open and close.
const steps = 800

// Entries returns the entries in order. The caller must not change the slice.
func (s *Schedule) Entries() []Scheduled { return s.entries }

// At returns the index of the entry that holds at an instant; the number of entries for none. Until
// the second result this stays so. If no change is known, that is the last instant. At seldom
// allocates: it remembers the span of the last call.
func (s *Schedule) At(now algorithms.Instant) (entry int, until algorithms.Instant) {
	last := s.last.Load()
	if last == nil || now < last.from || now >= last.until {
		last = &span{from: now}
		last.entry, last.until = s.find(now)
		for range steps {
			entry, until := s.find(last.until)
			if last.until == math.MaxInt64 || entry != last.entry {
				break
			}
			last.until = until
		}
		s.last.Store(last)
	}
	return last.entry, last.until
}

// find is At for the shortest time that is certain.
func (s *Schedule) find(now algorithms.Instant) (entry int, until algorithms.Instant) {
	until = math.MaxInt64
	for i := range s.entries {
		holds, stays := s.entries[i].at(now)
		if until = min(until, stays); holds {
			return i, until
		}
	}
	return len(s.entries), until
}

// at reports whether an entry holds at an instant, and how long this stays so at least.
func (e *Scheduled) at(now algorithms.Instant) (holds bool, until algorithms.Instant) {
	switch {
	case now < e.from:
		return false, e.from
	case now >= e.until:
		return false, math.MaxInt64
	case e.opens == nil:
		return true, e.until
	}
	open, next := e.opens.Window(now)
	shut := next
	if e.closes != nil {
		_, shut = e.closes.Window(open - 1) // hours that the clock skips end as they begin
	}
	day := time.Unix(0, int64(open)).In(e.zone).Weekday()
	if now < shut && e.days&(1<<day) != 0 {
		return true, min(shut, next, e.until)
	}
	return false, min(next, e.until)
}

// When returns the times of an entry in words, such as "mon-fri 09:00-18:00 Europe/Berlin".
func (e *Scheduled) When() string {
	var all []string
	if e.From != "" {
		all = append(all, "from "+e.From)
	}
	if e.Until != "" {
		all = append(all, "until "+e.Until)
	}
	for _, part := range []string{e.Days, e.Hours} {
		if part != "" {
			all = append(all, part)
		}
	}
	if len(all) == 0 {
		return "always"
	}
	return strings.Join(append(all, e.Zone), " ")
}

// Gives returns the numbers of an entry in words, such as "200, burst 300" or "2 times".
func (e *Scheduled) Gives(money bool) string {
	number := func(n uint64) string {
		if money {
			return Money(n)
		}
		return strconv.FormatUint(n, 10)
	}
	switch {
	case e.Factor != "":
		return e.Factor + " times"
	case e.Limit.Burst > 0:
		return number(e.Limit.PerPeriod()) + ", burst " + number(uint64(e.Limit.Burst))
	default:
		return number(e.Limit.PerPeriod())
	}
}

// In returns the time zone of an entry.
func (e *Scheduled) In() *time.Location { return e.zone }

// Schedule returns the schedule of the limit, nil without one.
func (l *Limit) Schedule() *Schedule { return l.schedule }

// At returns the limit with the numbers of the entry of its schedule that holds at an instant;
// false: the numbers are its own. An entry with a factor multiplies also the numbers of a table.
func (l *Limit) At(now algorithms.Instant) (at Limit, changed bool) {
	entry, _ := l.schedule.At(now)
	if entry == len(l.schedule.entries) {
		return *l, false
	}
	at = *l
	l.schedule.entries[entry].apply(&at.Limit)
	at.SetPerPeriod(min(at.PerPeriod(), l.Most()))
	return at, true
}

// apply gives a limit the numbers of the entry.
func (e *Scheduled) apply(to *algorithms.Limit) {
	if e.micros == 0 {
		to.SetPerPeriod(e.Limit.PerPeriod())
		to.Burst = e.Limit.Burst
		return
	}
	burst := times(uint64(to.Burst), e.micros)
	to.SetPerPeriod(min(times(to.PerPeriod(), e.micros), algorithms.MaxCount))
	to.Burst = uint32(min(burst, algorithms.MaxHits))
}

// times returns n times a number of millionths, rounded to the nearest number, at least 1; 0 for 0.
func times(n, micros uint64) uint64 {
	if n == 0 {
		return 0
	}
	high, low := bits.Mul64(n, micros)
	low, carry := bits.Add64(low, Micros/2, 0)
	if high += carry; high >= Micros {
		return math.MaxUint64
	}
	product, _ := bits.Div64(high, low, Micros)
	return max(product, 1)
}

// Rises returns the next instant at which the schedule of the limit gives larger numbers than at
// now; false: not with the next change. The limit has the numbers of the rule or of a table.
func (l *Limit) Rises(now algorithms.Instant) (at algorithms.Instant, rises bool) {
	_, at = l.schedule.At(now)
	if at == math.MaxInt64 {
		return at, false
	}
	before, _ := l.At(now)
	next := *l
	if entry, _ := l.schedule.find(at); entry < len(l.schedule.entries) {
		l.schedule.entries[entry].apply(&next.Limit)
	}
	return at, next.PerPeriod() > before.PerPeriod() || next.Capacity() > before.Capacity()
}

// Peak returns the largest capacity that the limit has at any time of its schedule. Under a table
// that is the largest number of hits: a line may have any number.
func (l *Limit) Peak() uint64 {
	switch {
	case l.schedule == nil:
		return l.Capacity()
	case l.tabled != nil:
		return algorithms.MaxCount
	default:
		return l.schedule.most
	}
}

// Most returns the largest number of hits that a limit of the algorithm and the period has.
func (l *Limit) Most() uint64 {
	switch l.Algorithm {
	case algorithms.SlidingWindowLog:
		return MaxLogEntries
	case algorithms.TokenBucketInteger:
		return min(uint64(l.Period), algorithms.MaxHits)
	default:
		return l.Algorithm.MostPerPeriod()
	}
}

// appendMeaning appends all of a schedule that decides.
func (s *Schedule) appendMeaning(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, hasSchedule), uint64(len(s.entries)))
	for i := range s.entries {
		e := &s.entries[i]
		for _, text := range []string{e.From, e.Until, e.Days, e.Hours, e.Zone} {
			dst = appendSized(dst, text)
		}
		for _, n := range []uint64{e.micros, e.Limit.PerPeriod(), uint64(e.Limit.Burst)} {
			dst = binary.AppendUvarint(dst, n)
		}
	}
	return dst
}

package owed

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Left is one entry of a Book whose process ends, for the Book of a later process.
type Left struct {
	Key     []byte
	Saved   Clocks // when the process ended
	Here    bool   // the instants of hits are of the clock of the process
	Fix     Fix    // of hits to give back
	Part    store.Part
	Charges []LeftCharge
}

// LeftCharge is hits of an instant, or an event of a holder.
type LeftCharge struct {
	Limit algorithms.Limit
	Hits  int64
	At    algorithms.Instant
	Here  algorithms.Instant `json:",omitzero"` // the same of an event of a counter, by the clock of the process
	Hold  *store.Hold        `json:",omitempty"`

	Calendar *LeftCalendar `json:",omitempty"` // of the Limit, which has none
}

// LeftCalendar is an [algorithms.CalendarSpec] with the name of its time zone.
type LeftCalendar struct {
	Unit     algorithms.CalendarUnit
	Count    uint32
	FirstHit bool          `json:",omitzero"`
	Zone     string        `json:",omitzero"`
	Day      uint8         `json:",omitzero"`
	At       time.Duration `json:",omitzero"`
	Starts   time.Weekday  `json:",omitzero"`
}

// leaveCalendar writes the calendar of the limit down.
func (c *LeftCharge) leaveCalendar() {
	if c.Limit.Calendar == nil {
		return
	}
	s := c.Limit.Calendar.Spec()
	c.Limit.Calendar = nil
	c.Calendar = &LeftCalendar{s.Unit, s.Count, s.FirstHit, s.Zone.String(), s.Day, s.At, s.Starts}
}

// Leave takes all that waits out of the book, for Return of a later process. Calls under way stay:
// Redis may apply them after the end of this process.
func (b *Book) Leave(at Clocks) (all []Left) {
	b.Look(time.Time{}, at, func(e Entry) {
		if l := e.leave(at); len(l.Charges) > 0 {
			l.Key, l.Saved = e.Charge().Key, at
			for i := range l.Charges {
				l.Charges[i].leaveCalendar()
			}
			all = append(all, l)
		}
		e.tidy(b)
	})
	return all
}

// leave implements [Entry]. Hits of a bucket are left as of now. Of these hits the gain begins when
// the hits that Redis was told of are gained.
func (h *Hits) leave(now Clocks) Left {
	v := h.level
	t := h.tell(now)
	h.land(t.positive())
	l := Left{Here: h.here, Fix: h.fix}
	if v.added > 0 {
		l.Part = store.Part{Full: max(v.full, algorithms.IdleAt(v.limit, v.told)), Mine: v.mine, Of: v.of}
	}
	for i := range t.Charges {
		l.Charges = append(l.Charges, LeftCharge{Limit: t.Charges[i].Limit, Hits: t.Charges[i].Hits, At: t.Instant[i]})
	}
	return l
}

func (h *Holder) leave(Clocks) (l Left) {
	for i := range h.events {
		e := &h.events[i]
		l.Charges = append(l.Charges, LeftCharge{Limit: e.limit, Hits: e.hits, At: e.at, Here: e.here, Hold: &e.hold})
	}
	h.events = nil
	return l
}

// Return adds an entry that an earlier process has left. The time since counts: a bucket gains, and
// old hits are dropped. If a clock has gone back since, no time counts as passed. Return
// believes nothing, and fails if no Book leaves such a Left. calendar makes the calendars.
func (b *Book) Return(l *Left, now Clocks, calendar func(LeftCalendar) (*algorithms.Calendar, error)) error {
	if err := l.validate(); err != nil {
		return err
	}
	for i := range l.Charges {
		c := &l.Charges[i]
		if c.Calendar == nil {
			continue
		}
		var err error
		if c.Limit.Calendar, err = calendar(*c.Calendar); err != nil {
			return fmt.Errorf("charge %d: %w", i, err)
		}
	}
	redis, here := since{l.Saved.Redis, now.Redis}, since{l.Saved.Here, now.Here}
	late := Late{Here: l.Here, Fix: l.Fix, Part: l.Part}
	if late.Part != (store.Part{}) {
		late.Part.Full = redis.back(late.Part.Full)
	}
	for i := range l.Charges {
		of := &l.Charges[i]
		c := store.Charge{Key: l.Key, Limit: of.Limit, Hits: of.Hits, Hold: of.Hold}
		switch {
		case c.Hold != nil && of.Here != 0:
			b.AddEvent(&c, redis.at(c.Limit, of.At), here.at(c.Limit, of.Here))
		case c.Hold != nil:
			b.AddEvent(&c, redis.at(c.Limit, of.At), 0)
		case l.Here:
			late.At = here.at(c.Limit, of.At)
			b.Add(&c, late)
		default:
			late.At = redis.at(c.Limit, of.At)
			b.Add(&c, late)
		}
	}
	return nil
}

// since is the end of a process and the start of a later one, by one clock.
type since struct{ saved, now algorithms.Instant }

// at returns an instant of the earlier process as it counts now. Windows follow the clock.
func (s since) at(l algorithms.Limit, at algorithms.Instant) algorithms.Instant {
	if windowed(l.Algorithm) {
		return min(at, s.saved, s.now)
	}
	return s.back(min(at, s.saved))
}

// back moves an instant back by as much as the clock has gone back.
func (s since) back(at algorithms.Instant) algorithms.Instant {
	return max(0, min(at, s.saved.Add(algorithms.MaxPeriod))-max(0, s.saved-s.now))
}

func (l *Left) validate() error {
	if len(l.Key) == 0 || len(l.Charges) == 0 || min(l.Saved.Redis, l.Saved.Here) < 0 || l.Part.Mine > l.Part.Of {
		return errors.New("an entry without a key, charges or an instant")
	}
	for i := range l.Charges {
		c := &l.Charges[i]
		switch h := c.Hold; {
		case c.Limit.Calendar != nil || c.Calendar != nil && !c.Limit.Algorithm.HasCalendar():
			return fmt.Errorf("charge %d: has a calendar", i)
		case c.Limit.Validate() != nil:
			return fmt.Errorf("charge %d: %w", i, c.Limit.Validate())
		case min(c.At, c.Here) < 0 || max(c.Hits, -c.Hits) > algorithms.MaxHits || c.Hits == 0 && h == nil:
			return fmt.Errorf("charge %d: %d hits at %d", i, c.Hits, c.At)
		case h == nil && c.Limit.Algorithm == algorithms.Concurrency:
			return fmt.Errorf("charge %d: of concurrency, without a holder", i)
		case h != nil && (h.Phase < algorithms.HoldEnd || h.Phase > algorithms.HoldCancel ||
			h.AtMost < time.Millisecond || h.AtMost > algorithms.MaxPeriod):
			return fmt.Errorf("charge %d: phase %d of a holder for %v", i, h.Phase, h.AtMost)
		}
	}
	return nil
}

package redisstore

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// CloseKeeping is Close, and returns the owed hits and holders in records for Return in a later
// process. A record has at most that many bytes, and so have all together. The rest is lost, as at
// Close. Calls under way are lost, too: Redis may apply them later. Only the first Close returns
// records.
func (s *Store) CloseKeeping(record, all int) (records [][]byte) {
	o := s.outbox
	o.mu.Lock()
	o.keeps, o.keepsEach = all, record
	o.mu.Unlock()
	s.stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	records, o.left = o.left, nil
	return records
}

// Return adds a record of CloseKeeping of an earlier process to the owed hits and holders. The
// record must be on no disk any more, so that no other process tells it again. Return fails if no
// store of this version has made the record.
func (s *Store) Return(record []byte) error {
	var l owed.Left
	if err := json.Unmarshal(record, &l); err != nil {
		return fmt.Errorf("a record of owed hits: %w", err)
	}
	var err error
	s.in(l.Key, func(b *owed.Book) { err = b.Return(&l, s.clocks(), s.returned.calendar) })
	if err != nil {
		return fmt.Errorf("a record of owed hits: %w", err)
	}
	return nil
}

// returned is the calendars of records of an earlier process.
type returned struct {
	mu    sync.Mutex // guards known
	known map[owed.LeftCalendar]*algorithms.Calendar
}

// calendar returns the one calendar of a description in a record.
func (r *returned) calendar(of owed.LeftCalendar) (*algorithms.Calendar, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.known[of]; c != nil {
		return c, nil
	}
	s := algorithms.CalendarSpec{Unit: of.Unit, Count: of.Count, FirstHit: of.FirstHit, Day: of.Day, At: of.At, Starts: of.Starts}
	if !of.FirstHit {
		var err error
		if s.Zone, err = zones.Load(of.Zone); err != nil {
			return nil, err
		}
	}
	c, err := algorithms.NewCalendar(s)
	if err != nil {
		return nil, err
	}
	if r.known == nil {
		r.known = make(map[owed.LeftCalendar]*algorithms.Calendar)
	}
	r.known[of] = c
	return c, nil
}

// leaveLocked takes all that waits in a shard for CloseKeeping. The mu of the shard must be held.
func (o *outbox) leaveLocked(sh *shard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range sh.book.Leave(o.clocks()) {
		record, err := json.Marshal(l)
		if err == nil && len(record) <= min(o.keeps, o.keepsEach) {
			o.keeps -= len(record)
			o.left = append(o.left, record)
			continue
		}
		for i := range l.Charges {
			if l.Charges[i].Hold != nil {
				o.metrics.lostHolds.Add(1)
			} else {
				o.lose(l.Charges[i].Hits)
			}
		}
	}
}

package redisstore

import (
	"encoding/json"
	"fmt"

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
	s.in(l.Key, func(b *owed.Book) { err = b.Return(&l, s.clocks()) })
	if err != nil {
		return fmt.Errorf("a record of owed hits: %w", err)
	}
	return nil
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

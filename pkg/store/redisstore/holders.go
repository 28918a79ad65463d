package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Holders implements [store.Store], for Concurrency only. Holders fails as TakeAll does. Holders
// that change during the call may be left out.
func (s *Store) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	if charge.Limit.Algorithm != algorithms.Concurrency {
		return nil, 0, store.ErrNotListed
	}
	until, err := s.until(ctx, time.Now(), nil)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	where := s.locate(charge, s.here())
	server := where.server
	client, err := server.client()
	if err != nil {
		return nil, 0, err
	}
	ctx, done := server.queue.of(where.slot).command(ctx)
	held, all, err = server.holders(ctx, client, charge, s.Now(algorithms.Limit{}), most)
	if err := server.connection.Report(done(err)); err != nil {
		return nil, 0, fmt.Errorf("listing the holders of %q: %w", charge.Key, err)
	}
	return held, all, nil
}

func (s *server) holders(
	ctx context.Context, client rueidis.Client, c *store.Charge, now algorithms.Instant, most int,
) (held []store.Held, all int, err error) {
	set, _ := s.appendName(nil, c, 0)
	book := s.appendBook(nil, c)
	after := "(" + strconv.FormatInt(int64(now)/int64(Granularity), 10)
	results := client.DoMulti(ctx,
		client.B().Zcount().Key(string(set)).Min(after).Max("+inf").Build(),
		client.B().Zrangebyscore().Key(string(set)).Min(after).Max("+inf").Limit(0, int64(max(most, 0))).Build())
	n, err := results[0].AsInt64()
	if err != nil {
		return nil, 0, err
	}
	names, err := results[1].AsStrSlice()
	if err != nil || len(names) == 0 {
		return nil, int(n), err
	}
	records, err := client.Do(ctx, client.B().Hmget().Key(string(book)).Field(names...).Build()).ToArray()
	if err != nil {
		return nil, 0, err
	}
	for i, record := range records {
		raw, err := record.ToString()
		if err != nil || len(raw) != heldSize || len(names[i]) != len(store.Holder{}) {
			continue // gone since, or not ours
		}
		held = append(held, parseHeld(names[i], raw))
	}
	return held, int(n), nil
}

// heldSize is the size in bytes of a holder in a book of Concurrency: I4 hits, I7 begin, I7 end of
// its time.
const heldSize = 4 + 7 + 7

func parseHeld(name, raw string) store.Held {
	var b [heldSize + 1]byte // uint64 reads a byte beyond I7
	copy(b[:], raw)
	us := func(from int) algorithms.Instant { return instant(binary.LittleEndian.Uint64(b[from:]) & (1<<56 - 1)) }
	return store.Held{Holder: store.Holder([]byte(name)), Hits: binary.LittleEndian.Uint32(b[:]), At: us(4), Until: us(11)}
}

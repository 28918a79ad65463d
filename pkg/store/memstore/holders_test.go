package memstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// checkHolders returns an error unless the table, the lists and the counts of the holders agree.
func (h *holders) checkHolders(lines ...*line) error {
	seen, used := map[uint32]bool{}, 0
	for i := range h.chunks {
		for b := range chunkRecords {
			if h.chunks[i].used&(1<<b) != 0 {
				used++
				n := uint32(i*chunkRecords + b + 1)
				if r := h.of(n); h.find(r.tag(), &r.holder) != n {
					return fmt.Errorf("record %d is not found", n)
				}
			}
		}
	}
	kinds := 0
	for _, n := range h.kinds {
		kinds += n
	}
	if used != h.count || kinds != h.count || len(h.buckets) > 2*h.count+minBuckets || len(h.buckets) < h.count {
		return fmt.Errorf("%d records, %d by kinds, count %d, %d buckets", used, kinds, h.count, len(h.buckets))
	}
	spent, slots := line{holderList: h.spent}, 0
	for i, l := range append(lines, &spent) {
		var last, n uint32
		count, hits := 0, uint64(0)
		for n = l.first; n != 0; n = h.of(n).after {
			r := h.of(n)
			if r.before != last || seen[n] || r.kind().spent() != (l == &spent) {
				return fmt.Errorf("list %d: record %d: %+v is wrong behind %d", i, n, r, last)
			}
			if l != &spent && last != 0 && h.of(last).until > r.until {
				return fmt.Errorf("list %d: record %d runs out before %d", i, n, last)
			}
			seen[n], last = true, n
			count++
			hits += uint64(r.hits)
		}
		if last != l.last {
			return fmt.Errorf("list %d ends at %d; want %d", i, l.last, last)
		}
		if l == &spent {
			if want := h.kinds[kindDenied] + h.kinds[kindEnded]; count != want || h.anySpent.Load() != (want > 0) {
				return fmt.Errorf("%d denied and ended, some %v; want %d", count, h.anySpent.Load(), want)
			}
			continue
		}
		slots += count
		if count != int(l.count) || hits != l.used || l.finger != 0 && !seen[l.finger] {
			return fmt.Errorf("line %d has %d holders of %d hits, finger %d: %+v", i, count, hits, l.finger, l)
		}
	}
	if slots != h.kinds[kindSlots] {
		return fmt.Errorf("%d in lines; want %d", slots, h.kinds[kindSlots])
	}
	return nil
}

// checkHolders is checkHolders for the lines of the shard's keys.
func (sh *shard) checkHolders() error {
	var lines []*line
	for slot := range sh.table.each {
		if sh.limits.of(slot.limit()).Algorithm == algorithms.Concurrency {
			lines = append(lines, new(lineOf(slot.state)))
		}
	}
	return sh.holders.checkHolders(lines...)
}

// checkHolders returns an error unless the holders of each shard agree, and their sum is the
// store's.
func (s *Store) checkHolders() error {
	count := int64(0)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		err := sh.checkHolders()
		count += int64(sh.holders.count)
		sh.mu.Unlock()
		if err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	if all := s.metrics.holds.Load(); all != count || all > s.maxHolds {
		return fmt.Errorf("%d places of holders are taken by %d; at most %d", all, count, s.maxHolds)
	}
	return nil
}

func newHolders() *holders { return &holders{all: new(atomic.Int64), anySpent: new(atomic.Bool)} }

// holderOf returns the holder of a number.
func holderOf(n int) store.Holder { return store.HolderOf(fmt.Append(nil, "request ", n)) }

// Random keys of concurrency and of rate limits have the same holders as plain lists.
func TestRandomHoldersAreAMapWithLists(t *testing.T) {
	type plain struct {
		hold   algorithms.Hold
		key    int
		holder store.Holder
	}
	r := rand.New(rand.NewPCG(7, 7))
	h, now := newHolders(), algorithms.Instant(0)
	var lines [3]line
	var plains [6][]plain // three keys of concurrency, three of rate limits
	state := func(key int) stateTag { return digest{uint64(key+1) << 60, uint64(key) << digestBits}.tag() }
	most := 0
	for step := range race.Scale(60_000) {
		grows := step/15_000%2 == 0
		now += algorithms.Instant(r.IntN(3))
		key, holder := r.IntN(len(plains)), holderOf(r.IntN(3000))
		for i := range lines {
			h.expire(&lines[i], now)
		}
		if next := h.sweep(0, now); next != 0 {
			h.sweep(next, now)
		}
		for i := range plains {
			plains[i] = slices.DeleteFunc(plains[i], func(p plain) bool { return p.hold.Until <= now })
		}
		own := plains[key]
		at := slices.IndexFunc(own, func(p plain) bool { return p.holder == holder })
		n := h.find(state(key), &holder)
		if (n != 0) != (at >= 0) || n != 0 && h.of(n).hold() != own[at].hold {
			t.Fatalf("step %d: record %d, and %d of %d", step, n, at, len(own))
		}
		hold := algorithms.Hold{Status: algorithms.HoldHeld, Hits: 1 + r.Uint32N(5), At: now, Until: now + algorithms.Instant(1+r.IntN(4)*r.IntN(4000))}
		if key >= len(lines) && r.IntN(2) == 0 {
			hold = algorithms.Hold{Status: algorithms.HoldDenied + algorithms.HoldStatus(r.IntN(2)), Until: hold.Until}
		}
		switch {
		case n == 0 && grows:
			h.all.Add(1)
			if key < len(lines) {
				h.join(&lines[key], state(key), &holder, hold)
			} else {
				h.remember(state(key), &holder, hold)
			}
			plains[key] = append(own, plain{hold, key, holder})
		case n == 0:
		case key < len(lines):
			h.leave(&lines[key], n)
			plains[key] = slices.Delete(own, at, at+1)
		case r.IntN(2) == 0:
			h.change(n, hold, now)
			own[at].hold = hold
		default:
			h.forget(n)
			plains[key] = slices.Delete(own, at, at+1)
		}
		most = max(most, h.count)
		if step%97 != 0 {
			continue
		}
		h.shrink()
		count := 0
		for i := range plains {
			count += len(plains[i])
		}
		if err := h.checkHolders(&lines[0], &lines[1], &lines[2]); err != nil || h.count != count || h.all.Load() != int64(count) {
			t.Fatalf("step %d: %d records, %d in all; want %d: %v", step, h.count, h.all.Load(), count, err)
		}
		for i := range lines {
			var want algorithms.Slots
			for _, p := range plains[i] {
				if want.Used == 0 || p.hold.Until < want.First {
					want.First = p.hold.Until
				}
				want.Used, want.Last = want.Used+uint64(p.hold.Hits), max(want.Last, p.hold.Until)
			}
			if diff := cmp.Diff(want, h.slots(&lines[i])); diff != "" {
				t.Fatalf("step %d: line %d (-want +got):\n%s", step, i, diff)
			}
			if again := lineOf(lines[i].state()); again != lines[i] || lines[i].state().Unused() != (lines[i].count == 0) {
				t.Fatalf("step %d: the state of %+v is %+v", step, lines[i], again)
			}
		}
	}
	if most < 2000 && !race.Enabled {
		t.Errorf("at most %d holders; want thousands", most)
	}
}

func TestARecordOfAHolderIsSmall(t *testing.T) {
	if got := unsafe.Sizeof(holderRecord{}); got != 56 {
		t.Errorf("a record has %d bytes; want 56", got)
	}
}

// After at_most was lowered, or while two rules with different ones charge a key, a new holder
// finds its place without a walk.
func TestANewHolderPassesFewOthers(t *testing.T) {
	const held = 10_000
	h, now := newHolders(), algorithms.Instant(0)
	var l line
	next := 0
	join := func(atMost time.Duration) {
		h.all.Add(1)
		h.join(&l, 0, new(holderOf(next)), algorithms.Hold{Status: algorithms.HoldHeld, Hits: 1, At: now, Until: now.Add(atMost)})
		next++
		now += algorithms.Instant(time.Millisecond)
		h.expire(&l, now)
	}
	for range held {
		join(time.Minute)
	}
	if h.walked != 0 {
		t.Errorf("%d holders with one at_most passed %d", held, h.walked)
	}
	for range held {
		join(20 * time.Second)
	}
	first := h.walked
	for range 2 * held {
		join(time.Minute)
		join(30 * time.Second)
	}
	t.Logf("passed %d after a change, %d among two", first, h.walked-first)
	if first > 4*held || h.walked-first > 8*held {
		t.Errorf("%d holders passed %d after a change, and %d passed %d with two; want a few each", held, first, 4*held, h.walked-first)
	}
	if err := h.checkHolders(&l); err != nil {
		t.Error(err)
	}
}

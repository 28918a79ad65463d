package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/store"
)

// lane sends the calls of some keys, in batches: those that come while one is on its way wait for the next. So the busier
// Redis is, the more requests share a round trip, a call of the script and, where they are of one key, a read and a write.
type lane struct {
	store *Store
	wake  chan struct{} // has one when calls wait

	mu      sync.Mutex // guards waiting and closed
	waiting []*call
	closed  bool

	// Of the lane's goroutine.
	taken   []*call
	batches []*batch
	current map[uint16]*batch // by slot, those that take more
}

func newLane(s *Store) *lane {
	return &lane{store: s, wake: make(chan struct{}, 1), current: make(map[uint16]*batch)}
}

// put queues a call. It reports whether the lane is still open.
func (l *lane) put(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.waiting = append(l.waiting, c)
	if len(l.waiting) == 1 {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// close makes run return once it has sent what waits.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.wake)
	}
}

// run sends calls until the lane is closed.
func (l *lane) run() {
	for range l.wake {
		l.mu.Lock()
		l.taken, l.waiting = l.waiting, l.taken[:0]
		l.mu.Unlock()
		l.send()
		clear(l.taken)
	}
	l.mu.Lock()
	l.taken, l.waiting = l.waiting, nil
	l.mu.Unlock()
	l.send()
}

// send sends what was taken, and ends all calls of it.
func (l *lane) send() {
	used := 0
	clear(l.current)
	now := time.Now()
	for _, c := range l.taken {
		if !c.status.CompareAndSwap(waiting, sent) {
			continue // abandoned
		}
		if !c.until.IsZero() && now.Sub(c.put) > c.until.Sub(c.put)/2 {
			c.refused, c.err = true, errBehind
			c.end()
			continue
		}
		b := l.current[c.slot]
		if b == nil || !b.takes(c) {
			if used == len(l.batches) {
				l.batches = append(l.batches, newBatch(l.store))
			}
			b = l.batches[used]
			used++
			b.reset()
			l.current[c.slot] = b
		}
		b.add(c)
	}
	if used == 0 {
		return
	}
	l.store.execute(l.batches[:used])
	for _, b := range l.batches[:used] {
		b.reset()
	}
}

// execute has the script apply the batches, which go to Redis together, and ends their calls.
func (s *Store) execute(batches []*batch) {
	ctx, cancel := context.WithTimeout(s.running, s.timeout)
	defer cancel()
	begun := time.Now()
	client, err := s.connection.client()
	if err != nil {
		for _, b := range batches {
			b.refuse(err)
		}
		return
	}
	commands := make([]rueidis.Completed, len(batches))
	for i, b := range batches {
		commands[i] = s.evalsha(client, b, s.deadline(b, begun))
	}
	results := client.DoMulti(ctx, commands...)
	for i, b := range batches {
		s.conclude(ctx, client, b, results[i], begun)
	}
}

func (s *Store) evalsha(client rueidis.Client, b *batch, deadline int64) rueidis.Completed {
	return client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(b.keys))).Key(b.keys...).
		Arg(rueidis.BinaryString(b.request(s.givenNow(), deadline))).Build()
}

func (s *Store) eval(client rueidis.Client, b *batch, deadline int64) rueidis.Completed {
	return client.B().Eval().Script(s.script).Numkeys(int64(len(b.keys))).Key(b.keys...).
		Arg(rueidis.BinaryString(b.request(s.givenNow(), deadline))).Build()
}

// conclude ends the calls of a batch with what became of it. A server that does not know the script is given it; one whose
// clock is not what it was is asked again; and a value that is none of ours fails its own requests alone.
func (s *Store) conclude(ctx context.Context, client rueidis.Client, b *batch, result rueidis.RedisResult, begun time.Time) {
	deadline := s.deadline(b, begun)
	for attempt := 0; ; attempt++ {
		reply, err := result.ToString()
		if said, is := rueidis.IsRedisErr(err); is && said.IsNoScript() && attempt == 0 {
			result = client.Do(ctx, s.eval(client, b, deadline))
			continue
		}
		if (foreign(err) || onTheMove(err)) && len(b.all) > 1 {
			s.isolate(ctx, client, b, begun)
			return
		}
		if onTheMove(err) {
			b.fail(fmt.Errorf("%w now, as its keys are on the move between two nodes: %w", store.ErrLimit, err))
			return
		}
		if err != nil {
			s.connection.failed(err)
			b.fail(lost(err))
			return
		}
		us, tooLate, err := b.finish(reply)
		if err != nil {
			b.fail(err)
			return
		}
		s.clock.learn(b.slot(), us, begun)
		if !tooLate {
			break
		}
		if attempt > 1 || ctx.Err() != nil || !b.until.IsZero() && time.Now().After(b.until) {
			b.refuse(errLate)
			return
		}
		deadline = 0 // somebody still waits, so its clock was taken for another
		result = client.Do(ctx, s.evalsha(client, b, deadline))
	}
	s.counts.roundTrip.Observe(time.Since(begun))
	s.counts.calls.Add(1)
	s.counts.transactions.Add(b.transactions())
	s.connection.recovered()
	b.end()
}

// foreign reports whether the script has found a value that it has not written. It has written nothing then.
func foreign(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && slices.ContainsFunc([]string{"WRONGTYPE", "data string too ", "a value that is not a count"}, func(text string) bool {
		return strings.Contains(said.Error(), text)
	})
}

// onTheMove reports whether the keys of a script lay on two nodes, as their slot moves. It was not run then.
func onTheMove(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && said.IsTryAgain()
}

// isolate has the groups of a batch applied one by one.
func (s *Store) isolate(ctx context.Context, client rueidis.Client, b *batch, begun time.Time) {
	for _, g := range b.all {
		alone := newBatch(s)
		for c := g.first; c != nil; {
			next := c.next
			alone.add(c)
			c = next
		}
		s.conclude(ctx, client, alone, client.Do(ctx, s.evalsha(client, alone, s.deadline(alone, begun))), begun)
	}
}

// lane returns the lane of the call.
func (c *call) lane() *lane { return c.server.laneFor(c.slot, c.charges[0].Key) }

// laneBefore returns the lane in which what concerns charge i comes before a request; nil where that is the lane of its key.
func (s *Store) laneBefore(charges []store.Charge, i int) *lane {
	server := s.serverOf(&charges[i])
	if server.cluster {
		return nil
	}
	first := slices.IndexFunc(charges, func(c store.Charge) bool { return s.serverOf(&c) == server })
	return server.laneFor(0, charges[first].Key)
}

// laneFor returns the lane of calls in a slot whose first charge has that key. In one lane calls stay in their order. Slots
// that lie side by side share a lane, as they mostly lie on one server: then one that does not answer keeps up its own.
func (s *Store) laneFor(slot uint16, key []byte) *lane {
	if s.cluster {
		return s.lanes[int(slot)*len(s.lanes)/slots]
	}
	return s.lanes[maphash.Bytes(s.seed, key)%uint64(len(s.lanes))]
}

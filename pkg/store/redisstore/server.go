package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/store"
)

// server is one Redis server or one cluster: its connection, the state of its clock, and the queues
// of calls to it.
type server struct {
	store      *Store
	target     slog.LogValuer // in logs
	connection connection
	cluster    bool
	clock      *clocks
	queues     []*queue
	tags       func() *[slots][3]byte // see tagsOfSlots
}

// connection is a [redis.Conn].
type connection interface {
	Cluster() bool
	Steady() bool
	Nodes() *redis.Nodes
	InvalidReplies() uint64
	Client() (rueidis.Client, error)
	Report(err error) error
	Await(ctx context.Context) error
	Close()
}

// Queues, the most flights of each node queue, and the flights of each that do not wait for each
// other. On a single server one batch waits there while another is decided. In a cluster each node
// should have some queues. Together the flights must stay well below the commands that internal/redis
// keeps in flight on a connection.
const (
	singleQueues, singleFlights, singleAtOnce    = 1, 32, 4
	clusterQueues, clusterFlights, clusterAtOnce = 16, 16, 1
)

// newServer returns a server with a connection to the target. start starts its queues.
func newServer(s *Store, target redis.Target, c connection) *server {
	if c.Cluster() {
		return &server{store: s, target: target, connection: c, cluster: true, clock: newClocks(slots), tags: sync.OnceValue(tagsOfSlots)}
	}
	return &server{store: s, target: target, connection: c, clock: newClocks(1)}
}

// start starts to send calls, in goroutines of the group, until the queues are closed.
func (s *server) start(sending *sync.WaitGroup) {
	queues, flights := singleQueues, singleFlights
	if s.cluster {
		queues, flights = clusterQueues, clusterFlights
	}
	for range queues {
		s.queues = append(s.queues, newQueue(s, flights, sending))
	}
}

// nodes returns the nodes of the slots; nil: unknown, or no cluster.
func (s *server) nodes() *redis.Nodes {
	if !s.cluster {
		return nil
	}
	return s.connection.Nodes()
}

// steady reports whether calls do not wait for a connection that is being made. In a cluster a call
// may be the first to a node.
func (s *server) steady() bool { return !s.cluster && s.connection.Steady() }

// queueFor returns the queue of calls in a slot whose first charge has that key. Adjacent
// slots share a queue, as one node mostly has them all, and calls to one node can share a flight.
func (s *server) queueFor(slot uint16, key []byte) *queue {
	if s.cluster {
		return s.queues[int(slot)*len(s.queues)/slots]
	}
	return s.queues[maphash.Bytes(s.store.seed, key)%uint64(len(s.queues))]
}

// execute sends batches to Redis, together, and ends their calls. execute waits for answers as long
// as a caller does, and at least for the timeout. An answer until then shows that Redis is there,
// also if it comes too late for callers. If patient, execute waits for longestLife at least: such
// an answer still tells which calls Redis has applied. execute reports whether a batch was
// answered, or could not be sent. A connection that ends is no answer.
func (s *server) execute(batches []*batch, patient bool) (heard bool) {
	begun := time.Now()
	end := begun.Add(s.store.timeout)
	for _, b := range batches {
		last := b.last
		if last.IsZero() { // only the outbox waits, and a late answer is as good
			last = begun.Add(longestLife)
		}
		if last.After(end) {
			end = last
		}
	}
	giveUp := end
	if life := begun.Add(longestLife); patient && life.After(end) {
		giveUp = life
	}
	ctx, cancel := context.WithDeadline(s.store.running, giveUp)
	defer cancel()
	client, err := s.connection.Client()
	if err != nil {
		for _, b := range batches {
			b.end(err, true)
		}
		return true
	}
	s.store.pulse.begin()
	answered := false // or refused, by a connection that has ended
	defer func() { s.store.pulse.end(answered && !time.Now().After(end)) }()
	commands := make([]rueidis.Completed, len(batches))
	for i, b := range batches {
		commands[i] = s.evalsha(client, b, s.deadline(b, begun))
	}
	results := client.DoMulti(ctx, commands...)
	for i, b := range batches { // one node of a cluster may be away
		err := results[i].NonRedisError()
		answered = answered || !errors.Is(err, context.DeadlineExceeded)
		heard = heard || err == nil || errors.Is(err, ErrUnavailable)
		s.conclude(ctx, client, b, results[i], begun, end)
	}
	return heard
}

func (s *server) evalsha(client rueidis.Client, b *batch, deadline int64) rueidis.Completed {
	return client.B().Evalsha().Sha1(s.store.sha).Numkeys(int64(len(b.keys))).Key(b.keys...).
		Arg(rueidis.BinaryString(b.request(s.store.givenNow(), deadline))).Build()
}

func (s *server) eval(client rueidis.Client, b *batch, deadline int64) rueidis.Completed {
	return client.B().Eval().Script(s.store.script).Numkeys(int64(len(b.keys))).Key(b.keys...).
		Arg(rueidis.BinaryString(b.request(s.store.givenNow(), deadline))).Build()
}

// conclude ends the calls of a batch after the answer. A server without the script gets the script.
// A value that the script has not written fails only the requests for its key. Calls that came too
// late are sent again if their callers still wait. An answer after end is no sign that Redis is
// there.
func (s *server) conclude(ctx context.Context, client rueidis.Client, b *batch, result rueidis.RedisResult, begun, end time.Time) {
	for attempt, late := 0, 0; ; attempt++ {
		reply, err := result.ToString()
		if said, is := rueidis.IsRedisErr(err); is && said.IsNoScript() && attempt == 0 {
			result = client.Do(ctx, s.eval(client, b, s.deadline(b, begun)))
			continue
		}
		if (foreign(err) || onTheMove(err)) && len(b.all) > 1 {
			s.isolate(ctx, client, b, begun, end)
			return
		}
		if onTheMove(err) {
			b.end(fmt.Errorf("%w now: its keys move between two nodes: %w", store.ErrLimit, err), false)
			return
		}
		if err != nil {
			b.end(s.connection.Report(err), unapplied(err))
			return
		}
		us, tooLate, err := b.finish(reply)
		if err != nil {
			b.end(err, false)
			return
		}
		now := time.Now()
		if !now.After(end) {
			s.store.pulse.answered(now, now.Sub(begun))
		}
		stepped := s.learn(b.slot(), us, begun, now)
		if !tooLate {
			break
		}
		if b = s.again(b, stepped, begun, now, late > 1 || ctx.Err() != nil); b == nil {
			return
		}
		late++
		result = client.Do(ctx, s.evalsha(client, b, s.deadline(b, now)))
	}
	s.store.metrics.roundTrip.Observe(time.Since(begun))
	s.store.metrics.calls.Add(1)
	s.store.metrics.transactions.Add(b.count)
	_ = s.connection.Report(nil)
	b.end(nil, false)
}

// again returns a new batch for a refused one, with the calls whose callers still wait; nil if no
// call is left. again ends the other calls, or with giveUp all of them. Without a step of the
// server's clock the refused batch was held up on the way.
func (s *server) again(b *batch, stepped bool, begun, now time.Time, giveUp bool) *batch {
	err := errStepped
	if !stepped {
		err = fmt.Errorf("%w: refused %v after it was sent", errLate, now.Sub(begun).Round(100*time.Microsecond))
	}
	rest := newBatch(s)
	for c := range b.calls {
		c.next = nil
		waits := now.Before(c.until) || c.until.IsZero() && stepped // the outbox sends its calls again by itself
		if giveUp || !waits {
			c.err, c.refused = err, true
			c.end()
			continue
		}
		rest.add(c)
	}
	if len(rest.all) == 0 {
		return nil
	}
	return rest
}

// foreign reports whether the script found a value of other programs. The script has not written
// anything then.
func foreign(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && slices.ContainsFunc([]string{"WRONGTYPE", "data string too ", "a value that is not a count"}, func(text string) bool {
		return strings.Contains(said.Error(), text)
	})
}

// onTheMove reports whether the keys lay on two nodes, because their slot moves. The script was not
// run then.
func onTheMove(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && said.IsTryAgain()
}

// unapplied reports whether the script has certainly written nothing. There was no connection to
// send it, or the server serves nobody now, or the server refuses each command that writes.
func unapplied(err error) bool {
	if said, is := rueidis.IsRedisErr(err); is {
		code, _, _ := strings.Cut(said.Error(), " ")
		return slices.Contains([]string{
			"LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED", "ASK", "NOAUTH", "WRONGPASS", "OOM", "MISCONF", "NOREPLICAS", "BUSY",
		}, code) || strings.Contains(said.Error(), "-OOM command not allowed") // of a script, before Redis 7
	}
	return errors.Is(err, ErrUnavailable)
}

// isolate applies the groups of a batch one by one.
func (s *server) isolate(ctx context.Context, client rueidis.Client, b *batch, begun, end time.Time) {
	for _, g := range b.all {
		alone := newBatch(s)
		for c := range (&batch{all: []group{g}}).calls {
			alone.add(c)
		}
		s.conclude(ctx, client, alone, client.Do(ctx, s.evalsha(client, alone, s.deadline(alone, begun))), begun, end)
	}
}

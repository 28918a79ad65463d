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

	"github.com/weirproxy/weir/internal/redisconn"
	"github.com/weirproxy/weir/pkg/store"
)

// server is one Redis server or one cluster: its connection, the state of its clock, and the queues of calls to it.
type server struct {
	store      *Store
	connection *redisconn.Conn
	cluster    bool
	clock      *clocks
	queues     []*queue
}

// The number of queues is the number of batches that may be under way at once. On a single server one batch waits there while
// another is decided. In a cluster each node should have some queues.
const (
	singleQueues  = 4
	clusterQueues = 16
)

// newServer returns a server and starts to connect to it. start starts its queues.
func newServer(s *Store, target redisconn.Target, logger *slog.Logger) *server {
	c := redisconn.Dial(target, logger)
	if c.Cluster() {
		return &server{store: s, connection: c, cluster: true, clock: newClocks(slots)}
	}
	return &server{store: s, connection: c, clock: newClocks(1)}
}

// start starts to send calls, in goroutines of the group, until the queues are closed.
func (s *server) start(sending *sync.WaitGroup) {
	n := singleQueues
	if s.cluster {
		n = clusterQueues
	}
	for range n {
		q := newQueue(s)
		s.queues = append(s.queues, q)
		sending.Go(q.run)
	}
}

// queueFor returns the queue of calls in a slot whose first charge has that key. A queue keeps the order of its calls. Adjacent
// slots share a queue, as one node mostly has them all: a node that does not answer then delays its own calls only.
func (s *server) queueFor(slot uint16, key []byte) *queue {
	if s.cluster {
		return s.queues[int(slot)*len(s.queues)/slots]
	}
	return s.queues[maphash.Bytes(s.store.seed, key)%uint64(len(s.queues))]
}

// execute sends batches to Redis, together, and ends their calls.
func (s *server) execute(batches []*batch) {
	ctx, cancel := context.WithTimeout(s.store.running, s.store.timeout)
	defer cancel()
	begun := time.Now()
	client, err := s.connection.Client()
	if err != nil {
		for _, b := range batches {
			b.end(err, true)
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

func (s *server) evalsha(client rueidis.Client, b *batch, deadline int64) rueidis.Completed {
	return client.B().Evalsha().Sha1(s.store.sha).Numkeys(int64(len(b.keys))).Key(b.keys...).
		Arg(rueidis.BinaryString(b.request(s.store.givenNow(), deadline))).Build()
}

func (s *server) eval(client rueidis.Client, b *batch, deadline int64) rueidis.Completed {
	return client.B().Eval().Script(s.store.script).Numkeys(int64(len(b.keys))).Key(b.keys...).
		Arg(rueidis.BinaryString(b.request(s.store.givenNow(), deadline))).Build()
}

// conclude ends the calls of a batch after the answer. A server without the script gets the script. A server whose clock jumped is
// asked again. A value that the script has not written fails only the requests for its key.
func (s *server) conclude(ctx context.Context, client rueidis.Client, b *batch, result rueidis.RedisResult, begun time.Time) {
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
		s.clock.learn(b.slot(), us, begun)
		if !tooLate {
			break
		}
		if attempt > 1 || ctx.Err() != nil || !b.until.IsZero() && time.Now().After(b.until) {
			b.end(errLate, true)
			return
		}
		deadline = 0 // callers still wait, so the clock jumped
		result = client.Do(ctx, s.evalsha(client, b, deadline))
	}
	s.store.metrics.roundTrip.Observe(time.Since(begun))
	s.store.metrics.calls.Add(1)
	s.store.metrics.transactions.Add(b.count)
	_ = s.connection.Report(nil)
	b.end(nil, false)
}

// foreign reports whether the script found a value of other programs. The script has not written anything then.
func foreign(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && slices.ContainsFunc([]string{"WRONGTYPE", "data string too ", "a value that is not a count"}, func(text string) bool {
		return strings.Contains(said.Error(), text)
	})
}

// onTheMove reports whether the keys lay on two nodes, because their slot moves. The script was not run then.
func onTheMove(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && said.IsTryAgain()
}

// unapplied reports whether the script was certainly not run: there was no connection to send it, or the server serves nobody now.
func unapplied(err error) bool {
	if said, is := rueidis.IsRedisErr(err); is {
		code, _, _ := strings.Cut(said.Error(), " ")
		return slices.Contains([]string{"LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED", "ASK", "NOAUTH", "WRONGPASS"}, code)
	}
	return errors.Is(err, ErrUnavailable)
}

// isolate applies the groups of a batch one by one.
func (s *server) isolate(ctx context.Context, client rueidis.Client, b *batch, begun time.Time) {
	for _, g := range b.all {
		alone := newBatch(s)
		for c := range (&batch{all: []group{g}}).calls {
			alone.add(c)
		}
		s.conclude(ctx, client, alone, client.Do(ctx, s.evalsha(client, alone, s.deadline(alone, begun))), begun)
	}
}

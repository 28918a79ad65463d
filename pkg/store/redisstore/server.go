package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Reasons why a request was certainly not charged.
var (
	errLate     = fmt.Errorf("redis received the request after its deadline, and did not charge it: %w", context.DeadlineExceeded)
	errStepped  = errors.New("redis refused the request as of another time: its clock jumped")
	errReleased = fmt.Errorf("redis answers nothing, the request waits no longer: %w", context.DeadlineExceeded)
	errClosed   = fmt.Errorf("%w: closed", ErrUnavailable)
)

// server is one Redis server or one cluster: its connection, the names of its keys, the state of
// its clock and the calls that wait.
type server struct {
	*base
	names

	target     slog.LogValuer // in logs
	connection connection
	clock      *clocks
	queue      *queue
	seeds      *seeds
}

// connection is a [redis.Conn].
type connection interface {
	Cluster() bool
	Steady() bool
	Nodes() *redis.Nodes
	Primaries() []string
	InvalidReplies() uint64
	EvictedKeys() uint64
	Restarts() uint64
	Client() (rueidis.Client, error)
	Report(err error) error
	Await(ctx context.Context) error
	Close()
}

func newServer(b *base, n names, target redis.Target, c connection) *server {
	s := &server{base: b, names: n, target: target, connection: c, clock: newClocks(1), seeds: newSeeds()}
	if c.Cluster() {
		s.cluster, s.clock, s.tags = true, newClocks(slots), sync.OnceValue(tagsOfSlots)
	}
	s.queue = &queue{server: s, fenced: make(map[uint64]int)}
	s.queue.byNode.Store(new([]*nodeQueue))
	return s
}

// primaries returns the names of the nodes by number; "": there is no such node. Without known
// nodes the server has one.
func (s *server) primaries() []string {
	if all := s.connection.Primaries(); len(all) > 0 {
		return all
	}
	return []string{s.target.LogValue().String()}
}

// nodeOf returns the number of the node of a slot; 0 as long as the nodes are not known.
func (s *server) nodeOf(slot uint16) int {
	if nodes := s.connection.Nodes(); nodes != nil {
		return int(nodes[slot])
	}
	return 0
}

// execute sends batches to Redis, together, and ends their calls. execute waits for answers as long
// as a caller does, and at least for the timeout. An answer until then shows that Redis is there,
// also if it comes too late for callers. If patient, execute waits for longestLife at least: such
// an answer still tells which calls Redis has applied. Otherwise the release of the flight ends the
// wait. execute reports whether a batch was answered, or could not be sent. A connection that ends
// is no answer.
func (s *server) execute(f *flight, batches []*batch, patient bool) (heard bool) {
	begun := time.Now()
	end := begun.Add(s.timeout)
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
	ctx, cancel := context.WithDeadline(context.Background(), giveUp)
	defer cancel()
	client, err := s.client()
	if err != nil {
		for _, b := range batches {
			b.end(err, true)
		}
		return true
	}
	p := &f.node.pulse
	life := max(s.timeout, longestLife, 2*p.usually())
	if !patient {
		life = p.flownLife()
		f.release.Store(&cancel)
	}
	p.begin()
	answered := false // or refused, by a connection that has ended
	defer func() { p.end(answered && !time.Now().After(end)) }()
	commands := make([]rueidis.Completed, len(batches))
	for i, b := range batches {
		b.life = life
		commands[i] = s.evalsha(client, b, begun)
	}
	results := client.DoMulti(ctx, commands...)
	for i, b := range batches { // one node of a cluster may be away
		err := results[i].NonRedisError()
		answered = answered || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
		heard = heard || err == nil || errors.Is(err, ErrUnavailable)
		s.conclude(ctx, client, b, results[i], p, begun, end)
	}
	return heard
}

func (s *server) evalsha(client rueidis.Client, b *batch, begun time.Time) rueidis.Completed {
	return client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(b.keys))).Key(b.keys...).Arg(s.arguments(b, begun)...).Build()
}

func (s *server) eval(client rueidis.Client, b *batch, begun time.Time) rueidis.Completed {
	return client.B().Eval().Script(s.script).Numkeys(int64(len(b.keys))).Key(b.keys...).Arg(s.arguments(b, begun)...).Build()
}

// arguments returns the request, and the windows of its calendars if it has some.
func (s *server) arguments(b *batch, begun time.Time) []string {
	request := rueidis.BinaryString(b.request(s.givenNow(), s.deadline(b, begun)))
	if len(b.windows) == 0 {
		return []string{request}
	}
	now := algorithms.Instant(0)
	if s.given != nil {
		now = s.given()
	} else if now = instant(uint64(s.clock.at(b.slot(), time.Now()))); now == 0 {
		now = algorithms.Instant(time.Now().UnixNano())
	}
	return []string{request, rueidis.BinaryString(b.appendCalendars(nil, now))}
}

// conclude ends the calls of a batch after the answer. A server without the script gets the script.
// A value that the script has not written fails only the requests for its key. Calls that came too
// late are sent again if their callers still wait. An answer after end is no sign that Redis is
// there.
func (s *server) conclude(
	ctx context.Context, client rueidis.Client, b *batch, result rueidis.RedisResult, p *pulse, begun, end time.Time,
) {
	for attempt, late := 0, 0; ; attempt++ {
		reply, err := result.ToString()
		said, is := rueidis.IsRedisErr(err)
		switch moving := is && said.IsTryAgain(); { // the keys lie on two nodes, and the script was not run
		case err == nil:
		case is && said.IsNoScript() && attempt == 0:
			result = client.Do(ctx, s.eval(client, b, begun))
			continue
		case (foreign(err) || moving) && len(b.all) > 1:
			s.isolate(ctx, client, b, p, begun, end)
			return
		case moving:
			b.end(fmt.Errorf("%w now: its keys move between two nodes: %w", store.ErrLimit, err), true)
			return
		case errors.Is(err, context.Canceled):
			b.end(errReleased, false)
			return
		default:
			b.end(s.connection.Report(err), unapplied(err) || foreign(err) && b.writesLast())
			return
		}
		us, status, err := b.finish(reply)
		if err != nil {
			b.end(err, false)
			return
		}
		now := time.Now()
		if !now.After(end) {
			p.answered(now, begun)
		}
		stepped := s.learn(b.slot(), us, begun, now) || status == otherTime
		if status == done {
			break
		}
		if b = s.again(b, stepped, begun, now, late > 1 || ctx.Err() != nil); b == nil {
			return
		}
		late++
		result = client.Do(ctx, s.evalsha(client, b, now))
	}
	s.metrics.roundTrip.Observe(time.Since(begun))
	s.metrics.calls.Add(1)
	s.metrics.transactions.Add(b.count)
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
	rest.life = max(b.life, 2*now.Sub(begun))
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

// writesLast reports whether the script writes nothing for the first group before it has read all
// values.
func (b *batch) writesLast() bool {
	first := b.all[0].first
	return len(first.holds) == 0 && !first.alone()
}

// foreign reports whether the script found a value of other programs. The script has not written
// anything then.
func foreign(err error) bool {
	said, is := rueidis.IsRedisErr(err)
	return is && slices.ContainsFunc([]string{"WRONGTYPE", "data string too ", "a value that is not a count"}, func(text string) bool {
		return strings.Contains(said.Error(), text)
	})
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

func (s *server) isolate(ctx context.Context, client rueidis.Client, b *batch, p *pulse, begun, end time.Time) {
	for _, g := range b.all {
		alone := newBatch(s)
		alone.life = b.life
		for c := range (&batch{all: []group{g}}).calls {
			alone.add(c)
		}
		s.conclude(ctx, client, alone, client.Do(ctx, s.evalsha(client, alone, begun)), p, begun, end)
	}
}

// learn is learn of the server's clock. learn logs steps, at most one in stepLogged, and reports
// whether the clock has jumped ahead.
func (s *server) learn(slot uint16, us int64, begun, now time.Time) (ahead bool) {
	if s.given != nil {
		return false
	}
	step := s.clock.learn(slot, us, begun, now)
	if step.Abs() < clockStep {
		return step > 0
	}
	if _, due := s.clock.logged.Due(stepLogged); due {
		redis, by := slog.Any("redis", s.target), slog.Duration("by", step.Abs().Round(time.Millisecond))
		if step < 0 {
			s.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"the clock of Redis went back: keys that stand in its future go on from now", redis, by)
		} else {
			s.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"the clock of Redis jumped ahead: windows end early and buckets fill early", redis, by)
		}
	}
	return step > 0
}

// longestLife is how long a call may lie on its way for a patient caller. internal/redis needs
// longer to give up a connection that is silent: then the caller's request is decided elsewhere,
// and Redis may still read the call.
const longestLife = 500 * time.Millisecond

// deadline returns the server's time from which on a batch must not be applied; 0: not known. A
// caller stops to wait then, or the life of the call ends.
func (s *server) deadline(b *batch, begun time.Time) int64 {
	if s.given != nil {
		return 0
	}
	at := s.clock.at(b.slot(), begun)
	if at == 0 {
		return 0
	}
	timeout := max(s.timeout, longestLife) // the outbox waits as long
	if !b.until.IsZero() {
		timeout = min(b.until.Sub(begun), b.life)
	}
	return at + timeout.Microseconds() + clockSlack.Microseconds()
}

package shared

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/store"
)

// breaker says whether the remote store may be asked about a request: each of its shards has a
// circuit.
type breaker struct {
	Options

	metrics *metrics

	all      atomic.Pointer[[]*circuit] // by number of the shard; written with mu
	begun    atomic.Bool                // a shard has answered: a shard that joins later has a closed circuit
	mu       sync.Mutex                 // guards the fields below
	ctx      context.Context            //nolint:containedctx // of the watchers, until close
	ending   context.CancelFunc
	closed   bool
	watchers sync.WaitGroup
}

// newBreaker returns a breaker of circuits that are open. Call start, and then close.
func newBreaker(o Options, m *metrics) *breaker {
	p := &o.pace
	p.failures = cmp.Or(p.failures, defaultFailures)
	p.failingFor = cmp.Or(p.failingFor, defaultFailingFor)
	p.minOpen = cmp.Or(p.minOpen, defaultMinOpen)
	p.maxOpen = cmp.Or(p.maxOpen, max(defaultMaxOpen, p.minOpen))
	b := &breaker{Options: o, metrics: m}
	b.ctx, b.ending = context.WithCancel(context.Background())
	var all []*circuit
	for shard := range max(1, len(o.Remote.Shards())) {
		all = append(all, newCircuit(b, shard, true))
	}
	b.all.Store(&all)
	return b
}

func (b *breaker) start() {
	for _, c := range *b.all.Load() {
		b.watchOver(c)
	}
	b.watchers.Go(func() {
		for {
			select {
			case <-b.Remote.Silences():
				for _, c := range *b.all.Load() {
					c.lookForSilence()
				}
			case <-b.ctx.Done():
				return
			}
		}
	})
}

func (b *breaker) watchOver(c *circuit) {
	first := c.phase.Load()
	b.watchers.Go(func() { c.watch(b.ctx, first) })
}

func (b *breaker) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.ending()
	b.watchers.Wait()
}

// await waits until each shard of the beginning has answered once, or has failed. The first answer
// can show further ones: see join.
func (b *breaker) await(ctx context.Context) error {
	for n := 0; n < len(*b.all.Load()); n++ {
		select {
		case <-(*b.all.Load())[n].answered:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// join makes circuits for all shards that are known, after a call of Await. Only the first answer
// of a cluster shows its shards. Each is asked before this process is ready, as a connection to it
// may take long.
func (b *breaker) join(answered bool) {
	if !b.begun.Load() {
		b.of(max(0, len(b.Remote.Shards())-1))
		b.begun.Store(answered)
	}
}

// unasked returns the phase of a shard of the beginning that has not answered yet, and has not
// failed; nil: all have.
func (b *breaker) unasked() *phase {
	for _, p := range b.phases() {
		if p.first {
			return p
		}
	}
	return nil
}

func (b *breaker) of(shard int) *circuit {
	if all := *b.all.Load(); shard < len(all) {
		return all[shard]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Clone(*b.all.Load())
	for len(all) <= shard {
		c := newCircuit(b, len(all), !b.begun.Load())
		if all = append(all, c); !b.closed {
			b.watchOver(c)
		}
	}
	b.all.Store(&all)
	return all[shard]
}

// fleet returns the number of processes that share the remote store, at least 1.
func (b *breaker) fleet() int { return max(1, b.Remote.Health(0).Fleet) }

// enter appends the phases of the shards of charges to in, if a request may ask all of them, else
// it returns nil. After the answer the request must call succeeded or failed with the phases, or
// leave them.
func (b *breaker) enter(charges []store.Charge, in []*phase) []*phase {
	return b.enterUnless(charges, in, func(*phase) bool { return false })
}

// enterTransaction is enter for a transaction. Other processes may have hits of an outage that the
// store has not counted. Then the local store decides begins of holders alone, and all requests
// while the circuit is half-open. Of the others see Store.fits.
func (b *breaker) enterTransaction(charges []store.Charge, in []*phase) []*phase {
	return b.enterUnless(charges, in, func(p *phase) bool {
		return p.tells() && outlast(charges) && (p.state == HalfOpen || store.Holds(charges))
	})
}

func (b *breaker) enterUnless(charges []store.Charge, in []*phase, refuses func(*phase) bool) []*phase {
	for i := range max(1, len(charges)) {
		shard := 0
		if len(charges) > 0 {
			shard = b.Remote.Shard(&charges[i])
		}
		if slices.ContainsFunc(in, func(p *phase) bool { return p.of.shard == shard }) {
			continue
		}
		p := b.of(shard).phase.Load()
		if refuses(p) || !p.enter() {
			leave(in)
			return nil
		}
		in = append(in, p)
	}
	return in
}

// leave ends a request that is no sign of the shards' health.
func leave(in []*phase) {
	for _, p := range in {
		p.leave()
	}
}

// succeeded ends a request that the store answered.
func succeeded(in []*phase) {
	for _, p := range in {
		p.succeeded()
	}
}

// failed ends a request that the store failed, and returns the error for the caller; nil means
// that the policies should answer.
func (b *breaker) failed(ctx context.Context, in []*phase, err error) error {
	if errors.Is(err, store.ErrLimit) {
		leave(in)
		return nil
	}
	canceled := errors.Is(ctx.Err(), context.Canceled)
	if canceled && errors.Is(err, context.Canceled) {
		leave(in)
		return err
	}
	b.metrics.countFailure(err, b.Unavailable)
	unanswered, is := errors.AsType[store.Unanswered](err)
	for _, p := range in {
		if len(in) > 1 && is && unanswered.Answered(p.of.shard) {
			p.succeeded()
		} else {
			p.failed(err)
		}
	}
	if canceled {
		return ctx.Err()
	}
	return nil
}

// settled reports whether the store decides all requests about a charge. Then the circuit is
// closed, and all processes have charged their hits of the last outage.
func (b *breaker) settled(c *store.Charge) bool {
	p := b.of(b.Remote.Shard(c)).phase.Load()
	return p.state == Closed && !p.tells()
}

// reason returns why one of the shards of charges is not asked.
func (b *breaker) reason(charges []store.Charge) error {
	for i := range charges {
		if p := b.of(b.Remote.Shard(&charges[i])).phase.Load(); p.state != Closed && p.reason != nil {
			return p.reason
		}
	}
	return errUnasked
}

func (b *breaker) worst() *phase { return slices.MinFunc(b.phases(), byState) }

func (b *breaker) best() *phase { return slices.MaxFunc(b.phases(), byState) }

// byState orders open before half-open before closed.
func byState(x, y *phase) int {
	rank := [...]int{Open: 0, HalfOpen: 1, Closed: 2}
	return rank[x.state] - rank[y.state]
}

func (b *breaker) phases() (all []*phase) {
	for _, c := range *b.all.Load() {
		all = append(all, c.phase.Load())
	}
	return all
}

func (b *breaker) opened() (times uint64) {
	for _, p := range b.phases() {
		times += p.opened
	}
	return times
}

func (b *breaker) shards() (all []Shard) {
	names := b.Remote.Shards()
	for n, c := range *b.all.Load() {
		if n < len(names) && names[n] != "" {
			p := c.phase.Load()
			all = append(all, Shard{Name: names[n], State: p.state, Since: p.since})
		}
	}
	return all
}

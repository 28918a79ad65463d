package redisstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// silenceDoubt is how long a shard that may be silent is in doubt. After a stall of this process
// the answers that are there can be read meanwhile.
const silenceDoubt = 25 * time.Millisecond

// mostDoubts bounds the doubts of one silence. A doubt that lasted too long was a stall.
const mostDoubts = 4

// watch finds the silence of a node. While the node owes answers, one timer looks whether some
// came.
type watch struct {
	timer  *time.Timer // nil until the first use
	looks  time.Time   // when the timer looks; zero: it is stopped
	quiet  int64       // of the pulse, when a silence was in doubt
	doubts int         // of this silence
}

// watchLocked sets the timer for a flight that begins now, unless it is set.
func (n *nodeQueue) watchLocked(now time.Time) {
	if n.watch.looks.IsZero() && !n.queue.closed {
		n.lookLocked(now, max(n.pulse.tooLong()-n.pulse.owing(n.queue.server.since(now)), time.Millisecond))
	}
}

func (n *nodeQueue) lookLocked(now time.Time, after time.Duration) {
	w := &n.watch
	if w.looks = now.Add(after); w.timer == nil {
		w.timer = time.AfterFunc(after, n.look)
	} else {
		w.timer.Reset(after)
	}
}

func (w *watch) stopLocked() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// look reports a node that has owed answers for too long, and looks again as long as the node owes
// any.
func (n *nodeQueue) look() {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	w, p, now := &n.watch, &n.pulse, time.Now()
	stalled := now.Sub(w.looks) > silenceDoubt
	if w.looks = (time.Time{}); len(n.flying)+len(n.commands) == 0 || n.queue.closed {
		return
	}
	quiet, tooLong := p.quiet.Load(), p.tooLong()
	switch owing := p.owing(p.since(now)); {
	case owing < tooLong:
		n.lookLocked(now, tooLong-owing)
		return
	case w.quiet != quiet:
		w.quiet, w.doubts = quiet, 1
	case stalled && w.doubts < mostDoubts:
		w.doubts++
	default:
		p.silent.Store(true)
		n.queue.server.silence()
		n.lookLocked(now, tooLong)
		return
	}
	n.lookLocked(now, silenceDoubt)
}

func (b *base) silence() {
	select {
	case b.silences <- struct{}{}:
	default: // nobody has looked since the last silence
	}
}

// releasable returns the wait of a caller that may be released, or nil.
func (c *call) releasable() *wait {
	if c.stays {
		return nil
	}
	return c.wait
}

// release has the callers of all calls to the node wait no longer, and returns their number.
func (n *nodeQueue) release() (released int) {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	free := func(c *call, w *wait) {
		if status := c.status.Load(); w != nil && (status == waiting || status == underWay) && !c.released.Swap(true) {
			released++
			w.release()
		}
	}
	for _, c := range n.waiting {
		free(c, c.releasable())
	}
	now := time.Now()
	for _, f := range n.flying {
		for i, w := range f.waits {
			free(f.calls[i], w) // f.calls[i] may have ended, and be another call now: then that one is decided without Redis
		}
		if end := f.release.Load(); end != nil {
			time.AfterFunc(f.begun.Add(n.pulse.flownLife()+2*clockSlack).Sub(now), *end)
		}
	}
	for _, end := range n.commands {
		(*end)(errReleased)
		released++
	}
	return released
}

// command has a command beside the flights watched, as they are. The context ends when the callers
// of the node are released. Call done with the error of the command, which done returns.
func (n *nodeQueue) command(ctx context.Context) (released context.Context, done func(error) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	now := time.Now()
	n.pulse.begin()
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	n.commands = append(n.commands, &cancel)
	n.watchLocked(now)
	return ctx, func(err error) error {
		n.queue.mu.Lock()
		n.commands = slices.DeleteFunc(n.commands, func(c *context.CancelCauseFunc) bool { return c == &cancel })
		n.queue.mu.Unlock()
		if _, is := rueidis.IsRedisErr(err); is || err == nil {
			n.pulse.alive(time.Now())
		}
		n.pulse.end(ctx.Err() == nil)
		if err != nil && errors.Is(context.Cause(ctx), errReleased) {
			err = errReleased
		}
		cancel(nil)
		return err
	}
}

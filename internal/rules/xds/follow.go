package xds

import (
	"context"
	"time"
)

// A control plane may repeat a refused response as soon as it hears of the refusal, for ever, as
// the snapshot cache of go-control-plane does. So the answer to a repeated response waits:
// minRepeat at first, twice as long after each repetition, up to maxRepeat. A control plane that
// sends nothing before the answer can delay a correction by that time.
const (
	minRepeat = time.Second
	maxRepeat = 15 * time.Second
)

// received is the result of receive.
type received struct {
	response
	err error
}

// follow greets, and then answers responses until the stream ends. The results are whether
// responses came, and why the stream ended.
func (c *Client) follow(ctx context.Context, s stream, incoming <-chan received) (answered bool, err error) {
	if err := s.greet(&c.rules); err != nil {
		return false, err
	}
	c.connected(ctx)
	var (
		repeated response         // the response whose answer waits
		due      <-chan time.Time // ends the wait; nil when no answer waits
		repeats  int
	)
	for {
		var in response
		select {
		case <-ctx.Done():
			return answered, ctx.Err()
		case r := <-incoming:
			if r.err != nil {
				return answered, r.err
			}
			answered, due = true, nil
			if c.rules.refusal != nil && c.rules.repeats(r.response) {
				repeated, due = r.response, time.After(doubled(minRepeat, maxRepeat, repeats))
				repeats++
				continue
			}
			in, repeats = r.response, 0
		case <-due:
			in, due = repeated, nil
		}
		refusal := c.put(ctx, in)
		if ctx.Err() != nil {
			return answered, ctx.Err()
		}
		if err := s.answer(in, &c.rules, refusal); err != nil {
			return answered, err
		}
	}
}

// listen sends every result of receive to a channel until the first error, or until ctx ends.
func listen(ctx context.Context, s stream, to chan<- received) {
	for {
		r, err := s.receive()
		select {
		case to <- received{r, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

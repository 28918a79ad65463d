package xds

import (
	"context"
	"time"
)

// conversation is one stream, of either kind.
type conversation interface {
	// greet sends the first request: the node, and what is known from earlier streams.
	greet(r *rules) error
	// answer says of a response that it was accepted or, with a refusal, why not; r.version is that of the last one accepted.
	answer(in response, r *rules, refusal error) error
	// receive returns the next response. It may be called while another method is.
	receive() (response, error)
}

// A control plane may send a response that was refused again as soon as it hears of that, as the snapshot cache of go-control-plane
// does, for ever. So the answer to what was refused already waits: minRepeat, then ever longer, up to maxRepeat. That is also how
// late what mends it may be seen, where a control plane sends nothing before it has the answer.
const (
	minRepeat = time.Second
	maxRepeat = 15 * time.Second
)

// received is what receive returned.
type received struct {
	response
	err error
}

// follow greets, and then answers responses until the stream ends. It reports whether there were any, and why the stream ended.
func (c *Client) follow(ctx context.Context, talk conversation, incoming <-chan received) (answered bool, err error) {
	if err := talk.greet(&c.rules); err != nil {
		return false, err
	}
	c.connected(ctx)
	var (
		repeated response         // what waits for its answer
		due      <-chan time.Time // of that; nil when nothing waits
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
		if err := talk.answer(in, &c.rules, refusal); err != nil {
			return answered, err
		}
	}
}

// listen hands on what is received until there is an error, or ctx ends.
func listen(ctx context.Context, talk conversation, to chan<- received) {
	for {
		r, err := talk.receive()
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

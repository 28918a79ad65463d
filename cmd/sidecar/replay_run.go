package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// client is the state of one client.
type client struct {
	state algorithms.State
	log   algorithms.Log
	last  algorithms.Instant // latest seen
	holds holds
}

// run reads requests and writes decisions. Before an error about a line, run writes the decisions
// on the lines above.
func (r *replay) run(in io.Reader, stdout io.Writer, header bool) (err error) {
	out := bufio.NewWriterSize(stdout, 1<<16)
	defer func() {
		if flushed := out.Flush(); err == nil && flushed != nil {
			err = fmt.Errorf("write decisions: %w", flushed)
		}
	}()
	lines := newLines(in)
	announced := -1
	if header {
		if announced, err = r.readHeader(lines); err != nil {
			return err
		}
	}
	n := 0
	for ; ; n++ {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n == announced {
			return lines.wrong("there are more requests than the %d of the header", announced)
		}
		q, err := parseRequest(line, r.unit)
		if err == nil {
			err = r.fits(q)
		}
		if err != nil {
			return lines.wrong("%w", err)
		}
		if _, err := out.Write(r.decide(q)); err != nil {
			return fmt.Errorf("write decisions: %w", err)
		}
	}
	if n < announced {
		return lines.wrong("the input ends after %d requests, the header says %d", n, announced)
	}
	return nil
}

// readHeader reads the limit and the period, and returns the number of requests.
func (r *replay) readHeader(lines *lines) (int, error) {
	var numbers [3]uint64
	for i, what := range []string{"the limit", "the period", "the number of requests"} {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return 0, lines.wrong("the input ends before %s", what)
		}
		if err != nil {
			return 0, err
		}
		if numbers[i], err = parseCount(line); err != nil {
			return 0, lines.wrong("%s: %w", what, err)
		}
		switch i {
		case 0:
			if numbers[0] > algorithms.MaxHits {
				return 0, lines.wrong("the limit: %d: must be at most %d", numbers[0], uint64(algorithms.MaxHits))
			}
			r.limit.Requests = uint32(numbers[0])
		case 1:
			if numbers[1] > uint64(algorithms.MaxPeriod/r.unit) {
				return 0, lines.wrong("the period: %d times %v: must be at most 10 years", numbers[1], r.unit)
			}
			r.limit.Period = time.Duration(numbers[1]) * r.unit
			if err := r.check(); err != nil {
				return 0, lines.wrong("%w", err)
			}
		}
	}
	return int(min(numbers[2], 1<<62)), nil
}

// decide takes the hits of a request and returns the line about the decision, valid until the next
// call.
func (r *replay) decide(q request) []byte {
	c := r.clients[string(q.client)]
	if c == nil {
		c = &client{last: q.at}
		r.clients[string(q.client)] = c
	}
	c.last = max(c.last, q.at)
	var d algorithms.Decision
	if q.phase != 0 {
		d = r.hold(c, q)
	} else {
		d = r.charge(c, q.hits, r.countRejected)
	}
	never := q.hits > int64(r.limit.Capacity()) && !d.Allowed
	if never {
		r.never++
	}
	r.buf = r.buf[:0]
	switch {
	case r.json:
		r.buf = appendJSON(r.buf, q, d, never)
	case d.Allowed:
		r.buf = append(r.buf, "allow"...)
	default:
		r.buf = append(r.buf, "deny"...)
	}
	r.buf = append(r.buf, '\n')
	return r.buf
}

// charge takes hits from the state of a client.
func (r *replay) charge(c *client, hits int64, countRejected bool) (d algorithms.Decision) {
	if r.limit.Algorithm.HasState() {
		c.state, d = r.take(c.state, c.last, hits, countRejected)
		return d
	}
	return c.log.Take(r.limit, c.last, hits, countRejected)
}

// take takes hits from a state. Package algorithms computes with whole numbers, and here each of
// its nanoseconds is one tick.
func (r *replay) take(s algorithms.State, at algorithms.Instant, hits int64, countRejected bool) (algorithms.State, algorithms.Decision) {
	l := r.limit
	l.Period /= r.tick
	s, d := algorithms.Take(l, s, at/algorithms.Instant(r.tick), hits, countRejected)
	d.RetryAfter, d.ResetAfter = times(d.RetryAfter, r.tick), times(d.ResetAfter, r.tick)
	return s, d
}

// times returns n ticks as a duration, held at the largest.
func times(n, tick time.Duration) time.Duration {
	if n > math.MaxInt64/tick {
		return math.MaxInt64
	}
	return n * tick
}

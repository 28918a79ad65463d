package records

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// stream is an open file.
type stream struct {
	chunks  chunks
	number  int // in the order of opening, which decides between records of one instant
	filled  chan *chunk
	emptied chan *chunk
	now     *chunk // nil before the first
}

// start reads a file from now on, in a goroutine of its own.
func (t *Traffic) start(s *source) error {
	if len(t.open) >= maxOpen {
		return errors.Join(fmt.Errorf("%s: the times of more than %d files overlap: merge some of them before", s.name, maxOpen), s.Close())
	}
	one := &stream{chunks: chunks{from: s}, number: len(t.open), filled: make(chan *chunk, 1), emptied: make(chan *chunk, 2)}
	one.emptied <- new(chunk)
	one.emptied <- new(chunk)
	run := func() {
		defer func() { _ = s.Close() }() // was only read
		one.run(t.ctx)
	}
	if s.regular {
		s.read.into = &t.read
		t.going.Go(run)
	} else {
		go run() // nobody can end the wait for a pipe
	}
	return t.advance(one, len(t.open))
}

// run fills chunks until the file ends.
func (s *stream) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-s.emptied:
			s.chunks.fill(c)
			ended := c.end != nil
			select {
			case <-ctx.Done():
				return
			case s.filled <- c:
			}
			if ended {
				return
			}
		}
	}
}

// head returns the next record of the stream.
func (s *stream) head() *Record { return &s.now.records[s.now.next] }

// advance brings a stream to its next record. at is its place in open, or the number of open ones
// for a new stream.
func (t *Traffic) advance(s *stream, at int) error {
	for s.now == nil || s.now.next == s.now.count {
		if s.now != nil {
			if end := s.now.end; end != nil {
				return t.finish(s, at, end)
			}
			s.emptied <- s.now
		}
		select {
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		case s.now = <-s.filled:
		}
	}
	if at == len(t.open) {
		t.open = append(t.open, s)
		for at > 0 && t.before(at, (at-1)/2) {
			t.open[at], t.open[(at-1)/2] = t.open[(at-1)/2], t.open[at]
			at = (at - 1) / 2
		}
		return nil
	}
	t.sink(at)
	return nil
}

// finish takes a stream that has ended out of the traffic.
func (t *Traffic) finish(s *stream, at int, end error) error {
	t.notes = append(t.notes, s.chunks.notes...)
	if last := len(t.open) - 1; at <= last {
		t.open[at] = t.open[last]
		t.open = t.open[:last]
		if at < last {
			t.sink(at)
		}
	}
	if errors.Is(end, io.EOF) {
		return nil
	}
	return end
}

// before reports whether one stream has its turn before another one.
func (t *Traffic) before(i, j int) bool {
	a, b := t.open[i], t.open[j]
	if x, y := a.head().At, b.head().At; x != y {
		return x < y
	}
	return a.number < b.number
}

// sink moves a stream down the heap to its place.
func (t *Traffic) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(t.open); child++ {
			if t.before(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		t.open[i], t.open[least] = t.open[least], t.open[i]
		i = least
	}
}

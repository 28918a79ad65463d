package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// maxOpen bounds the files that are open at once. Files are open together if their times overlap, as several sidecars wrote them.
const maxOpen = 1000

// Traffic is the requests of several files in the order of their instants, as one sidecar would have got them all. A file is open only
// while its requests have their turn. Traffic is for one goroutine; Close it.
type Traffic struct {
	ctx   context.Context
	stop  context.CancelFunc
	going sync.WaitGroup // one goroutine for each open file

	waiting []waiting // files that are yet to be opened, the earliest last
	open    []*stream // a heap, the earliest first
	taken   bool      // the first of open has handed out its record
	notes   []Note

	size int64        // of all files with a known size together, in bytes
	read atomic.Int64 // of these bytes
}

// waiting is a file and the instant of its first record.
type waiting struct {
	path  string
	first algorithms.Instant
}

// stream is an open file.
type stream struct {
	chunks  chunks
	number  int // in the order of opening, which decides between records of one instant
	filled  chan *chunk
	emptied chan *chunk
	now     *chunk // nil before the first
}

// Open opens the traffic in files, directories of files and, for "-", stdin. Of a directory the files count whose names end in .jsonl or
// .jsonl.zst, and do not begin with a dot. The error lists every path that cannot be read, or is empty of files. ctx ends the reading.
func Open(ctx context.Context, paths []string, stdin io.Reader) (*Traffic, error) {
	t := new(Traffic)
	t.ctx, t.stop = context.WithCancel(ctx)
	var errs []error
	piped := false
	for _, path := range paths {
		if path == "-" {
			if piped {
				errs = append(errs, errors.New("standard input is given twice"))
				continue
			}
			piped = true
			s, err := newSource("standard input", stdin, io.NopCloser(nil))
			if err == nil {
				err = t.start(s)
			}
			errs = append(errs, err)
			continue
		}
		files, err := filesOf(path)
		errs = append(errs, err)
		for _, file := range files {
			errs = append(errs, t.add(file))
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Close()
		return nil, err
	}
	slices.SortStableFunc(t.waiting, func(a, b waiting) int { return cmp.Compare(b.first, a.first) })
	return t, nil
}

// filesOf returns the files of a path, in the order of their names.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	var files []string
	all, err := os.ReadDir(path)
	for _, e := range all {
		name := e.Name()
		if e.IsDir() || strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".jsonl") && !strings.HasSuffix(name, Extension) {
			continue
		}
		files = append(files, filepath.Join(path, name))
	}
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: has no file whose name ends in .jsonl or %s", path, Extension)
	}
	return files, err
}

// add takes a file into the traffic. A regular file waits for its turn; any other can be opened only once.
func (t *Traffic) add(path string) error {
	s, err := openFile(path)
	if err != nil {
		return err
	}
	if !s.regular {
		return t.start(s)
	}
	first, c := chunks{from: s}, new(chunk)
	first.fill(c)
	if err := s.Close(); err != nil {
		return err
	}
	if c.end != nil && !errors.Is(c.end, io.EOF) {
		return c.end
	}
	if c.count > 0 || c.end == nil {
		w := waiting{path: path}
		if c.count > 0 {
			w.first = c.records[0].At
		}
		t.waiting = append(t.waiting, w)
		t.size += s.size
	} else {
		t.notes = append(t.notes, first.notes...)
	}
	return nil
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

// advance brings a stream to its next record. at is its place in open, or the number of open ones for a new stream.
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

// Next returns the next record, which is valid until the next call; io.EOF after the last. Any other error lists the first mistakes, each
// with its file and line, or comes from the context of Open.
func (t *Traffic) Next() (*Record, error) {
	if t.taken {
		t.taken = false
		first := t.open[0]
		first.now.next++
		if first.now.next < first.now.count {
			if len(t.open) > 1 {
				t.sink(0)
			}
		} else if err := t.advance(first, 0); err != nil {
			return nil, err
		}
	}
	for n := len(t.waiting); n > 0 && (len(t.open) == 0 || t.waiting[n-1].first <= t.open[0].head().At); n = len(t.waiting) {
		s, err := openFile(t.waiting[n-1].path)
		t.waiting = t.waiting[:n-1]
		if err == nil {
			err = t.start(s)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(t.open) == 0 {
		return nil, io.EOF
	}
	t.taken = true
	return t.open[0].head(), nil
}

// Notes returns the notes about the files that were read to their end.
func (t *Traffic) Notes() []Note { return t.notes }

// Progress returns how many bytes of the files have been read, and how many there are. Files whose size is not known do not count.
func (t *Traffic) Progress() (read, all int64) { return t.read.Load(), t.size }

// Close ends the reading.
func (t *Traffic) Close() {
	t.stop()
	t.going.Wait()
}

package records

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// maxOpen bounds the files that are open at once, as the times of several sidecars' files overlap.
const maxOpen = 1000

// Traffic is the requests of several files in the order of their instants, as one sidecar would
// have got them all. A file is open only while its requests have their turn. Traffic is for one
// goroutine; Close it.
type Traffic struct {
	ctx   context.Context
	stop  context.CancelFunc
	going sync.WaitGroup // one goroutine for each open file

	waiting []waiting // files that are yet to be opened, the earliest last
	open    turns
	opened  int  // files so far
	taken   bool // the first of open has handed out its record
	notes   []Note

	size int64        // of all regular files together, in bytes
	read atomic.Int64 // of these bytes
}

type waiting struct {
	path  string
	first algorithms.Instant
}

// turns is a heap of open files by their next records, the earliest first.
type turns []*file

func (t turns) Len() int      { return len(t) }
func (t turns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(f any)   { *t = append(*t, f.(*file)) } //nolint:errcheck // only files are pushed

func (t turns) Less(i, j int) bool {
	if a, b := t[i].head().At, t[j].head().At; a != b {
		return a < b
	}
	return t[i].number < t[j].number
}

func (t *turns) Pop() any {
	f := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return f
}

func (f *file) head() *Record { return &f.now.records[f.now.next] }

// Open opens the traffic in files, directories of files and, for "-", stdin. Of a directory the
// files count whose names end in .jsonl or .jsonl.zst, and do not begin with a dot. The error lists
// every path that cannot be read, or is empty of files. ctx ends the reading.
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
			f, err := newFile("standard input", stdin, func() {})
			if err == nil {
				err = t.start(f)
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

func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
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

// add takes a file into the traffic: a regular one later, any other at once.
func (t *Traffic) add(path string) error {
	f, err := openFile(path, new(atomic.Int64))
	if err != nil {
		return err
	}
	if !f.regular {
		return t.start(f)
	}
	c := new(chunk)
	f.fill(c)
	f.close()
	switch {
	case c.end != nil && !errors.Is(c.end, io.EOF):
		return c.end
	case c.count > 0:
		t.waiting = append(t.waiting, waiting{path, c.records[0].At})
		t.size += f.size
	case c.end == nil: // blank lines so far
		t.waiting = append(t.waiting, waiting{path: path})
		t.size += f.size
	default:
		t.notes = append(t.notes, f.notes...)
	}
	return nil
}

// start reads a file from now on, in a goroutine of its own.
func (t *Traffic) start(f *file) error {
	if len(t.open) >= maxOpen {
		f.close()
		return fmt.Errorf("%s: the times of more than %d files overlap: merge some of them before", f.name, maxOpen)
	}
	f.number, f.filled, f.emptied = t.opened, make(chan *chunk, 1), make(chan *chunk, 2)
	t.opened++
	f.emptied <- new(chunk)
	f.emptied <- new(chunk)
	if f.regular {
		t.going.Go(func() { f.run(t.ctx) })
	} else {
		go f.run(t.ctx) // nobody can end the wait for a pipe
	}
	err := t.advance(f)
	if err == nil {
		heap.Push(&t.open, f)
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// run fills chunks until the file ends, and closes it.
func (f *file) run(ctx context.Context) {
	defer f.close()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-f.emptied:
			f.fill(c)
			ended := c.end != nil
			select {
			case <-ctx.Done():
				return
			case f.filled <- c:
			}
			if ended {
				return
			}
		}
	}
}

// advance waits for the next record of a file: io.EOF or a mistake after the last.
func (t *Traffic) advance(f *file) error {
	for f.now == nil || f.now.next == f.now.count {
		if f.now != nil {
			if f.now.end != nil {
				t.notes = append(t.notes, f.notes...)
				return f.now.end
			}
			f.emptied <- f.now
		}
		select {
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		case f.now = <-f.filled:
		}
	}
	return nil
}

// All yields the records that have not been yielded yet, each valid until the next one. An error
// comes last, without a record. The error lists the first mistakes, each with its file and line, or
// is the error of Open's ctx.
func (t *Traffic) All() iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for {
			r, err := t.next()
			if errors.Is(err, io.EOF) || !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// next returns the next record, which is valid until the next call; io.EOF after the last.
func (t *Traffic) next() (*Record, error) {
	if t.taken {
		t.taken = false
		first := t.open[0]
		first.now.next++
		if err := t.advance(first); err == nil {
			heap.Fix(&t.open, 0)
		} else if heap.Remove(&t.open, 0); !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	for n := len(t.waiting); n > 0 && (len(t.open) == 0 || t.waiting[n-1].first <= t.open[0].head().At); n = len(t.waiting) {
		f, err := openFile(t.waiting[n-1].path, &t.read)
		t.waiting = t.waiting[:n-1]
		if err == nil {
			err = t.start(f)
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

// Progress returns how many bytes of the regular files have been read, and how many there are.
func (t *Traffic) Progress() (read, all int64) { return t.read.Load(), t.size }

// Close ends the reading.
func (t *Traffic) Close() {
	t.stop()
	t.going.Wait()
}

package records

import (
	"cmp"
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

// maxOpen bounds the files that are open at once. Files are open together if their times overlap,
// as several sidecars wrote them.
const maxOpen = 1000

// Traffic is the requests of several files in the order of their instants, as one sidecar would
// have got them all. A file is open only while its requests have their turn. Traffic is for one
// goroutine; Close it.
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

// add takes a file into the traffic. A regular file waits for its turn; any other can be opened
// only once.
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

// Progress returns how many bytes of the files have been read, and how many there are. Files whose
// size is not known do not count.
func (t *Traffic) Progress() (read, all int64) { return t.read.Load(), t.size }

// Close ends the reading.
func (t *Traffic) Close() {
	t.stop()
	t.going.Wait()
}

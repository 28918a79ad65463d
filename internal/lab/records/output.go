package records

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/regular"
)

// prefix begins a file's name. The instant of its start follows: names are in the order of time.
const prefix = "requests-"

// Waits between attempts to open a file.
const (
	minWait = time.Second
	maxWait = 30 * time.Second
)

// create makes a file of mode 0600 that is not there yet.
func create(path string) (io.WriteCloser, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
}

// output is the open file of a Recorder, and its directory. Only stats is safe for concurrent use.
type output struct {
	options Options
	create  func(path string) (io.WriteCloser, error)
	dir     *lockfile.Directory

	path    string         // of the open file
	file    io.WriteCloser // nil without one
	zstd    *zstd.Encoder  // of all files, one after the other; nil before the first
	size    int64          // of the open file, in bytes
	pending int            // requests in the open file since the last flush
	kept    bool           // requests of the open file were handed to the operating system

	failed  string        // the error of the last attempt, if it failed
	wait    time.Duration // from the last failure to the next attempt
	retryAt time.Time

	mu      sync.Mutex // guards counted
	counted Stats
}

func (o *output) fileBytes() int64 { return min(o.options.MaxBytes/16, 64<<20) }

// slack is the most bytes by which a file grows between two looks at its size.
const slack = 512 << 10

// Write implements [io.Writer], for the compressed bytes.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.file.Write(p)
	o.size += int64(n)
	o.count(func(s *Stats) { s.Bytes += uint64(n) })
	return n, err
}

// try makes and removes a file, as a lock that was there before says nothing about the directory.
func (o *output) try() error {
	path := filepath.Join(o.options.Dir, fileName(time.Now()))
	file, err := o.create(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(path))
}

func (o *output) write(lines []byte, requests int) {
	if o.file == nil && !o.open() {
		o.count(func(s *Stats) { s.Lost += uint64(requests) })
		return
	}
	o.pending += requests
	if _, err := o.zstd.Write(lines); err != nil {
		o.fail(err, o.pending)
		return
	}
	if o.size >= o.fileBytes() {
		o.finish()
	}
}

// open opens the next file, unless the last failure was a moment ago.
func (o *output) open() bool {
	if !o.retryAt.IsZero() && time.Now().Before(o.retryAt) {
		return false
	}
	_, err := o.dir.Hold()
	if err == nil {
		err = o.makeRoom()
	}
	if err == nil {
		o.path = filepath.Join(o.options.Dir, fileName(time.Now()))
		o.file, err = o.create(o.path)
	}
	if err == nil && o.zstd == nil {
		o.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	}
	if err != nil {
		o.fail(err, 0)
		return false
	}
	o.size, o.pending, o.kept = 0, 0, false
	o.zstd.Reset(o)
	return true
}

// makeRoom removes the oldest files, so that one more fits. A name more than a day ahead is of a
// file from before a step of the clock back. Such files go first, and would else outlast all new
// ones.
func (o *output) makeRoom() error {
	all, err := os.ReadDir(o.options.Dir) // in the order of names
	if err != nil {
		return err
	}
	type file struct {
		name string
		size int64
	}
	var files, ahead []file
	tomorrow := fileName(time.Now().Add(24 * time.Hour))
	sum := o.fileBytes() + slack
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), Extension) {
			continue
		}
		info, err := e.Info()
		if err != nil { // somebody has just removed it
			continue
		}
		if f := (file{e.Name(), info.Size()}); f.name > tomorrow {
			ahead = append(ahead, f)
		} else {
			files = append(files, f)
		}
		sum += info.Size()
	}
	for _, f := range append(ahead, files...) {
		if sum <= o.options.MaxBytes {
			break
		}
		if err := os.Remove(filepath.Join(o.options.Dir, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sum -= f.size
		o.count(func(s *Stats) { s.Removed++ })
	}
	return nil
}

// fileName returns the name of a file that begins at an instant.
func fileName(at time.Time) string {
	return prefix + at.UTC().Format("20060102T150405.000000000Z") + Extension
}

// flush hands requests to the operating system, and looks whether the file is still there.
func (o *output) flush() {
	if o.file == nil {
		return
	}
	if o.pending > 0 {
		if err := o.zstd.Flush(); err != nil {
			o.fail(err, o.pending)
			return
		}
		o.written()
	}
	if _, err := os.Lstat(o.path); err != nil {
		o.fail(err, 0)
		o.retryAt = time.Time{} // the next file may be open at once
	}
}

// written counts the requests that were handed to the operating system.
func (o *output) written() {
	o.count(func(s *Stats) { s.Recorded += uint64(o.pending) })
	o.pending, o.kept = 0, true
	if o.failed != "" {
		o.options.Logger.Info("requests are recorded again", slog.String("file", o.path))
	}
	o.failed, o.wait, o.retryAt = "", 0, time.Time{}
}

func (o *output) finish() {
	if o.file == nil {
		return
	}
	err := o.zstd.Close()
	if closed := o.file.Close(); err == nil {
		err = closed
	}
	o.file = nil
	if err != nil {
		o.fail(err, o.pending)
		return
	}
	o.written()
}

// close ends the open file, and gives the directory to other processes.
func (o *output) close() {
	o.finish()
	o.dir.Close()
}

// fail gives up the open file, and logs an error unless the last one was the same.
func (o *output) fail(err error, lost int) {
	o.count(func(s *Stats) { s.Failures++; s.Lost += uint64(lost) })
	if o.file != nil {
		_ = o.file.Close() // there is an error already
		o.file = nil
		if !o.kept {
			_ = os.Remove(o.path)
		}
	}
	o.pending = 0
	o.wait = min(max(2*o.wait, minWait), maxWait)
	o.retryAt = time.Now().Add(o.wait)
	if text := regular.Bare(err).Error(); text != o.failed {
		o.failed = text
		o.options.Logger.Error("requests cannot be recorded",
			slog.String("directory", o.options.Dir), slog.String("error", err.Error()))
	}
}

func (o *output) stats() Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counted
}

func (o *output) count(change func(*Stats)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.counted)
}

package grants

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// journal is the file "grants" in a directory: one change on each line, in the order of the
// changes. A change is on the disk before it counts. A line that a crash cut off has no line break,
// and is ignored. The file is written anew when most of its lines no longer matter: to
// "grants.new", which then takes the name of the file.
//
// On a full disk the grants are in memory alone. The Keeper then tries again to write the file
// anew: at a change by an operator, and after waits that double with each failure.
type journal struct {
	path   string
	file   *os.File // nil while failed is set
	size   int64    // of the changes in the file, in bytes
	lines  int
	failed error // of the last attempt to write; nil: all grants are in the file

	tried time.Time     // instant of the last attempt that failed
	wait  time.Duration // from tried to the next attempt; 0: none has failed since one succeeded

	sync func(*os.File) error // (*os.File).Sync, but in tests
}

// change is one line of the journal: a grant that takes a slot, or the end of the grant in a slot.
type change struct {
	Slot  string          `json:"slot"`
	Grant json.RawMessage `json:"grant,omitempty"` // a record; absent for an end
}

// spareLines is a number of lines without a meaning, from which on a journal may be written anew.
const spareLines = 1000

// Waits after failed attempts to write. An attempt writes all grants, up to 30 MB.
const (
	minRetryWait = time.Second // also between two attempts because of changes by operators
	maxRetryWait = 30 * time.Second
)

// openJournalLocked loads the grants in the directory. mu must be held.
func (k *Keeper) openJournalLocked(ctx context.Context) {
	k.journal = &journal{path: filepath.Join(k.options.Dir, "grants"), sync: (*os.File).Sync}
	logger := k.options.Logger
	data, err := read(k.journal.path)
	now, loaded := time.Now(), make(map[string]*limiter.Grant)
	aside := k.journal.path + ".refused-" + now.UTC().Format("20060102T150405.000000000Z")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		data = nil // or a part
		logger.LogAttrs(ctx, slog.LevelError, "saved grants cannot be read: no grant is in force",
			slog.String("file", k.journal.path), slog.String("error", err.Error()),
			slog.String("set_aside", aside), slog.Any("not_set_aside", os.Rename(k.journal.path, aside)))
	}
	wrong, first := 0, error(nil)
	for line := range bytes.Lines(data[:bytes.LastIndexByte(data, '\n')+1]) {
		at, g, err := decodeChange(line)
		switch {
		case err != nil:
			if wrong++; first == nil {
				first = err
			}
			delete(loaded, at) // the change took its place
		case g == nil || !g.Until.After(now):
			delete(loaded, at)
		default:
			loaded[at] = g
		}
	}
	if wrong > 0 {
		logger.LogAttrs(ctx, slog.LevelError, "some lines of the saved grants cannot be read: the other grants are in force",
			slog.String("file", k.journal.path), slog.Int("lines", wrong), slog.String("first", first.Error()),
			slog.String("set_aside", aside), slog.Any("not_set_aside", os.WriteFile(aside, data, 0o600)))
	}
	for at := range loaded {
		if len(loaded) <= k.options.Max {
			break
		}
		logger.LogAttrs(ctx, slog.LevelError, "a saved grant is above the bound, and dropped", Attrs(loaded[at])...)
		delete(loaded, at)
	}
	k.setLocked(loaded)
	if len(data) > 0 {
		logger.LogAttrs(ctx, slog.LevelInfo, "grants loaded", slog.Int("grants", len(loaded)), slog.String("file", k.journal.path))
	}
	k.rewriteLocked(ctx)
}

// read reads a regular file: a pipe could keep the start waiting.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // was only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("a regular file must be there"))
	}
	return io.ReadAll(f)
}

// decodeChange reads a line. g is nil for the end of a grant.
func decodeChange(line []byte) (at string, g *limiter.Grant, err error) {
	var c change
	if err := json.Unmarshal(line, &c); err != nil {
		return "", nil, err
	}
	if c.Slot == "" {
		return "", nil, errors.New("a change without a slot")
	}
	if c.Grant != nil {
		g, err = decode(c.Grant)
	}
	return c.Slot, g, err
}

// appendLocked keeps a change, if there is a directory, before it counts. A failure goes to the
// log, and the change to memory alone. mu must be held.
func (k *Keeper) appendLocked(ctx context.Context, c change) {
	j := k.journal
	if j == nil {
		return
	}
	if j.due() || j.failed != nil && time.Since(j.tried) >= minRetryWait || j.failed == nil && j.lines > 2*len(k.slots)+spareLines {
		k.rewriteLocked(ctx) // before the change: the new file has the grants in force
	}
	if j.failed != nil {
		return // written with all others once the file can be written
	}
	line, err := json.Marshal(c)
	if err != nil {
		k.journalFailedLocked(ctx, err)
		return
	}
	line = append(line, '\n')
	_, err = j.file.WriteAt(line, j.size)
	if err == nil {
		err = j.sync(j.file)
	}
	if err != nil { // a part of the line may be in the file
		k.journalFailedLocked(ctx, errors.Join(err, j.file.Truncate(j.size)))
		return
	}
	j.size += int64(len(line))
	j.lines++
}

// inPlace reports whether the open file still has its name. Somebody may have removed the
// directory.
func (j *journal) inPlace() bool {
	named, err := os.Lstat(j.path)
	if err != nil {
		return false
	}
	open, err := j.file.Stat()
	return err == nil && os.SameFile(named, open)
}

// rewriteLocked writes the file anew. mu must be held.
func (k *Keeper) rewriteLocked(ctx context.Context) {
	j := k.journal
	file, size, err := k.writeAnewLocked()
	if err != nil {
		k.journalFailedLocked(ctx, err)
		return
	}
	j.close()
	j.file, j.size, j.lines = file, size, len(k.slots)
	if j.failed != nil {
		j.failed, j.wait = nil, 0
		k.options.Logger.LogAttrs(ctx, slog.LevelInfo, "grants are kept again", slog.String("file", j.path))
	}
}

// writeAnewLocked writes all grants to a new file, and gives the file its name when the bytes are
// on the disk. mu must be held.
func (k *Keeper) writeAnewLocked() (file *os.File, size int64, err error) {
	fresh := k.journal.path + ".new"
	file, err = os.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, 0, err
	}
	to := bufio.NewWriter(file)
	for at, g := range k.slots {
		line, err := json.Marshal(change{Slot: at, Grant: encode(g)})
		if err != nil {
			return nil, 0, errors.Join(err, file.Close())
		}
		n, _ := to.Write(append(line, '\n')) // Flush returns the error
		size += int64(n)
	}
	err = to.Flush()
	if err == nil {
		err = k.journal.sync(file)
	}
	if err == nil {
		err = os.Rename(fresh, k.journal.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(fresh))
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close(), os.RemoveAll(fresh))
	}
	return file, size, nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// journalFailedLocked notes that the file could not be written, and logs the first failure since
// the file was written. mu must be held.
func (k *Keeper) journalFailedLocked(ctx context.Context, err error) {
	j := k.journal
	k.failures.Add(1)
	if j.failed == nil {
		k.options.Logger.LogAttrs(ctx, slog.LevelError, "grants cannot be kept: the next start knows only the ones that were kept before",
			slog.String("file", j.path), slog.String("error", err.Error()))
	}
	j.failed = fmt.Errorf("%w", err)
	j.tried, j.wait = time.Now(), min(max(2*j.wait, minRetryWait), maxRetryWait)
}

// retryJournalLocked writes a file anew that could not be written, once its wait is over, or that
// has lost its name. mu must be held.
func (k *Keeper) retryJournalLocked(ctx context.Context) {
	if k.journal != nil && k.journal.due() {
		k.rewriteLocked(ctx)
	}
}

// due reports whether the file must be written anew.
func (j *journal) due() bool {
	if j.failed != nil {
		return time.Since(j.tried) >= j.wait
	}
	return !j.inPlace()
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // all of it is on the disk
		j.file = nil
	}
}

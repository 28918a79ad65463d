package grants

import (
	"bufio"
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/limiter"
)

// journal is the file "grants" in a directory: one change on each line, in the order of the
// changes. A change is on the disk before it counts. A line that a crash cut off has no line break,
// and is ignored. The file is written anew when most of its lines no longer matter: to
// "grants.new", which then takes the name of the file. The file before stays as "grants.old".
//
// On a full disk the grants are in memory alone. The Keeper then tries again to write the file
// anew: at a change by an operator, and after waits that double with each failure.
type journal struct {
	path   string
	file   *os.File // nil while failed is set
	size   int64    // of the changes in the file, in bytes
	lines  int
	at     change // the last position in Redis; without a slot: none
	failed error  // of the last attempt to write; nil: all grants are in the file

	tried time.Time     // instant of the last attempt that failed
	wait  time.Duration // from tried to the next attempt; 0: none has failed since one succeeded

	sync func(*os.File) error // (*os.File).Sync, but in tests
}

// Bounds of the file.
const (
	spareLines = 1000    // lines without a meaning, from which on the file may be written anew
	maxFile    = 1 << 30 // bytes; a larger file is not read
)

// Waits after failed attempts to write. An attempt writes all grants, up to 30 MB.
const (
	minRetryWait = time.Second // also between two attempts because of changes by operators
	maxRetryWait = 30 * time.Second
)

// appendLocked keeps changes, if there is a directory, before they count. A failure goes to the
// log, and the changes to memory alone. mu must be held.
func (k *Keeper) appendLocked(ctx context.Context, changes ...change) {
	j := k.journal
	if j == nil || len(changes) == 0 {
		return
	}
	if j.due() || j.failed != nil && time.Since(j.tried) >= minRetryWait || j.failed == nil && j.spare(len(k.slots)) {
		k.rewriteLocked(ctx) // before the changes: the new file has the grants in force
	}
	if j.failed != nil {
		return // written with all others once the file can be written
	}
	var lines []byte
	for _, c := range changes {
		line, err := c.line()
		if err != nil {
			k.journalFailedLocked(ctx, err)
			return
		}
		lines = append(lines, line...)
	}
	_, err := j.file.WriteAt(lines, j.size)
	if err == nil {
		err = j.sync(j.file)
	}
	if err != nil { // a part of the lines may be in the file
		k.journalFailedLocked(ctx, errors.Join(err, j.file.Truncate(j.size)))
		return
	}
	j.size += int64(len(lines))
	j.lines += len(changes)
}

// spare reports whether the file of so many grants is longer than needed.
func (j *journal) spare(grants int) bool { return j.lines > 2*grants+spareLines || j.size > maxFile/2 }

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
// on the disk. Another process that has made the directory anew keeps its file. mu must be held.
func (k *Keeper) writeAnewLocked() (file *os.File, size int64, err error) {
	fresh, old := k.journal.path+".new", k.journal.path+".old"
	if err := k.holdDirLocked(); err != nil {
		return nil, 0, err
	}
	file, err = regular.Create(fresh)
	if err != nil {
		return nil, 0, err
	}
	to := bufio.NewWriter(file)
	for c := range k.allLocked() {
		line, err := c.line()
		if err != nil {
			return nil, 0, errors.Join(err, file.Close())
		}
		n, _ := to.Write(line) // Flush returns the error
		size += int64(n)
	}
	err = to.Flush()
	if err == nil {
		err = k.journal.sync(file)
	}
	if err == nil {
		if err := k.holdDirLocked(); err != nil {
			return nil, 0, errors.Join(err, file.Close()) // the file may be of another process by now
		}
		_, _ = os.RemoveAll(old), os.Link(k.journal.path, old) // some file systems have no links; the grants matter more
		err = os.Rename(fresh, k.journal.path)
	}
	if err == nil {
		err = regular.SyncDir(filepath.Dir(fresh))
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close(), os.RemoveAll(fresh))
	}
	return file, size, nil
}

// allLocked yields the lines of a new file. mu must be held.
func (k *Keeper) allLocked() iter.Seq[change] {
	return func(yield func(change) bool) {
		for at, g := range k.slots {
			if !yield(change{Slot: at, Grant: encode(g), Ended: k.endedAt(at)}) {
				return
			}
		}
		if at := k.journal.at; k.shared != nil && at.Slot != "" {
			yield(at)
		}
	}
}

// copyLocked keeps changes in Redis in the directory, if there is one. mu must be held.
func (k *Keeper) copyLocked(ctx context.Context, changes map[string]*limiter.Grant) {
	if k.journal == nil {
		return
	}
	var lines []change
	for at, g := range changes {
		switch was := k.slots[at]; {
		case g == nil && was != nil:
			lines = append(lines, change{Slot: at})
		case g != nil && (was == nil || was.ID != g.ID):
			lines = append(lines, change{Slot: at, Grant: encode(g)})
		}
	}
	k.appendLocked(ctx, lines...)
}

// reachLocked notes in the directory that all changes up to a version are known. mu must be held.
func (k *Keeper) reachLocked(ctx context.Context) {
	at := change{Slot: positionSlot, Epoch: k.shared.epoch, Version: k.shared.version}
	if j := k.journal; j != nil && (at.Epoch != j.at.Epoch || at.Version != j.at.Version) {
		j.at = at
		k.appendLocked(ctx, at)
	}
}

// holdDirLocked locks the directory, unless it is locked. mu must be held.
func (k *Keeper) holdDirLocked() error {
	if k.options.Lock == nil {
		return nil
	}
	_, err := k.options.Lock.Hold()
	return err
}

// journalFailedLocked notes that the file could not be written, and logs the first failure since
// the file was written. mu must be held.
func (k *Keeper) journalFailedLocked(ctx context.Context, err error) {
	j := k.journal
	k.failures.Add(1)
	if j.failed == nil {
		text := "grants cannot be kept: the next start knows only the ones that were kept before"
		if k.shared != nil {
			text = "the last grants of Redis cannot be kept: a start without Redis knows only the ones that were kept before"
		}
		k.options.Logger.LogAttrs(ctx, slog.LevelError, text, //nolint:sloglint // one of two texts
			slog.String("file", j.path), slog.String("error", err.Error()))
	}
	j.failed = err
	j.tried, j.wait = time.Now(), min(max(2*j.wait, minRetryWait), maxRetryWait)
}

// due reports whether the file must be written anew.
func (j *journal) due() bool {
	if j.failed != nil {
		return time.Since(j.tried) >= j.wait
	}
	return regular.InPlace(j.path, j.file) != nil // somebody may have removed the directory
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // all of it is on the disk
		j.file = nil
	}
}

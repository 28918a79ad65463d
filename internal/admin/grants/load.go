package grants

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/limiter"
)

// saved is the content of a journal.
type saved struct {
	slots map[string]*limiter.Grant
	ended map[string]time.Time // of slots, by the wall clock
	bytes int                  // of slots, see sizeOf
	above int                  // grants beyond the bounds, which are not in slots

	at change // the last position in Redis; without a slot: none

	lines int   // with a line break
	size  int64 // of these lines, in bytes
	plain int   // lines without a checksum

	wrong, firstWrong int // lines that cannot be read; the number of the first one, from 1
	err               error
}

// openJournalLocked loads the grants in the directory. mu must be held.
func (k *Keeper) openJournalLocked(ctx context.Context) {
	j := &journal{path: filepath.Join(k.options.Dir, "grants"), sync: (*os.File).Sync}
	k.journal = j
	logger := k.options.Logger
	aside := regular.Aside(j.path)
	from, err := k.readSaved(j.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.rewriteLocked(ctx)
		return
	case err != nil:
		logger.LogAttrs(ctx, slog.LevelError, "saved grants cannot be read: no grant is in force",
			slog.String("file", j.path), slog.String("error", err.Error()),
			slog.String("set_aside", aside), slog.Any("not_set_aside", errors.Join(os.Rename(j.path, aside), regular.DropRefused(j.path, os.Remove))))
		k.rewriteLocked(ctx)
		return
	}
	if from.wrong > 0 {
		logger.LogAttrs(ctx, slog.LevelError, "some lines of the saved grants cannot be read: the other grants are in force",
			slog.String("file", j.path), slog.Int("lines", from.wrong), slog.Int("first_line", from.firstWrong),
			slog.String("first", from.err.Error()),
			slog.String("set_aside", aside), slog.Any("not_set_aside", errors.Join(os.Link(j.path, aside), regular.DropRefused(j.path, os.Remove))))
	}
	if from.above > 0 {
		logger.LogAttrs(ctx, slog.LevelError, "there are more saved grants than there may be: the others have no effect",
			slog.Int("grants", from.above), slog.Int("max", k.options.Max), slog.String("file", j.path))
	}
	k.setLocked(from.slots)
	now, instant := k.wall().Round(0), time.Now()
	for at := range k.ends.at {
		if seen, known := from.ended[at]; known {
			k.ends.at[at] = instant.Add(-max(now.Sub(seen), 0))
		} else { // sweepLocked notes the end, also in the file
			delete(k.ends.at, at)
			k.ends.runs(k.slots[at])
		}
	}
	if from.lines > 0 {
		logger.LogAttrs(ctx, slog.LevelInfo, "grants loaded", slog.Int("grants", len(k.slots)-len(k.ends.at)), slog.String("file", j.path))
	}
	j.size, j.lines = from.size, from.lines
	foreign := from.at.Slot != "" && k.shared == nil // from now on the file has grants that Redis does not have
	if k.shared != nil && from.wrong+from.above == 0 {
		j.at, k.shared.epoch, k.shared.version = from.at, from.at.Epoch, from.at.Version
	}
	if from.wrong+from.above+from.plain > 0 || foreign || j.spare(len(k.slots)) {
		k.rewriteLocked(ctx)
	} else if err := j.reopen(); err != nil {
		k.journalFailedLocked(ctx, err)
	}
	k.sweepLocked(ctx)
}

// reopen opens the file to write behind the lines that were read. A line that a crash cut off goes.
func (j *journal) reopen() error {
	file, err := os.OpenFile(j.path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := file.Truncate(j.size); err != nil {
		return errors.Join(err, file.Close())
	}
	j.file = file
	return nil
}

// readSaved reads a journal. Only a regular file of at most maxFile bytes is read: a pipe could
// keep the start waiting.
func (k *Keeper) readSaved(path string) (*saved, error) {
	file, info, err := regular.OpenNoLink(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // was only read
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%d bytes, must be at most %d", info.Size(), int64(maxFile))
	}
	s := &saved{slots: make(map[string]*limiter.Grant), ended: make(map[string]time.Time)}
	from := bufio.NewReaderSize(io.LimitReader(file, maxFile), maxLine)
	for size, long := int64(0), false; ; {
		line, err := from.ReadSlice('\n')
		size += int64(len(line))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			long = true
			continue
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil:
			return nil, err
		}
		s.lines++
		s.size += size
		if long {
			s.fail(fmt.Errorf("%d bytes, must be at most %d", size, maxLine))
		} else {
			s.take(line, k.fits)
		}
		size, long = 0, false
	}
}

func (s *saved) take(line []byte, fits func(grants, bytes int) bool) {
	c, g, summed, err := parseLine(line)
	if !summed {
		s.plain++
	}
	if err != nil {
		s.fail(err)
	}
	if c.Slot == positionSlot {
		s.at = c
		return
	}
	was, grants, bytes := s.slots[c.Slot], len(s.slots), s.bytes
	if was != nil {
		grants, bytes = grants-1, bytes-sizeOf(was)
	}
	if delete(s.ended, c.Slot); c.Ended != nil {
		s.ended[c.Slot] = *c.Ended
	}
	switch {
	case g == nil && c.Grant == nil && c.Ended != nil: // the grant in the slot stays
	case g == nil: // also a grant that cannot be read: it took the place of the one before
		delete(s.slots, c.Slot)
		s.bytes = bytes
	case !fits(grants+1, bytes+sizeOf(g)):
		s.above++
	default:
		s.slots[c.Slot], s.bytes = g, bytes+sizeOf(g)
	}
}

func (s *saved) fail(err error) {
	if s.wrong++; s.err == nil {
		s.firstWrong, s.err = s.lines, err
	}
}

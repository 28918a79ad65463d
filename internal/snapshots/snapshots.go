// Package snapshots keeps the states of a store in memory in a directory, so that counts outlive
// the process. A snapshot replaces the one before in one step. A damaged or foreign file is set
// aside, and never ends the start.
//
// The directory has these files, all of mode 0600:
//
//	states                 the last snapshot; see memstore for its format
//	states.new, fleet.new  a file that is being written; the next start removes it
//	states.refused-TIME    a file that could not be read; the newest three stay
//	fleet                  how many processes share Redis, and the name of this one: see fleet
//	states.lock            locked while a process uses the directory
package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const (
	// interval is the time from one snapshot to the next. A crash loses the hits of that time.
	interval = 10 * time.Second
	// share bounds the cost of a large store: from one snapshot to the next pass at least so many
	// times the duration of the first. So at most 2 % of the time goes into snapshots.
	share = 50
)

// Options configures Open.
type Options struct {
	Dir    *lockfile.Directory // the caller closes it after the last Save
	Store  *memstore.Store     // savable, and not yet in use
	Fleet  func() int          // the number of processes that share another store, 0 if not known; nil: there is no such store
	Member func() string       // the name under which the other store counts this process; set together with Fleet
	Return func([]byte) error  // gets a record of Leave that is on the disk no more; nil: nobody does
	Logger *slog.Logger
}

// Keeper saves the states of a store. All methods are safe for concurrent use.
type Keeper struct {
	options Options
	files   files
	former  string // see Former

	mu     sync.Mutex // guards the directory; held while a snapshot is written
	tenure int        // of the directory when it was last seen; 0: never; guarded by mu
	failed string     // the error of the last snapshot, if it failed; guarded by mu
	fleet  fleet      // as the file has it; guarded by mu
	left   [][]byte   // records for Return that the file still has; guarded by mu

	fleetFailed string // the error of the last attempt to save fleet, if it failed; guarded by mu

	statsMu sync.Mutex // guards stats; taken after mu
	stats   Stats
}

// Stats is the metrics of a Keeper at one moment.
type Stats struct {
	Saves, Failures uint64
	Refused         uint64 // files that were set aside
	Loaded          int    // keys at the start

	Time     time.Time     // of the last snapshot; zero: there was none
	Bytes    int64         // of the last snapshot
	Keys     int           // of the last snapshot
	Duration time.Duration // of the last snapshot, from its start until it was safe
}

// Open locks the directory, and loads the last snapshot into the store. The only error is another
// process that uses the directory. A directory that cannot be used, and a
// snapshot that cannot be read, go to the log; the store is then empty.
func Open(ctx context.Context, o Options) (*Keeper, error) { return open(ctx, o, system{}) }

func open(ctx context.Context, o Options, f files) (*Keeper, error) {
	k := &Keeper{options: o, files: f}
	k.mu.Lock()
	defer k.mu.Unlock()
	tenure, err := o.Dir.Wait(ctx)
	if errors.Is(err, lockfile.ErrHeld) {
		return nil, fmt.Errorf("%s: another process keeps its counts there: %w", o.Dir.Path(), err)
	}
	if err != nil {
		k.failLocked(ctx, err)
		return k, nil
	}
	k.enterLocked(ctx, tenure)
	k.loadLocked(ctx)
	if k.options.Fleet != nil {
		k.loadFleetLocked(ctx)
	}
	if len(k.left) > 0 {
		_ = k.saveLocked(ctx, slog.LevelDebug, nil) // logged
	}
	return k, nil
}

func (k *Keeper) path() string      { return filepath.Join(k.options.Dir.Path(), "states") }
func (k *Keeper) fleetPath() string { return filepath.Join(k.options.Dir.Path(), "fleet") }

// enterLocked notes a tenure, and removes the leftovers of a killed process. mu must be held.
func (k *Keeper) enterLocked(ctx context.Context, tenure int) {
	k.tenure, k.fleet = tenure, fleet{}
	for _, path := range []string{k.path(), k.fleetPath()} {
		if err := k.files.remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "an unfinished snapshot stays", slog.String("error", err.Error()))
		}
	}
}

// holdLocked makes and locks the directory, if that is yet to be done. A snapshot from before is
// set aside: the start could not read it. mu must be held.
func (k *Keeper) holdLocked(ctx context.Context) error {
	tenure, err := k.options.Dir.Hold()
	if err != nil || tenure == k.tenure {
		return err
	}
	k.enterLocked(ctx, tenure)
	if _, err := setAside(k.files, k.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// loadLocked loads the last snapshot. mu must be held.
func (k *Keeper) loadLocked(ctx context.Context) {
	start := time.Now()
	loaded, err := load(k.options.Store, k.path())
	logger := k.options.Logger
	switch {
	case err == nil:
		k.count(func(s *Stats) { s.Loaded = loaded.Keys })
		if k.options.Return != nil {
			k.left = loaded.Beside
		}
		logger.LogAttrs(ctx, slog.LevelInfo, "counts loaded",
			slog.Int("keys", loaded.Keys), slog.Int("idle", loaded.Idle), slog.Int("without_room", loaded.NoRoom),
			slog.Int("holders", loaded.Holders), slog.Int("owed", len(loaded.Beside)),
			slog.Time("saved", loaded.Time), slog.String("took", time.Since(start).String()))
	case errors.Is(err, fs.ErrNotExist):
		logger.LogAttrs(ctx, slog.LevelInfo, "there are no saved counts", slog.String("file", k.path()))
	default:
		k.count(func(s *Stats) { s.Refused++ })
		aside, asideErr := setAside(k.files, k.path())
		attrs := []slog.Attr{slog.String("file", k.path()), slog.String("error", err.Error())}
		if asideErr != nil {
			attrs = append(attrs, slog.String("not_set_aside", asideErr.Error()))
		} else {
			attrs = append(attrs, slog.String("set_aside", aside))
		}
		logger.LogAttrs(ctx, slog.LevelError, "saved counts refused: all keys start anew", attrs...)
	}
}

// returnLocked gives records back to the other store, which are not on the disk any more. mu must
// be held.
func (k *Keeper) returnLocked(ctx context.Context) {
	var refused []error
	for _, record := range k.left {
		if err := k.options.Return(record); err != nil {
			refused = append(refused, err)
		}
	}
	if k.left = nil; len(refused) > 0 {
		k.options.Logger.LogAttrs(ctx, slog.LevelError, "hits of the last process are lost, as they cannot be read",
			slog.Int("records", len(refused)), slog.String("error", refused[0].Error()))
	}
}

func load(s *memstore.Store, path string) (memstore.Loaded, error) {
	f, _, err := regular.OpenNoLink(path)
	if err != nil {
		return memstore.Loaded{}, err
	}
	defer func() { _ = f.Close() }() // was only read
	return s.Load(f)
}

// Save writes a snapshot. After Save has returned nil the snapshot outlives a crash of the machine.
// After an error, which is also in the log and in Stats, the snapshot before is untouched.
func (k *Keeper) Save(ctx context.Context) error { return k.save(ctx, slog.LevelInfo, nil) }

// Leave is Save, with records for Options.Return of the next process. Leave must be the last Save.
func (k *Keeper) Leave(ctx context.Context, left [][]byte) error {
	return k.save(ctx, slog.LevelInfo, left)
}

func (k *Keeper) save(ctx context.Context, level slog.Level, left [][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saveLocked(ctx, level, left)
}

// saveLocked is Leave with the level of its line in the log. mu must be held.
func (k *Keeper) saveLocked(ctx context.Context, level slog.Level, left [][]byte) error {
	start, counted := time.Now(), &counter{}
	var saved memstore.Saved
	err := k.holdLocked(ctx)
	if err == nil {
		err = k.replaceLocked(k.path(), func(to io.Writer) (err error) {
			counted.to = to
			saved, err = k.options.Store.Save(counted, left...)
			return err
		})
	}
	if err != nil {
		k.failLocked(ctx, err)
		return err
	}
	took := time.Since(start)
	k.count(func(s *Stats) {
		s.Saves++
		s.Time, s.Bytes, s.Keys, s.Duration = start, counted.bytes, saved.Keys, took
	})
	if k.failed != "" {
		k.failed, level = "", slog.LevelInfo
	}
	k.options.Logger.LogAttrs(ctx, level, "counts saved",
		slog.Int("keys", saved.Keys), slog.Int("holders", saved.Holders), slog.Int("owed", saved.Beside),
		slog.Int64("bytes", counted.bytes), slog.String("took", took.String()))
	k.returnLocked(ctx)
	if k.options.Fleet != nil {
		k.saveFleetLocked(ctx, start)
	}
	return nil
}

// failLocked counts a failure, and logs it unless the last one was the same. mu must be held.
func (k *Keeper) failLocked(ctx context.Context, err error) {
	k.count(func(s *Stats) { s.Failures++ })
	if text := err.Error(); text != k.failed {
		k.failed = text
		k.options.Logger.LogAttrs(ctx, slog.LevelError, "counts cannot be saved",
			slog.String("directory", k.options.Dir.Path()), slog.String("error", text))
	}
}

// Run saves every 10 seconds until ctx ends, and more rarely where a snapshot takes longer than 0.2
// seconds. The result is nil.
func (k *Keeper) Run(ctx context.Context) error {
	next := time.NewTimer(interval)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			start := time.Now()
			_ = k.save(ctx, slog.LevelDebug, nil) // logged and counted
			took := time.Since(start)
			next.Reset(max(interval, share*took) - took)
		}
	}
}

// Stats returns the metrics.
func (k *Keeper) Stats() Stats {
	k.statsMu.Lock()
	defer k.statsMu.Unlock()
	return k.stats
}

func (k *Keeper) count(change func(*Stats)) {
	k.statsMu.Lock()
	defer k.statsMu.Unlock()
	change(&k.stats)
}

package reload

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// storm bounds, in debounce times, how long a change waits for the files to rest when they never do.
const storm = 50

// Run reloads rules whenever their sources change, until ctx ends, and then returns nil. A change is read once no relevant
// file has been touched for the debounce time, and put in force when the content is not that of the last attempt; so one
// swap of a Kubernetes ConfigMap is one reload, and a touch is none. A file system that tells of no events is looked at
// every poll time; a file caught half written by that is read again until it rests. Without any source to read it only waits.
func (r *Reloader) Run(ctx context.Context) error {
	if len(r.options.Paths) == 0 && r.options.Settings == "" {
		<-ctx.Done()
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rules are not watched",
			slog.String("error", err.Error()), slog.Duration("looked_at_every", r.options.Poll))
		return r.run(ctx, nil)
	}
	defer func() { _ = watcher.Close() }() // there is nothing to lose
	return r.run(ctx, watcher)
}

// run is Run with a watcher, or with nil where the system gives none.
func (r *Reloader) run(ctx context.Context, watcher *fsnotify.Watcher) error {
	var events chan fsnotify.Event
	var errs chan error
	if watcher != nil {
		events, errs = watcher.Events, watcher.Errors
	}
	w := watch{Reloader: r, watcher: watcher}
	w.follow(ctx)
	poll := time.NewTicker(r.options.Poll)
	defer poll.Stop()
	// What changed between the first load and the first watch told nobody.
	w.arm(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			if w.places.concern(event.Name) {
				r.options.Logger.LogAttrs(ctx, slog.LevelDebug, "rule source touched", slog.String("event", event.String()))
				w.polled = nil
				w.arm(time.Now())
			}
		case err := <-errs: // such as events lost as there were too many
			r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "watching rules", slog.String("error", err.Error()))
			w.arm(time.Now())
		case <-poll.C:
			w.look()
		case <-w.timer:
			w.settle(ctx)
		}
	}
}

// watch is what Run knows. It belongs to one goroutine.
type watch struct {
	*Reloader
	watcher *fsnotify.Watcher // nil when the system gave none
	places  places
	timer   <-chan time.Time // fires when the files have rested; nil when no change waits
	since   time.Time        // of the first change that waits
	polled  *fingerprint     // what the last look found, when no event told of the change that waits
}

// arm makes a change wait for the files to rest, from now on; but not for ever.
func (w *watch) arm(now time.Time) {
	if w.timer == nil {
		w.since = now
	}
	if w.timer == nil || now.Sub(w.since) < storm*w.options.Debounce {
		w.timer = time.After(w.options.Debounce)
	}
}

// look sees whether sources changed without an event.
func (w *watch) look() {
	if w.timer != nil {
		return
	}
	sources, err := w.read()
	if f := fingerprintOf(sources, err); w.changed(f) {
		w.polled = &f
		w.arm(time.Now())
	}
}

// settle reads the sources, which have rested, and reloads them when they changed.
func (w *watch) settle(ctx context.Context) {
	w.timer = nil
	w.follow(ctx) // first, so that a change after the reading is an event
	sources, err := w.read()
	if f := fingerprintOf(sources, err); w.polled != nil && *w.polled != f {
		w.polled = &f
		w.arm(time.Now())
		return
	}
	w.polled = nil
	if !w.reloadChanged(ctx, sources, err) {
		w.options.Logger.LogAttrs(ctx, slog.LevelDebug, "rules unchanged")
	}
}

// follow watches where the sources are now.
func (w *watch) follow(ctx context.Context) {
	paths := w.options.Paths
	if w.options.Settings != "" {
		paths = append([]string{w.options.Settings}, paths...)
	}
	w.places = placesOf(paths, w.options.Files)
	if w.watcher == nil {
		return
	}
	for _, dir := range w.watcher.WatchList() {
		if !w.places.dirs[dir] {
			_ = w.watcher.Remove(dir) // fails when the directory is gone, and the watch with it
		}
	}
	for dir := range w.places.dirs {
		// Also what is watched already: the directory of that name may be another one by now.
		if err := w.watcher.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rule directory not watched",
				slog.String("directory", dir), slog.String("error", err.Error()))
		}
	}
}

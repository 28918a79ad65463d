package reload

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weirproxy/weir/pkg/descriptors"
)

const (
	// debounce is how long files rest before they are read: editors and kubelets write for less.
	debounce = 100 * time.Millisecond
	// maxDebounce bounds how long a change waits while files keep changing.
	maxDebounce = 50 * debounce
	// poll is how often sources are compared without an event, as on network file systems.
	poll = 30 * time.Second
)

// Run reloads rules whenever their sources change, until ctx ends, and then returns nil. Run reads
// the sources once no relevant file has changed for the debounce time. New content comes into
// force, so that one swap of a Kubernetes ConfigMap is one reload, and a touch is no reload. On a
// file system without events, Run compares the sources at every poll time, and reads a changed file
// again until two readings are equal. So does a file that became shorter and lost most of its
// rules. Without sources, Run only waits.
func (r *Reloader) Run(ctx context.Context) error {
	if len(r.options.Paths) == 0 && r.options.Settings == "" {
		<-ctx.Done()
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rules are not watched",
			slog.String("error", err.Error()), slog.Duration("looked_at_every", poll))
		return r.run(ctx, nil)
	}
	defer func() { _ = watcher.Close() }() // there is nothing to lose
	return r.run(ctx, watcher)
}

// run is Run with a watcher, or with nil when the system offers no watcher.
func (r *Reloader) run(ctx context.Context, watcher *fsnotify.Watcher) error {
	var events chan fsnotify.Event
	var errs chan error
	if watcher != nil {
		events, errs = watcher.Events, watcher.Errors
	}
	w := watch{Reloader: r, watcher: watcher}
	w.follow(ctx)
	polls := time.NewTicker(poll)
	defer polls.Stop()
	// A change between the first load and the first watch caused no event.
	w.wait(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			if w.scope.has(event.Name) {
				r.options.Logger.LogAttrs(ctx, slog.LevelDebug, "rule source touched", slog.String("event", event.String()))
				w.polled = nil
				w.wait(time.Now())
			}
		case err := <-errs: // such as an overflow that lost events
			r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "watching rules", slog.String("error", err.Error()))
			w.wait(time.Now())
		case <-polls.C:
			if len(w.tables) != len(r.named.Load().tables) {
				w.follow(ctx)
			}
			if read := r.read(); w.timer == nil && r.changed(read) {
				w.polled = read.mark()
				w.wait(time.Now())
			}
		case <-w.timer:
			w.reload(ctx)
		}
	}
}

// watch is the state of Run. One goroutine owns it.
type watch struct {
	*Reloader
	watcher *fsnotify.Watcher // nil when the system offers no watcher
	scope   scope
	timer   <-chan time.Time // ends the debounce time; nil when no change waits
	since   time.Time        // of the first change that waits
	polled  *reading         // by the last poll, when no event announced the change that waits
	doubted *reading         // the last one, if it must be read again, see doubts
	tables  []string         // the paths of the tables that are followed, sorted
}

// wait starts the debounce time of a change, again after each change up to maxDebounce.
func (w *watch) wait(now time.Time) {
	if w.timer == nil {
		w.since = now
	}
	if w.timer == nil || now.Sub(w.since) < maxDebounce {
		w.timer = time.After(debounce)
	}
}

func (w *watch) reload(ctx context.Context) {
	w.timer = nil
	w.follow(ctx) // first, so that a change after the reading causes an event
	read := w.read()
	if w.polled != nil && !read.equal(*w.polled) {
		w.polled = read.mark()
		w.wait(time.Now())
		return
	}
	w.polled = nil
	if w.doubts(ctx, read) {
		w.wait(time.Now())
		return
	}
	if !w.reloadChanged(ctx, read) {
		w.options.Logger.LogAttrs(ctx, slog.LevelDebug, "rules unchanged")
		return
	}
	followed := w.tables
	if w.follow(ctx); !slices.Equal(followed, w.tables) {
		w.wait(time.Now()) // a change of a new table before it was followed caused no event
	}
}

// doubts reports whether files must be read once more, as one may be cut off. A part of a file is
// often valid too, and a program that writes it in place may pause. The same content once more is
// meant.
func (w *watch) doubts(ctx context.Context, read reading) bool {
	before := w.doubted
	w.doubted = nil
	if before != nil && read.equal(*before) {
		return false
	}
	w.mu.Lock()
	sizes := w.sizes // a reload makes another map
	w.mu.Unlock()
	text, about := w.lostRules(read, sizes)
	if text == "" {
		text, about = w.lostBytes(read, sizes)
	}
	if text == "" {
		return false
	}
	w.doubted = read.mark()
	if before == nil {
		about = append(about, slog.Duration("after", debounce))
		w.options.Logger.LogAttrs(ctx, slog.LevelWarn, text, about...) //nolint:sloglint // one of two texts
	}
	return true
}

// lostRules finds a file that is shorter than in force and has less than half as many rules. The
// result is "" without such a file, and for a reading with mistakes, which is refused.
func (r *Reloader) lostRules(read reading, sizes map[string]int) (text string, about []slog.Attr) {
	shorter := func(s descriptors.Source) bool { return len(s.Data) < sizes[s.Name] }
	if read.err != nil || !slices.ContainsFunc(read.sources, shorter) {
		return "", nil
	}
	rules, _, err := r.judge(read.sources, nil)
	if err != nil {
		return "", nil
	}
	before, now := rulesOf(r.options.Limiter.Rules()), rulesOf(rules)
	for _, s := range read.sources {
		if shorter(s) && 2*now[s.Name] < before[s.Name] {
			return "a rule file became shorter and lost most of its rules: it is read once more",
				[]slog.Attr{slog.String("file", s.Name), slog.Int("rules_before", before[s.Name]), slog.Int("rules", now[s.Name])}
		}
	}
	return "", nil
}

// lostBytes finds a table, or a file without rules such as an overlay, of less than half the bytes
// that it has in force. The result is "" without such a file.
func (r *Reloader) lostBytes(read reading, sizes map[string]int) (text string, about []slog.Attr) {
	rules, now := rulesOf(r.options.Limiter.Rules()), make(map[string]int)
	for _, s := range read.sources {
		if now[s.Name] = len(s.Data); rules[s.Name] > 0 { // lostRules looks at it
			now[s.Name] = sizes[s.Name]
		}
	}
	for path, was := range sizes {
		is, ok := now[path]
		if info, err := os.Stat(path); !ok && err == nil {
			is, ok = int(info.Size()), true
		}
		if ok && is < was/2 {
			return "a table or an overlay lost most of its bytes: it is read once more",
				[]slog.Attr{slog.String("file", path), slog.Int("bytes_before", was), slog.Int("bytes", is)}
		}
	}
	return "", nil
}

// rulesOf counts the rules of each file, as [descriptors.Rules.Count] counts.
func rulesOf(rules *descriptors.Rules) map[string]int {
	all := make(map[string]int)
	for _, r := range rules.All() {
		if len(r.Limits) > 0 || r.Unlimited {
			all[r.File]++
		}
	}
	return all
}

// follow watches the directories in which the sources are now.
func (w *watch) follow(ctx context.Context) {
	paths := w.options.Paths
	if w.options.Settings != "" {
		paths = append([]string{w.options.Settings}, paths...)
	}
	w.tables = slices.Sorted(maps.Keys(w.named.Load().tables))
	w.scope = scopeOf(paths, w.tables, w.options.Files)
	if w.watcher == nil {
		return
	}
	for _, dir := range w.watcher.WatchList() {
		if !w.scope.dirs[dir] {
			_ = w.watcher.Remove(dir) // fails when the directory is gone, and the watch with it
		}
	}
	for dir := range w.scope.dirs {
		// A directory that is watched already too: another directory may have its name now.
		if err := w.watcher.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rule directory not watched",
				slog.String("directory", dir), slog.String("error", err.Error()))
		}
	}
}

// scope is the set of paths whose changes can change rules.
type scope struct {
	dirs  map[string]bool // to watch
	names map[string]bool // full paths of rule files and rule directories, and of the symbolic links that lead to them
	rules map[string]bool // directories whose rule files matter, files to come included
	files Files
}

// scopeOf finds the scope of the sources at these paths, and of their tables. For a missing path it
// watches the last directory that exists. A renamed directory further up is left to the poll: a
// watch up to the root would wake for every change in /tmp or /etc.
func scopeOf(paths, tables []string, files Files) scope {
	s := scope{dirs: make(map[string]bool), names: make(map[string]bool), rules: make(map[string]bool), files: files}
	for _, path := range paths {
		if end, info := s.follow(path); info != nil && info.IsDir() {
			s.addDir(end)
		}
	}
	for _, path := range tables {
		s.follow(path)
	}
	return s
}

// addDir adds a directory of rules, the links in it, and its rule directories.
func (s *scope) addDir(dir string) {
	s.dirs[dir], s.rules[dir] = true, true
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // Files.Read reports the error
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && s.files.below(e.Name()):
			s.addDir(path)
		case s.files.match(e.Name()) && e.Type()&fs.ModeSymlink != 0:
			s.follow(path)
		}
	}
}

// maxLinks bounds the symbolic links on the way of one path, as Linux does.
const maxLinks = 40

// follow walks a path component by component, adds every link and the end, and returns the end,
// free of links. For a missing component the info is nil, and the end is that component.
func (s *scope) follow(path string) (end string, info fs.FileInfo) {
	path, err := filepath.Abs(path)
	if err != nil {
		return path, nil
	}
	at, rest := root(path)
	for links := 0; ; {
		next, more, found := strings.Cut(rest, string(filepath.Separator))
		if next == "" && !found {
			break
		}
		rest = more
		if next == "" || next == "." {
			continue
		}
		here := filepath.Join(at, next) // ".." goes up: at has no links
		met, err := os.Lstat(here)
		if err != nil {
			s.add(here)
			return here, nil
		}
		if met.Mode()&fs.ModeSymlink == 0 {
			at, info = here, met
			continue
		}
		s.add(here)
		target, err := os.Readlink(here)
		if links++; err != nil || links > maxLinks {
			return here, nil
		}
		if filepath.IsAbs(target) {
			at, target = root(target)
		}
		rest = target + string(filepath.Separator) + rest
	}
	s.add(at)
	return at, info
}

func (s *scope) add(path string) {
	s.names[path] = true
	s.dirs[filepath.Dir(path)] = true
}

// root splits an absolute path into its root and the rest.
func root(path string) (top, rest string) {
	top = filepath.VolumeName(path) + string(filepath.Separator)
	return top, strings.TrimLeft(path[len(top)-1:], string(filepath.Separator))
}

// has reports whether an event on this path may change rules.
func (s *scope) has(path string) bool {
	dir, name := filepath.Split(path)
	return s.names[path] || s.rules[filepath.Clean(dir)] && (s.files.match(name) || s.files.below(name))
}

// Package reload keeps the rules of a limiter equal to their files: rule files, directories, and
// the rules in a settings file. Package descriptors judges all files together. A good set comes
// into force in one step; a bad set leaves the old rules in force, and every reason in the log. A
// Reloader watches the files and reloads on request. Rules from another origin, such as xDS, come
// through Push, which judges each document on its own.
//
// The package decides when rules are read and whether a set of rules is used. Package descriptors
// decides the meaning of a rule.
package reload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Errors of sources that exist and hold no rules.
var (
	ErrNoRules = errors.New("there are no rules") // all sources together are empty
	ErrNoFiles = errors.New("holds no rule file") // of a directory
)

// Options holds the arguments of New. Limiter, Logger, and Paths, Settings or Pushed must be set.
type Options struct {
	descriptors.Options // bounds of the rules; with Strict, rules with warnings are refused

	Limiter  *limiter.Limiter // receives the rules
	Paths    []string         // files and directories, as [Files.Read] takes them
	Settings string           // settings file whose list `domains` holds rules; "" for no such file
	Pushed   bool             // Push brings rules too: files may have no rules
	Hint     string           // tells an operator where to put rules, for the error that there are no rules; may be ""
	Files    Files            // which files of a directory hold rules
	Logger   *slog.Logger     // for "rules loaded", "rules refused" and the changes between
}

// Reloader keeps a limiter's rules up to date. All methods are safe for concurrent use.
type Reloader struct {
	options Options
	status  atomic.Pointer[Status]
	named   atomic.Pointer[named] // tables

	mu        sync.Mutex                    // guards all below; held through an attempt, so that attempts come one after another
	attempted reading                       // the mark of the last attempt, successful or not
	files     []descriptors.Source          // in force; without their data if nothing is pushed
	waiting   *reading                      // files that do not fit the documents in force; nil: none
	mistakes  []string                      // of the last files, which are not in force; nil: they are
	sizes     map[string]int                // of files and tables, by name, in bytes
	tables    *tables                       // of files; nil before the first
	requested []descriptors.Source          // the documents of the last Push, refused ones included
	pushed    map[string]descriptors.Source // in force, by name
	judged    bool                          // Push was called
	refusal   error                         // the answer of the last Push
	quiet     bool                          // lines about this attempt are left out
	pushes    loglimit.Limiter              // of the lines about one Push
}

// New returns a Reloader. The error joins every reason why an option is missing or out of bounds.
func New(o Options) (*Reloader, error) {
	var errs []error
	if o.Limiter == nil {
		errs = append(errs, errors.New("limiter: must not be nil"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("logger: must not be nil"))
	}
	if len(o.Paths) == 0 && o.Settings == "" && !o.Pushed {
		errs = append(errs, errors.New("rules: there is no file or directory to read them from"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	o.Files.Bounds = o.Options
	r := &Reloader{options: o}
	r.status.Store(new(Status))
	r.named.Store(new(named))
	return r, nil
}

// Status is the outcome of the loads so far. The caller must not change the slices.
type Status struct {
	Hash        string    // of the rules in force, see [descriptors.Rules.Hash]; "" before the first
	LoadedAt    time.Time // when these came into force, or when DoWithoutRules was called before any; else zero
	AttemptedAt time.Time // of the last load, successful or refused; zero before the first
	Errors      []string  // why the last files, or the last pushed documents, are not in force
	Warnings    []string  // of the rules in force
	Loads       uint64    // that succeeded
	Refusals    uint64    // loads that were refused
}

// Status returns the outcome of the loads so far.
func (r *Reloader) Status() Status { return *r.status.Load() }

// DoWithoutRules makes an empty set of rules count as loaded, unless rules were loaded before.
// Requests do not change.
func (r *Reloader) DoWithoutRules() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.Status(); s.LoadedAt.IsZero() {
		s.LoadedAt = time.Now()
		r.status.Store(&s)
	}
}

func (r *Reloader) refuseLocked() {
	s := r.Status()
	s.AttemptedAt, s.Errors = time.Now(), r.errorsLocked()
	s.Refusals++
	r.status.Store(&s)
}

// errorsLocked returns the reasons why files, or pushed documents, are not in force.
func (r *Reloader) errorsLocked() []string { return slices.Concat(r.mistakes, reasons(r.refusal)) }

// Load is the first load, at the start of a process: as Reload, but the caller reports a refusal.
func (r *Reloader) Load(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attemptLocked(ctx, r.read())
}

// Reload reads all sources and puts their rules in force, even when nothing has changed. With a
// mistake in any source, the old rules stay in force; the error joins every reason, Status shows
// the reasons, and Reload logs them.
func (r *Reloader) Reload(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reportLocked(ctx, r.read())
}

// reloadChanged puts a reading in force, and reports false if the last attempt read the same.
func (r *Reloader) reloadChanged(ctx context.Context, read reading) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if read.equal(r.attempted) {
		return false
	}
	_ = r.reportLocked(ctx, read) // logged, and in the status
	return true
}

// changed reports whether a reading differs from the reading of the last attempt.
func (r *Reloader) changed(read reading) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !read.equal(r.attempted)
}

func (r *Reloader) read() reading {
	n := r.named.Load()
	t := newTables(r.options.Options, n.cache)
	sources, err := r.options.Files.read(r.options.Paths, r.options.Settings, t)
	return reading{sources, sumOf(sources), err, t, prints(n.tables, r.options.Options)}
}

// reportLocked calls attemptLocked and logs a refusal. r.mu must be held.
func (r *Reloader) reportLocked(ctx context.Context, read reading) error {
	err := r.attemptLocked(ctx, read)
	if err != nil && ctx.Err() == nil {
		r.logRefused(ctx, err)
	}
	return err
}

// attemptLocked tries to put files in force. Nothing can fail after the first change.
func (r *Reloader) attemptLocked(ctx context.Context, read reading) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	rules, warnings, loadErr := r.judge(read.sources, byName(r.pushed))
	if ctx.Err() != nil {
		return context.Cause(ctx) // the caller has given up
	}
	read.prints = read.tables.prints()
	r.attempted, r.waiting = *read.mark(), nil
	r.remember(read.tables, r.tables)
	err := errors.Join(read.err, loadErr)
	if err == nil && len(rules.Domains()) == 0 && !r.options.Pushed {
		if err = ErrNoRules; r.options.Hint != "" {
			err = fmt.Errorf("%w: %s", ErrNoRules, r.options.Hint)
		}
	}
	if err != nil && read.err == nil && r.judged { // the last documents, of which some were refused, may fit
		if r.togetherLocked(ctx, read, r.requested) {
			return nil
		}
		mistakes, _ := errors.AsType[descriptors.Errors](loadErr)
		isOfFile := func(e descriptors.Error) bool { _, is := r.pushed[e.File]; return !is }
		if !slices.ContainsFunc(mistakes, isOfFile) {
			r.waiting = &read
		}
	}
	if r.mistakes = reasons(err); err != nil {
		r.refuseLocked()
		return err
	}
	r.keepLocked(read)
	if len(rules.Domains()) > 0 || !r.Status().LoadedAt.IsZero() { // else the first Push brings the first rules
		r.setLocked(ctx, rules, warnings)
	}
	if !r.completeLocked() {
		_ = r.pushLocked(ctx, r.requested) // the new files may allow these documents; logged, and in the status
	}
	return nil
}

// keepLocked keeps the files of a reading, which come into force. r.mu must be held.
func (r *Reloader) keepLocked(read reading) {
	r.files, r.tables, r.sizes = slices.Clone(read.sources), read.tables, make(map[string]int, len(read.sources))
	r.waiting, r.mistakes = nil, nil
	for i := range r.files {
		r.sizes[r.files[i].Name] = len(r.files[i].Data)
		if !r.options.Pushed { // a push judges the files once more
			r.files[i].Data = nil
		}
	}
	for path, f := range read.tables.known {
		r.sizes[path] = f.size
	}
	r.remember(read.tables, nil)
}

func (r *Reloader) judge(files, pushed []descriptors.Source) (*descriptors.Rules, []descriptors.Warning, error) {
	return descriptors.Load(slices.Concat(files, pushed), r.options.Options)
}

// setLocked puts the rules of r.files and r.pushed in force. r.mu must be held.
func (r *Reloader) setLocked(ctx context.Context, rules *descriptors.Rules, warnings []descriptors.Warning) {
	was := r.Status()
	before := r.options.Limiter.Rules()
	if was.LoadedAt.IsZero() {
		before = nil
	}
	r.options.Limiter.SetRules(rules)
	now := time.Now()
	s := Status{Hash: rules.Hash(), LoadedAt: now, AttemptedAt: now, Loads: was.Loads + 1, Refusals: was.Refusals, Errors: r.errorsLocked()}
	for _, w := range warnings {
		s.Warnings = append(s.Warnings, w.String())
	}
	r.status.Store(&s)
	r.logLoaded(ctx, rules, before)
}

// Bounds of the lines about one reload.
const (
	maxLines = 100 // mistakes, warnings or domains
	maxPaths = 20  // rules of a domain
)

// texts is a list in a log: JSON shows the texts, text their number after a line for each.
type texts []string

// MarshalJSON returns the texts.
func (t texts) MarshalJSON() ([]byte, error) { return json.Marshal([]string(t)) }

// MarshalText returns the number of texts.
func (t texts) MarshalText() ([]byte, error) { return fmt.Append(nil, len(t)), nil }

// log logs a line, unless lines about this attempt are left out. r.mu must be held.
func (r *Reloader) log(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	if !r.quiet {
		r.options.Logger.LogAttrs(ctx, level, message, attrs...) //nolint:sloglint // callers pass constants
	}
}

// logEach logs a line for each text, up to maxLines, before the line about all of them.
func (r *Reloader) logEach(ctx context.Context, level slog.Level, message, key string, all []string) {
	for _, text := range all[:min(len(all), maxLines)] {
		r.log(ctx, level, message, slog.String(key, text))
	}
}

func (r *Reloader) logRefused(ctx context.Context, refusal error, attrs ...slog.Attr) {
	all := reasons(refusal)
	r.logEach(ctx, slog.LevelError, "rule mistake", "error", all)
	r.log(ctx, slog.LevelError, "rules refused", append([]slog.Attr{slog.Any("errors", texts(all))}, attrs...)...)
}

// logLoaded logs the rules in force, and the difference from those before; nil: they are the first.
func (r *Reloader) logLoaded(ctx context.Context, rules, before *descriptors.Rules) {
	status := r.Status()
	attrs := []slog.Attr{
		slog.Int("files", len(r.files)), slog.Int("domains", len(rules.Domains())), slog.Int("rules", rules.Count()),
		slog.String("hash", status.Hash),
	}
	if r.options.Pushed {
		attrs = append(attrs, slog.Int("pushed", len(r.pushed)))
	}
	r.log(ctx, slog.LevelInfo, "rules loaded", attrs...)
	if before != nil {
		r.logChanges(ctx, rules.Since(before))
		if over, anew := descriptors.Carried(rules.Follow(before)); over+len(anew) > 0 { // limits with another algorithm or period
			r.log(ctx, slog.LevelInfo, "limits changed", slog.Int("carry_over", over), paths("start_anew", anew))
		}
	}
	if len(status.Warnings) > 0 {
		r.logEach(ctx, slog.LevelWarn, "rule warning", "warning", status.Warnings)
		r.log(ctx, slog.LevelWarn, "rules have warnings", slog.Any("warnings", texts(status.Warnings)))
	}
}

// logChanges logs a line for each domain that changed, and at WARN one if it lost rules.
func (r *Reloader) logChanges(ctx context.Context, changes []descriptors.Change) {
	for i, c := range changes {
		if i == maxLines {
			r.log(ctx, slog.LevelWarn, "rules changed in more domains", slog.Int("domains", len(changes)-i))
			return
		}
		domain := slog.String("domain", c.Domain)
		if len(c.Added)+len(c.Changed) > 0 {
			r.log(ctx, slog.LevelInfo, "rules changed", domain, paths("added", c.Added), paths("changed", c.Changed))
		}
		if len(c.Removed) > 0 {
			r.log(ctx, slog.LevelWarn, "rules removed", domain, paths("removed", c.Removed))
		}
	}
}

func paths(key string, all []string) slog.Attr {
	if len(all) > maxPaths {
		all = append(slices.Clone(all[:maxPaths]), fmt.Sprintf("and %d more", len(all)-maxPaths))
	}
	return slog.Any(key, all)
}

// Package reload keeps the rules of a limiter equal to the files they come from: it reads files, directories and the inline
// rules of a settings file, has descriptors.Load judge all of them together, and puts them in force with one step, or leaves
// the old ones in force and says why. It watches for changes and can be asked to look again. Rules that come from elsewhere, such
// as over xDS, are pushed to it, and are judged document by document (Push).
//
// It decides when rules are read and what becomes of a bad set; what a rule means is the business of package descriptors.
package reload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Defaults of Options.
const (
	DefaultDebounce = 100 * time.Millisecond
	DefaultPoll     = 30 * time.Second
)

// What is wrong where there is nothing that could be wrong.
var (
	ErrNoRules = errors.New("there are no rules") // in what was read
	ErrNoFiles = errors.New("holds no rule file") // a directory
)

// Options is what New needs. Limiter, Logger, and Paths, Settings or Pushed must be set.
type Options struct {
	Limiter       *limiter.Limiter // gets the rules
	Paths         []string         // files and directories, as [Read] takes them
	Settings      string           // settings file whose list `domains` holds rules; "" for none
	Pushed        bool             // rules come by Push as well: files need not have any
	Hint          string           // where an operator says where rules are, for when there are none; "" for nothing
	MaxLogEntries uint32           // as in descriptors.Options
	Granularity   time.Duration    // as in descriptors.Options
	MergeDomains  bool             // as in descriptors.Options
	DropRejected  bool             // as in descriptors.Options
	OriginalKeys  bool             // as in descriptors.Options
	Files         Files            // which files of a directory hold rules
	Debounce      time.Duration    // how long files must rest after a change before they are read; 0 means DefaultDebounce
	Poll          time.Duration    // how often files are looked at in case no event told of a change; 0 means DefaultPoll
	Logger        *slog.Logger     // for "rules loaded" and "rules refused"
}

// Reloader keeps a limiter's rules up to date. All methods are safe for concurrent use.
type Reloader struct {
	options Options

	mu        sync.Mutex                    // guards all below; held through an attempt, so that attempts come one after another
	attempted fingerprint                   // of the files of the last attempt, successful or not
	files     []descriptors.Source          // in force
	wanted    []descriptors.Source          // what was pushed last, also what was refused of it
	pushed    map[string]descriptors.Source // in force, by name
	judged    bool                          // something was pushed
	refusal   error                         // what is wrong with wanted
}

// New returns a Reloader. It fails, with every reason, when an option is missing or out of bounds.
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
	if o.Debounce < 0 || o.Poll < 0 {
		errs = append(errs, fmt.Errorf("debounce %v, poll %v: must not be negative", o.Debounce, o.Poll))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.Debounce == 0 {
		o.Debounce = DefaultDebounce
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	return &Reloader{options: o}, nil
}

// Load is the first load, at the start of a process: as Reload, but a refusal is left for the caller to report and not
// logged.
func (r *Reloader) Load(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	sources, err := r.read()
	return r.attemptLocked(ctx, sources, err)
}

// Reload reads all sources and puts their rules in force, also when nothing has changed. When anything is wrong with any of
// them the error joins every reason, the rules of before stay in force, the limiter knows (limiter.Limiter.Refused) and one
// line is logged.
func (r *Reloader) Reload(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	sources, err := r.read()
	return r.reportLocked(ctx, sources, err)
}

// reloadChanged is Reload, with sources that were read, when these are not those of the last attempt; it reports whether
// they are not.
func (r *Reloader) reloadChanged(ctx context.Context, sources []descriptors.Source, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fingerprintOf(sources, err) == r.attempted {
		return false
	}
	_ = r.reportLocked(ctx, sources, err) // logged, and known to the limiter
	return true
}

// changed reports whether the sources are not those of the last attempt.
func (r *Reloader) changed(f fingerprint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f != r.attempted
}

// read reads all sources.
func (r *Reloader) read() ([]descriptors.Source, error) {
	return r.options.Files.Read(r.options.Paths, r.options.Settings)
}

// reportLocked is attemptLocked with a line in the log when the rules are refused. r.mu must be held.
func (r *Reloader) reportLocked(ctx context.Context, files []descriptors.Source, readErr error) error {
	err := r.attemptLocked(ctx, files, readErr)
	if err != nil && ctx.Err() == nil {
		r.options.Logger.LogAttrs(ctx, slog.LevelError, "rules refused", slog.Any("errors", reasons(err)))
	}
	return err
}

// attemptLocked tries to put the rules of files in force, beside what was pushed. All that can fail comes first. r.mu must be
// held.
func (r *Reloader) attemptLocked(ctx context.Context, files []descriptors.Source, readErr error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	rules, warnings, loadErr := r.judge(files, inOrder(r.pushed))
	if ctx.Err() != nil {
		return context.Cause(ctx) // nobody waits for it any more
	}
	r.attempted = fingerprintOf(files, readErr)
	err := errors.Join(readErr, loadErr)
	if err == nil && len(rules.Domains()) == 0 && !r.options.Pushed {
		if err = ErrNoRules; r.options.Hint != "" {
			err = fmt.Errorf("%w: %s", ErrNoRules, r.options.Hint)
		}
	}
	if err != nil {
		r.options.Limiter.Refused(reasons(err), time.Now())
		return err
	}
	r.files = files
	if len(rules.Domains()) > 0 || !r.options.Limiter.Status().LoadedAt.IsZero() { // else rules are yet to be pushed
		r.setLocked(ctx, rules, warnings)
	}
	if !r.completeLocked() {
		_ = r.pushLocked(ctx, r.wanted) // what stood in the way may be gone; logged, and known to the limiter
	}
	return nil
}

// judge turns what was read and what was pushed into rules.
func (r *Reloader) judge(files, pushed []descriptors.Source) (*descriptors.Rules, []descriptors.Warning, error) {
	return descriptors.Load(slices.Concat(files, pushed), descriptors.Options{
		MaxLogEntries: r.options.MaxLogEntries,
		Granularity:   r.options.Granularity,
		MergeDomains:  r.options.MergeDomains,
		DropRejected:  r.options.DropRejected,
		OriginalKeys:  r.options.OriginalKeys,
	})
}

// setLocked puts rules in force, those of r.files and r.pushed. r.mu must be held.
func (r *Reloader) setLocked(ctx context.Context, rules *descriptors.Rules, warnings []descriptors.Warning) {
	r.options.Limiter.SetRules(rules, warnings, time.Now())
	attrs := []slog.Attr{
		slog.Int("files", len(r.files)), slog.Int("domains", len(rules.Domains())), slog.Int("rules", rules.Len()),
	}
	if r.options.Pushed {
		attrs = append(attrs, slog.Int("pushed", len(r.pushed)))
	}
	r.options.Logger.LogAttrs(ctx, slog.LevelInfo, "rules loaded", attrs...)
	if len(warnings) > 0 {
		texts := make([]string, 0, len(warnings))
		for _, w := range warnings {
			texts = append(texts, w.String())
		}
		r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rules have warnings", slog.Any("warnings", texts))
	}
}

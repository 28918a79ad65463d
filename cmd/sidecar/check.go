package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

func newCheck() *cobra.Command {
	var strict bool
	var file, output string
	var bounds ruleBounds
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check rule files and print every mistake",
		Long: `Check rule files, and directories of them, as serve would load them together. The command prints every mistake and warning, one
per line, on standard error. Exit code 1 when there is a mistake, or with --strict a warning. A note says that a month or a year
of a limit is not of the calendar, and the line to write. A note is no reason to fail.

Of a directory the files *.yaml, *.yml and *.json are read, without directories below. The command names the other files, as "not read: …".
The program ratelimit reads all files, also below: "ratelimit check PATH…" checks them for it.

In CI use --strict: a warning is about a rule that loads, and that probably has another effect than intended.`,
		Args: arguments(0, -1, "rule files or directories"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && file == "" {
				return usage("%s: got no arguments, must be at least one rule file or directory, or --config", cmd.Name())
			}
			rules, files, warnings, err := loadRules(args, file, bounds)
			if f, ok := errors.AsType[failure](err); ok && f.code == exitUsage {
				return err
			}
			ok := err == nil && (!strict || len(warnings) == 0)
			unread := reload.Files{}.Unread(args)
			if output == outputJSON {
				result := newChecked(ok, files, rules, err, warnings)
				result.NotRead, result.Notes = append(result.NotRead, unread...), append(result.Notes, notes(rules, time.Now())...)
				if err := writeJSON(cmd.OutOrStdout(), result); err != nil {
					return err
				}
				err = nil
			} else {
				for _, w := range warnings {
					fmt.Fprintln(cmd.ErrOrStderr(), w)
				}
				for _, n := range notes(rules, time.Now()) {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: note: %s: %s\n", render.Place(n.File, uint32(n.Line)), n.Path, n.Text)
				}
				for _, path := range unread {
					fmt.Fprintf(cmd.ErrOrStderr(), "not read: %s\n", path)
				}
			}
			switch {
			case err != nil:
				return err
			case !ok:
				return reported(exitBad)
			case output == outputText:
				fmt.Fprintf(cmd.OutOrStdout(), "ok: %s, %s, %s\n",
					count(files, "file"), count(len(rules.Domains()), "domain"), count(rules.Count(), "rule"))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail when there is a warning")
	cmd.Flags().StringVar(&file, "config", "", "settings `file` whose rules under domains are checked too")
	addOutput(cmd, &output, "text|json")
	addBounds(cmd, &bounds)
	return cmd
}

type checked struct {
	OK       bool      `json:"ok"`
	Files    int       `json:"files"`
	Domains  int       `json:"domains"`
	Rules    int       `json:"rules"`
	Mistakes []finding `json:"mistakes"`
	Warnings []finding `json:"warnings"`
	Notes    []finding `json:"notes"`
	NotRead  []string  `json:"not_read"`
}

// finding is one mistake or warning. All but Text may be empty.
type finding struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Path string `json:"path"`
	Text string `json:"text"`
}

func newChecked(ok bool, files int, rules *descriptors.Rules, err error, warnings []descriptors.Warning) checked {
	c := checked{OK: ok, Files: files, Mistakes: findings(err), Warnings: []finding{}, Notes: []finding{}, NotRead: []string{}}
	if rules != nil {
		c.Domains, c.Rules = len(rules.Domains()), rules.Count()
	}
	for _, w := range warnings {
		c.Warnings = append(c.Warnings, finding(w))
	}
	return c
}

// notes returns a finding for each limit whose months or years do not follow a calendar. Files of
// envoyproxy/ratelimit mean that, so a note is no warning. Another finding is for each limit with a
// schedule. rules may be nil.
func notes(rules *descriptors.Rules, now time.Time) (all []finding) {
	if rules == nil {
		return nil
	}
	for _, r := range rules.All() {
		for i := range r.Limits {
			l := &r.Limits[i]
			if text := scheduleNote(l, now); text != "" {
				all = append(all, finding{File: r.File, Line: r.Line, Path: r.Path, Text: text})
			}
			if _, can := l.Algorithm.Aligned(); !can || l.Unit != descriptors.Month && l.Unit != descriptors.Year {
				continue
			}
			all = append(all, finding{File: r.File, Line: r.Line, Path: r.Path, Text: fmt.Sprintf(
				"windows of %d days count from 1 January 1970: for each %s of the calendar write unit: %s, align: {to: calendar, zone: UTC}",
				l.Period/(24*time.Hour), l.Unit, l.Unit)})
		}
	}
	return all
}

// scheduleNote says which numbers a schedule gives at an instant, and which ones after that; "" for
// a limit without a schedule.
func scheduleNote(l *descriptors.Limit, now time.Time) string {
	s := l.Schedule()
	if s == nil {
		return ""
	}
	says := func(at algorithms.Instant) (text string, until algorithms.Instant) {
		entry, until := s.At(at)
		if entry == len(s.Entries()) {
			return "the limit's own numbers", until
		}
		e := &s.Entries()[entry]
		return fmt.Sprintf("%s (%s)", e.Gives(l.Money), e.When()), until
	}
	text, until := says(algorithms.Instant(now.UnixNano()))
	text = "schedule: " + text + " now"
	if until == math.MaxInt64 {
		return text + ", and no change is known"
	}
	next, _ := says(until)
	return text + ", " + next + " from " + time.Unix(0, int64(until)).In(s.Entries()[0].In()).Format(time.RFC3339)
}

// findings returns the mistakes in an error, which may join several.
func findings(err error) []finding {
	all := []finding{}
	switch e := err.(type) { //nolint:errorlint // each level of the tree counts
	case nil:
	case descriptors.Error:
		all = append(all, finding(e))
	case reload.FileError:
		all = append(all, finding{File: e.File, Line: e.Line, Text: e.Err.Error()})
	case failure:
		all = findings(e.error)
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			all = append(all, findings(part)...)
		}
	default:
		all = append(all, finding{Text: err.Error()})
	}
	return all
}

// ruleBounds is the settings of serve that decide whether rules are right.
type ruleBounds struct {
	maxBytes int
	store    string
}

func addBounds(cmd *cobra.Command, to *ruleBounds) {
	cmd.Flags().IntVar(&to.maxBytes, "max-rules-bytes", descriptors.DefaultMaxBytes,
		"as of serve: largest size of all rules together, at least 1")
	cmd.Flags().StringVar(&to.store, "store", storeMemory, "as of serve: `memory|redis`, which counts time in microseconds")
}

// loadRules loads rules as serve does, and returns how many files they came from. Rules that are
// refused, and no rules at all, are an error with every reason.
func loadRules(paths []string, file string, bounds ruleBounds) (*descriptors.Rules, int, []descriptors.Warning, error) {
	if err := settingsFormat(file); err != nil {
		return nil, 0, nil, usage("--config: %q: %w", file, err)
	}
	if err := settings.Among(stores())(bounds.store); err != nil {
		return nil, 0, nil, usage("--store: %w", err)
	}
	var granularity time.Duration
	if bounds.store == storeRedis {
		granularity = redisstore.Granularity
	}
	if bounds.maxBytes < 1 {
		return nil, 0, nil, usage("--max-rules-bytes: %d: must be at least 1", bounds.maxBytes)
	}
	options := descriptors.Options{MaxBytes: bounds.maxBytes, Granularity: granularity}
	sources, readErr := reload.Files{Bounds: options}.Read(paths, file)
	rules, warnings, err := descriptors.Load(sources, options)
	if err := errors.Join(readErr, err); err != nil {
		return nil, 0, warnings, bad(err, exitBad)
	}
	if len(rules.Domains()) == 0 && !rules.HasOverlay() {
		return nil, 0, warnings, errors.New("there are no rules")
	}
	return rules, len(sources), warnings, nil
}

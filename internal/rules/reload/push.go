package reload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Push puts rule documents in force that do not come from files. Each call brings all documents and
// replaces the documents of the last call. No two documents have the same name, and no document has
// the name of a file.
//
// A bad document does not keep the others out of force. A document is bad when it has mistakes, or
// when an earlier document has its domain. Files come first, then documents already in force, then
// the others by name. The document in force under the name of a bad one stays, unless a new
// document has its domain. The error is then a [descriptors.Errors] with every reason; the File of
// each is the name of the bad document. Status shows the reasons, and Push logs them. After any
// other error nothing has changed.
//
// The Reloader tries refused documents again when the rules of the files change. Files that did not
// fit the documents in force are tried again beside the documents of each call. A call with the
// same documents as the call before does nothing and returns the same error.
func (r *Reloader) Push(ctx context.Context, documents []descriptors.Source) error {
	if !r.options.Pushed {
		return errors.New("reload: rules were not to be pushed")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judged && slices.EqualFunc(r.requested, documents, descriptors.Source.Equal) {
		return r.refusal
	}
	missed, due := r.pushes.DueOf(pushesAtOnce, pushEvery)
	r.quiet = !due
	defer func() { r.quiet = false }()
	if missed > 0 {
		r.log(ctx, slog.LevelWarn, "some changes of pushed rules are not in the log", slog.Uint64("not_logged", missed))
	}
	return r.pushLocked(ctx, documents)
}

// So many calls of Push at once, and then one in that time, may write lines. Other rooms push the
// rules of a control plane.
const (
	pushesAtOnce = 10
	pushEvery    = 5 * time.Second
)

// rank decides which of two documents keeps a domain that both have: the lower one.
type rank uint8

const (
	unchanged rank = iota // in force
	changed               // another version is in force
	added
	kept // in force, and no longer requested as it is: its new version is bad
)

type candidate struct {
	descriptors.Source
	rank rank
}

func (r *Reloader) rankOf(s descriptors.Source) rank {
	was, known := r.pushed[s.Name]
	switch {
	case !known:
		return added
	case was.Equal(s):
		return unchanged
	default:
		return changed
	}
}

// choice is the best rules of files and documents.
type choice struct {
	rules    *descriptors.Rules
	warnings []descriptors.Warning
	good     map[string]descriptors.Source // documents, by name
	refused  descriptors.Errors
}

// choose judges files beside documents, of which bad ones are left out. The error is about the
// files, or the documents in force.
func (r *Reloader) choose(files, documents []descriptors.Source) (choice, error) {
	next := make(map[string]candidate, len(documents))
	for _, s := range documents {
		next[s.Name] = candidate{s, r.rankOf(s)}
	}
	var refused descriptors.Errors
	rules, warnings, err := r.judge(files, byRank(next))
	for err != nil {
		mistakes, ok := errors.AsType[descriptors.Errors](err)
		if !ok || !r.dropLocked(next, mistakes) {
			return choice{}, fmt.Errorf("rules in force: %w", err) // only documents that were not pushed have mistakes
		}
		refused = append(refused, mistakes...)
		rules, warnings, err = r.judge(files, byRank(next))
	}
	good := make(map[string]descriptors.Source, len(next))
	for name, c := range next {
		good[name] = c.Source
	}
	if r.options.MergeDomains { // the order of documents has a meaning, which must not depend on their ranks
		if rules, warnings, err = r.judge(files, byName(good)); err != nil {
			return choice{}, fmt.Errorf("rules that were good: %w", err)
		}
	}
	return choice{rules, warnings, good, refused}, nil
}

func (r *Reloader) pushLocked(ctx context.Context, documents []descriptors.Source) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.waiting != nil && r.togetherLocked(ctx, *r.waiting, documents) {
		return nil
	}
	c, err := r.choose(r.files, documents)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.bringLocked(ctx, documents, c)
}

// togetherLocked puts files and all documents in force, or reports false: some of them are bad.
func (r *Reloader) togetherLocked(ctx context.Context, read reading, documents []descriptors.Source) bool {
	c, err := r.choose(read.sources, documents)
	if err != nil || len(c.refused) > 0 || ctx.Err() != nil {
		return false
	}
	r.keepLocked(read)
	_ = r.bringLocked(ctx, documents, c) // which has nothing refused
	return true
}

// bringLocked puts a choice of documents in force.
func (r *Reloader) bringLocked(ctx context.Context, documents []descriptors.Source, c choice) error {
	before, refused := r.pushed, c.refused
	r.requested, r.pushed, r.judged, r.refusal = documents, c.good, true, nil
	if len(refused) == 0 || !maps.EqualFunc(before, r.pushed, descriptors.Source.Equal) {
		r.setLocked(ctx, c.rules, c.warnings)
	}
	if len(refused) == 0 {
		return nil
	}
	r.refusal = refused
	r.refuseLocked()
	var older, missing []string
	for _, e := range refused {
		list := &missing
		if _, inForce := r.pushed[e.File]; inForce {
			list = &older
		}
		if !slices.Contains(*list, e.File) {
			*list = append(*list, e.File)
		}
	}
	r.logRefused(ctx, refused, slog.Any("older_in_force", older), slog.Any("not_in_force", missing))
	return refused
}

// dropLocked puts the version in force, or none, in place of bad documents; false: next has none.
func (r *Reloader) dropLocked(next map[string]candidate, mistakes descriptors.Errors) bool {
	dropped := make(map[string]bool)
	for _, e := range mistakes {
		c, ok := next[e.File]
		if !ok || dropped[e.File] {
			continue
		}
		dropped[e.File] = true
		if was, known := r.pushed[e.File]; known && c.rank == changed {
			next[e.File] = candidate{was, kept}
		} else {
			delete(next, e.File)
		}
	}
	return len(dropped) > 0
}

// completeLocked reports whether all requested documents are in force. r.mu must be held.
func (r *Reloader) completeLocked() bool {
	return len(r.requested) == len(r.pushed) && !slices.ContainsFunc(r.requested, func(s descriptors.Source) bool {
		return r.rankOf(s) != unchanged
	})
}

func byName(documents map[string]descriptors.Source) []descriptors.Source {
	return slices.SortedFunc(maps.Values(documents), func(a, b descriptors.Source) int { return cmp.Compare(a.Name, b.Name) })
}

// byRank returns documents in the order in which they get their domains.
func byRank(candidates map[string]candidate) []descriptors.Source {
	sorted := slices.SortedFunc(maps.Values(candidates), func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Name, b.Name))
	})
	sources := make([]descriptors.Source, len(sorted))
	for i, c := range sorted {
		sources[i] = c.Source
	}
	return sources
}

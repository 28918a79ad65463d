package reload

import (
	"bytes"
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

// Push puts rule documents in force that come from elsewhere, beside those of files: all that there are now, so that each call
// takes the place of the one before. Each is known by its name, which no other one and no file may have.
//
// A bad document does not keep the others out of force. One is bad when it has mistakes, or when its domain is that of another
// document that comes before it: files do, then what is in force already, then the rest by name. In its place stays what is in
// force of that name, as long as nothing new has its domain, else nothing. The error is then a [descriptors.Errors] with every
// reason, each of whose File is the name of a bad document; the limiter knows (limiter.Limiter.Refused) and one line is logged.
// After any other error nothing has been put in force.
//
// What was refused is tried again when the files' rules change. The same documents once more get the same answer, and nothing is
// done.
func (r *Reloader) Push(ctx context.Context, documents []descriptors.Source) error {
	if !r.options.Pushed {
		return errors.New("reload: rules were not to be pushed")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	again := r.judged && slices.EqualFunc(r.wanted, documents, func(a, b descriptors.Source) bool { return a.Name == b.Name && same(a, b) })
	if again {
		return r.refusal
	}
	return r.pushLocked(ctx, documents)
}

// standing is where a pushed document comes from, and so which one has its domain when two want it: the lesser one.
type standing uint8

const (
	unchanged standing = iota // in force
	changed                   // one of its name is in force
	newcomer
	held // in force, and no longer wanted as it is: what replaces it is bad
)

// candidate is a document that may come into force.
type candidate struct {
	descriptors.Source
	standing standing
}

// candidateOf returns a document that was pushed as a candidate, given what is in force.
func (r *Reloader) candidateOf(s descriptors.Source) candidate {
	was, known := r.pushed[s.Name]
	switch {
	case !known:
		return candidate{s, newcomer}
	case bytes.Equal(was.Data, s.Data):
		return candidate{s, unchanged}
	default:
		return candidate{s, changed}
	}
}

// pushLocked is Push. r.mu must be held.
func (r *Reloader) pushLocked(ctx context.Context, documents []descriptors.Source) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	next := make(map[string]candidate, len(documents))
	for _, s := range documents {
		next[s.Name] = r.candidateOf(s)
	}
	var refused descriptors.Errors
	rules, warnings, err := r.judge(r.files, byStanding(next))
	for err != nil {
		mistakes, ok := errors.AsType[descriptors.Errors](err)
		if !ok || !r.dropLocked(next, mistakes) {
			return fmt.Errorf("rules in force: %w", err) // which they would not be
		}
		refused = append(refused, mistakes...)
		rules, warnings, err = r.judge(r.files, byStanding(next))
	}
	good := make(map[string]descriptors.Source, len(next))
	for name, c := range next {
		good[name] = c.Source
	}
	if r.options.MergeDomains { // where the order of documents has a meaning, it must not be that of their history
		if rules, warnings, err = r.judge(r.files, inOrder(good)); err != nil {
			return fmt.Errorf("rules that were good: %w", err)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	before := r.pushed
	r.wanted, r.pushed, r.judged, r.refusal = documents, good, true, nil
	if len(refused) == 0 || !maps.EqualFunc(before, r.pushed, same) {
		r.setLocked(ctx, rules, warnings)
	}
	if len(refused) == 0 {
		return nil
	}
	r.options.Limiter.Refused(reasons(refused), time.Now())
	r.logRefused(ctx, refused)
	r.refusal = refused
	return refused
}

// dropLocked takes the documents that have mistakes out of next, or puts what is in force of their names in their place. It
// reports whether there were any, so that each call leaves less to be bad.
func (r *Reloader) dropLocked(next map[string]candidate, mistakes descriptors.Errors) bool {
	bad := make(map[string]bool)
	for _, e := range mistakes {
		if _, ok := next[e.File]; ok {
			bad[e.File] = true
		}
	}
	for name := range bad {
		if was, known := r.pushed[name]; known && next[name].standing == changed {
			next[name] = candidate{was, held}
		} else {
			delete(next, name)
		}
	}
	return len(bad) > 0
}

// logRefused logs what was refused, and which of these documents have an older version in force, and which none.
func (r *Reloader) logRefused(ctx context.Context, refused descriptors.Errors) {
	var kept, without []string
	for _, e := range refused {
		list := &without
		if _, inForce := r.pushed[e.File]; inForce {
			list = &kept
		}
		if !slices.Contains(*list, e.File) {
			*list = append(*list, e.File)
		}
	}
	r.options.Logger.LogAttrs(ctx, slog.LevelError, "rules refused",
		slog.Any("errors", reasons(refused)), slog.Any("older_in_force", kept), slog.Any("not_in_force", without))
}

// completeLocked reports whether all that was pushed is in force. r.mu must be held.
func (r *Reloader) completeLocked() bool {
	return len(r.wanted) == len(r.pushed) && !slices.ContainsFunc(r.wanted, func(s descriptors.Source) bool {
		return r.candidateOf(s).standing != unchanged
	})
}

// same reports whether two documents of one name are the same.
func same(a, b descriptors.Source) bool { return bytes.Equal(a.Data, b.Data) }

// inOrder returns documents by name.
func inOrder(documents map[string]descriptors.Source) []descriptors.Source {
	return slices.SortedFunc(maps.Values(documents), func(a, b descriptors.Source) int { return cmp.Compare(a.Name, b.Name) })
}

// byStanding returns documents in the order in which they get their domains.
func byStanding(candidates map[string]candidate) []descriptors.Source {
	sorted := slices.SortedFunc(maps.Values(candidates), func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.standing, b.standing), cmp.Compare(a.Name, b.Name))
	})
	sources := make([]descriptors.Source, 0, len(sorted))
	for _, c := range sorted {
		sources = append(sources, c.Source)
	}
	return sources
}

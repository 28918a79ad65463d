package reload_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// doc is a document that is pushed; of 0 requests, a bad one.
type doc struct {
	name, domain string
	requests     int
}

func pushed(documents ...doc) []descriptors.Source {
	sources := []descriptors.Source{}
	for _, d := range documents {
		text := document(d.domain, d.requests)
		if d.requests == 0 {
			text = strings.Replace(text, "hour", "fortnight", 1)
		}
		sources = append(sources, descriptors.Source{Name: d.name, Data: []byte(text)})
	}
	return sources
}

func inForce(l *limiter.Limiter) map[string]int {
	all := make(map[string]int)
	for _, d := range l.Rules().Domains() {
		all[d.Name] = requests(l, d.Name)
	}
	return all
}

func ruleFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.yaml")
	write(t, file, content)
	return file
}

func refusals(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	mistakes, ok := errors.AsType[descriptors.Errors](err)
	if !ok {
		t.Fatalf("error of Push: got %T %v, want descriptors.Errors", err, err)
	}
	return strings.Split(mistakes.Error(), "\n")
}

const noUnit = `descriptors[0].rate_limit.unit: "fortnight" is not a unit, must be second, minute, hour, day, week, month or year`

func TestPushedDocumentsAreJudgedOneByOne(t *testing.T) {
	file := ruleFile(t, document("file", 1))
	taken := func(name, domain, by string) string {
		return name + `: domain: domain "` + domain + `" is defined already, at ` + by + `: a domain must be one document`
	}
	type step struct {
		push  []descriptors.Source
		want  map[string]int // besides file: 1
		wrong []string
	}
	tests := map[string][]step{
		"all good, then changed, then removed": {
			{push: pushed(doc{"x:1", "a", 1}, doc{"x:2", "b", 2}), want: map[string]int{"a": 1, "b": 2}},
			{push: pushed(doc{"x:1", "a", 3}, doc{"x:2", "b", 2}), want: map[string]int{"a": 3, "b": 2}},
			{push: pushed(doc{"x:2", "b", 2}), want: map[string]int{"b": 2}},
			{push: pushed(), want: map[string]int{}},
		},
		"a bad one keeps what is in force of its name": {
			{push: pushed(doc{"x:1", "a", 1}, doc{"x:2", "b", 2}), want: map[string]int{"a": 1, "b": 2}},
			{
				push: pushed(doc{"x:1", "a", 0}, doc{"x:2", "b", 4}, doc{"x:3", "c", 3}),
				want: map[string]int{"a": 1, "b": 4, "c": 3}, wrong: []string{"x:1:4: " + noUnit},
			},
			{push: pushed(doc{"x:1", "a", 5}), want: map[string]int{"a": 5}},
		},
		"a bad one of a new name is left out": {
			{push: pushed(doc{"x:1", "a", 0}, doc{"x:2", "b", 2}), want: map[string]int{"b": 2}, wrong: []string{"x:1:4: " + noUnit}},
		},
		"a domain of a file is the file's": {
			{
				push: pushed(doc{"x:1", "file", 7}, doc{"x:2", "b", 2}), want: map[string]int{"b": 2},
				wrong: []string{taken("x:1:1", "file", file+":1")},
			},
		},
		"of two that want a domain the one gets it that has it": {
			{push: pushed(doc{"x:2", "a", 2}), want: map[string]int{"a": 2}},
			{
				push: pushed(doc{"x:1", "a", 1}, doc{"x:2", "a", 2}), want: map[string]int{"a": 2},
				wrong: []string{taken("x:1:1", "a", "x:2:1")},
			},
			{
				push: pushed(doc{"x:1", "a", 1}, doc{"x:2", "a", 3}), want: map[string]int{"a": 3},
				wrong: []string{taken("x:1:1", "a", "x:2:1")},
			},
		},
		"of two new ones that want a domain the first by name gets it": {
			{
				push: pushed(doc{"x:2", "a", 2}, doc{"x:1", "a", 1}), want: map[string]int{"a": 1},
				wrong: []string{taken("x:2:1", "a", "x:1:1")},
			},
		},
		"what is only held gives its domain to who wants it": {
			{push: pushed(doc{"x:1", "a", 1}), want: map[string]int{"a": 1}},
			{
				push: pushed(doc{"x:1", "b", 0}, doc{"x:2", "a", 2}), want: map[string]int{"a": 2},
				wrong: []string{"x:1:4: " + noUnit, taken("x:1:1", "a", "x:2:1")},
			},
		},
		"two may swap their domains": {
			{push: pushed(doc{"x:1", "a", 1}, doc{"x:2", "b", 2}), want: map[string]int{"a": 1, "b": 2}},
			{push: pushed(doc{"x:1", "b", 1}, doc{"x:2", "a", 2}), want: map[string]int{"a": 2, "b": 1}},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			l, r, _ := start(t, reload.Options{Paths: []string{file}, Pushed: true}, false)
			for i, s := range steps {
				err := r.Push(t.Context(), s.push)
				if diff := cmp.Diff(s.wrong, refusals(t, err)); diff != "" {
					t.Errorf("step %d: reasons (-want +got):\n%s", i, diff)
				}
				s.want["file"] = 1
				if diff := cmp.Diff(s.want, inForce(l)); diff != "" {
					t.Errorf("step %d: rules (-want +got):\n%s", i, diff)
				}
				if diff := cmp.Diff(s.wrong, r.Status().Errors); diff != "" {
					t.Errorf("step %d: errors of the limiter (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestAPushOfNothingGoodChangesNothing(t *testing.T) {
	l, r, log := start(t, reload.Options{Paths: []string{ruleFile(t, document("file", 1))}, Pushed: true}, false)
	before, rules := r.Status(), l.Rules()
	if refusals(t, r.Push(t.Context(), pushed(doc{"x:1", "a", 0}))) == nil {
		t.Fatal("a bad document was taken")
	}
	log.await(t, "rules refused", "rules loaded")
	after := r.Status()
	if l.Rules() != rules || after.Hash != before.Hash || after.Loads != before.Loads || after.Refusals != before.Refusals+1 {
		t.Errorf("status: got %+v after %+v", after, before)
	}
}

func TestFilesThatTakeAPushedDomainAreRefused(t *testing.T) {
	file := ruleFile(t, document("file", 1))
	l, r, _ := start(t, reload.Options{Paths: []string{file}, Pushed: true}, false)
	must.Do(t, r.Push(t.Context(), pushed(doc{"x:1", "a", 1})))
	write(t, file, document("a", 2))
	err := r.Reload(t.Context())
	if err == nil || !strings.Contains(err.Error(), "x:1") || !strings.Contains(err.Error(), file) {
		t.Errorf("a file with the domain of a pushed document: got %v, want an error that names both", err)
	}
	must.Match(t, "rules", map[string]int{"file": 1, "a": 1}, inForce(l))
}

func TestRefusedDocumentsAreTriedAgainWhenFilesChange(t *testing.T) {
	file := ruleFile(t, document("a", 1))
	l, r, _ := start(t, reload.Options{Paths: []string{file}, Pushed: true}, false)
	if err := r.Push(t.Context(), pushed(doc{"x:1", "a", 2}, doc{"x:2", "b", 0})); err == nil {
		t.Fatal("a domain of a file was taken")
	}
	write(t, file, document("c", 3))
	must.Do(t, r.Reload(t.Context()))
	must.Match(t, "rules", map[string]int{"a": 2, "c": 3}, inForce(l))
	if got := r.Status().Errors; len(got) != 1 || !strings.HasPrefix(got[0], "x:2") {
		t.Errorf("errors: got %q, want that of x:2, which is still bad", got)
	}
}

func TestAReloadOfFilesKeepsPushedDocuments(t *testing.T) {
	file := ruleFile(t, document("file", 1))
	l, r, _ := start(t, reload.Options{Paths: []string{file}, Pushed: true}, false)
	must.Do(t, r.Push(t.Context(), pushed(doc{"x:1", "a", 1})))
	write(t, file, document("file", 2))
	must.Do(t, r.Reload(t.Context()))
	must.Match(t, "rules", map[string]int{"file": 2, "a": 1}, inForce(l))
}

func TestNothingIsLoadedBeforeTheFirstPush(t *testing.T) {
	_, r, _ := prepare(t, reload.Options{Pushed: true})
	check := func(when string) {
		t.Helper()
		if s := r.Status(); !s.LoadedAt.IsZero() {
			t.Errorf("%s: rules count as loaded", when)
		}
	}
	must.Do(t, r.Load(t.Context()))
	check("after the start")
	must.Do(t, r.Reload(t.Context()))
	check("after a reload")
	if err := r.Push(t.Context(), pushed(doc{"x:1", "a", 0})); err == nil {
		t.Fatal("a bad document was taken")
	}
	must.Do(t, r.Reload(t.Context()))
	check("after a bad first push")
	must.Do(t, r.Push(t.Context(), nil))
	if r.Status().LoadedAt.IsZero() {
		t.Error("no rules at all are rules too, when that is what was pushed")
	}
}

func TestPushIsRefusedUnlessItWasToCome(t *testing.T) {
	_, r, _ := start(t, reload.Options{Paths: []string{ruleFile(t, document("file", 1))}}, false)
	if err := r.Push(t.Context(), nil); err == nil {
		t.Error("Push without Options.Pushed: got no error")
	}
}

func TestMergedDocumentsAreInTheOrderOfTheirNames(t *testing.T) {
	l, r, _ := prepare(t, reload.Options{Pushed: true, Options: descriptors.Options{MergeDomains: true}})
	wildcard := func(name, value string, requests int) descriptors.Source {
		text := document("a", requests)
		return descriptors.Source{Name: name, Data: []byte(strings.Replace(text, "key: user", "key: user\n  value: "+value, 1))}
	}
	second := wildcard("x:2", "x*", 2)
	must.Do(t, r.Push(t.Context(), []descriptors.Source{second}))
	must.Do(t, r.Push(t.Context(), []descriptors.Source{second, wildcard("x:1", `"*x"`, 1)}))
	if got := requests(l, "a"); got != 1 {
		t.Errorf("of two wildcards that match: got that of %d, want 1, that of the first document by name", got)
	}
	err := r.Push(t.Context(), []descriptors.Source{second, wildcard("x:1", "x*", 1), wildcard("x:3", "y", 3)})
	if got := refusals(t, err); len(got) != 1 || !strings.Contains(got[0], "x:1:3") || !strings.Contains(got[0], "x:2:3") {
		t.Errorf("a descriptor that two documents have: got %q, want one reason with both places", got)
	}
	if got := requests(l, "a"); got != 1 {
		t.Errorf("after a bad change: got %d, want 1", got)
	}
}

func TestTheSamePushAgainGetsTheSameAnswerAndDoesNothing(t *testing.T) {
	file := ruleFile(t, document("a", 1))
	_, r, _ := start(t, reload.Options{Paths: []string{file}, Pushed: true}, false)
	documents := pushed(doc{"x:1", "a", 2}, doc{"x:2", "b", 3})
	first := refusals(t, r.Push(t.Context(), documents))
	before := r.Status()
	if diff := cmp.Diff(first, refusals(t, r.Push(t.Context(), slices.Clone(documents)))); diff != "" || len(first) == 0 {
		t.Errorf("reasons (-first +again):\n%s", diff)
	}
	if diff := cmp.Diff(before, r.Status()); diff != "" {
		t.Errorf("status (-before +after):\n%s", diff)
	}
	write(t, file, document("c", 3)) // now nothing is in the way
	must.Do(t, r.Reload(t.Context()))
	if err := r.Push(t.Context(), documents); err != nil {
		t.Errorf("Push when what was in the way is gone: got %v", err)
	}
}

package limiter

import (
	"errors"
	"fmt"
	"os"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/descriptors"
)

type ruleSet struct {
	loaded    bool // by SetRules
	rules     *descriptors.Rules
	counts    []*Counts          // by Rule.ID
	overrides map[string]*Counts // by domain: of overrides without a matching rule
	counted   []counted          // each Counts once, with a rule that has limits where one has
	grants    *grantTable        // never nil
	formers   [][][]former       // by Rule.ID and index of the limit; nil without any
}

// counted is a [RuleCounts] in a few bytes: there may be 100 000.
type counted struct {
	rule   *descriptors.Rule   // nil for overrides without a matching rule
	domain *descriptors.Domain // of those
	counts *Counts
}

// countedName finds the counts of a rule again. Rules may have equal ones: the key a=b, and the key
// a with the value b.
type countedName struct{ domain, path string }

func (c *counted) name() countedName {
	if c.rule == nil {
		return countedName{c.domain.Name, overridePath}
	}
	return countedName{c.rule.Domain, c.rule.Path}
}

// SetRules puts rules in force, for every request that begins after it returns. The counts of a
// rule go on when the new rules have a rule of the same domain and path. States in the store stay.
// A limit with another algorithm or period takes over the used hits, see Options.Now. The store
// forgets the answers by the earlier rules. Grants stay with their domain and entries.
func (l *Limiter) SetRules(rules *descriptors.Rules) {
	l.setting.Lock()
	defer l.setting.Unlock()
	was := l.current.Load()
	next := &ruleSet{loaded: true, rules: rules, counts: make([]*Counts, rules.Len()), overrides: make(map[string]*Counts)}
	next.grants = l.placeLocked(rules)
	if rules.Learn() && l.estimates.Load() == nil {
		l.estimates.Store(new(estimates))
	}
	if l.options.Now != nil {
		next.formers = formersAfter(was, rules, l.options.Now())
	}
	known, places := make(map[countedName]*Counts, len(was.counted)), make(map[countedName]int, rules.Len())
	for _, c := range was.counted {
		known[c.name()] = c.counts
	}
	next.counted = make([]counted, 0, rules.Len()+len(rules.Domains()))
	count := func(c counted) *Counts {
		name := c.name()
		at, again := places[name]
		if !again {
			if c.counts = known[name]; c.counts == nil {
				c.counts = new(Counts)
			}
			at = len(next.counted)
			places[name] = at
			next.counted = append(next.counted, c)
		} else if c.rule != nil && len(next.counted[at].rule.Limits) == 0 {
			next.counted[at].rule = c.rule
		}
		return next.counted[at].counts
	}
	for _, r := range rules.All() {
		next.counts[r.ID] = count(counted{rule: r})
	}
	for _, d := range rules.Domains() {
		next.overrides[d.Name] = count(counted{domain: d})
	}
	l.current.Store(next)
	l.store.Forget()
}

// Rules returns the rules in force, never nil.
func (l *Limiter) Rules() *descriptors.Rules { return l.current.Load().rules }

// ErrNoDocuments is the error of [Limiter.Load] and [Limiter.LoadFiles] without a document, such as
// for a pattern that matches no file.
var ErrNoDocuments = errors.New("there is no rule document to load")

// Load puts the rules of documents in force, in place of all earlier rules, and returns likely
// mistakes in the documents. The error is a [descriptors.Errors] of every mistake, or
// [ErrNoDocuments]; the earlier rules then stay in force. Counts survive, see [Limiter.SetRules].
func (l *Limiter) Load(documents ...descriptors.Source) ([]descriptors.Warning, error) {
	return l.load(documents, nil)
}

// load is Load, unless an error came before: then load only adds the mistakes in the documents to
// that error.
func (l *Limiter) load(documents []descriptors.Source, before error) ([]descriptors.Warning, error) {
	if len(documents) == 0 && before == nil {
		return nil, ErrNoDocuments
	}
	rules, warnings, err := descriptors.Load(documents, descriptors.Options{DropRejected: l.options.DropRejected})
	if before != nil {
		err = errors.Join(before, err)
	}
	if err != nil {
		return warnings, err
	}
	l.SetRules(rules)
	return warnings, nil
}

// LoadFiles is [Limiter.Load] of rule files, and of the tables that they name. The error also names
// every file that cannot be read, beside the mistakes in the others.
func (l *Limiter) LoadFiles(paths ...string) ([]descriptors.Warning, error) {
	var (
		documents []descriptors.Source
		errs      []error
		tables    = make(map[string]*descriptors.Table)
	)
	for _, path := range paths {
		data, err := regular.Read(path, descriptors.DefaultMaxBytes)
		if err != nil {
			errs = append(errs, fmt.Errorf("read rules: %w", err))
			continue
		}
		documents = append(documents, descriptors.Source{Name: path, Data: data, Table: tablesOf(path, tables)})
	}
	return l.load(documents, errors.Join(errs...))
}

// tablesOf returns the tables that a rule file may name. Tables of the same path are read once.
func tablesOf(file string, known map[string]*descriptors.Table) func(name string) (*descriptors.Table, error) {
	return func(name string) (*descriptors.Table, error) {
		path := descriptors.TablePath(file, name)
		if known[path] != nil {
			return known[path], nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("read table: %w", err)
		}
		if text, tooLarge := (descriptors.Options{}).TableTooLarge(int(info.Size()), 0); tooLarge {
			return nil, fmt.Errorf("%s: %s", path, text)
		}
		data, err := regular.Read(path, descriptors.DefaultMaxTableBytes)
		if err != nil {
			return nil, fmt.Errorf("read table: %w", err)
		}
		known[path] = descriptors.NewTable(path, data)
		return known[path], nil
	}
}

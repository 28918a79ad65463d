package descriptors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// DefaultMaxLogEntries is the bound of [Options] where none is given.
const DefaultMaxLogEntries = 10_000

// Options bounds what rules may ask for. The zero value is usable.
type Options struct {
	MaxLogEntries uint32        // largest requests_per_unit of a sliding_window_log, which remembers every hit; 0 is DefaultMaxLogEntries
	Granularity   time.Duration // what every period must be a whole multiple of, as counts are kept in such steps; 0 is any

	// MergeDomains makes documents of one domain one, in the order of the sources: their descriptors stand side by side, where
	// no two may be the same, and one of them may have a default. What a document says under defaults is for its own limits.
	// Without it a domain is one document.
	MergeDomains bool

	// OriginalKeys is for counts that are kept under the keys of [AppendOriginalKey], which do not tell limits apart: it gives
	// rules of several limits, which envoyproxy/ratelimit does not have, other keys.
	OriginalKeys bool

	// DropRejected leaves denied hits uncounted by fixed windows too, where neither limit nor document say otherwise.
	DropRejected bool
}

// Source is where rule documents come from. The bytes are not kept.
type Source struct {
	Name string // as errors show it: the path of the file
	Data []byte // one rule document (YAML or JSON); one document is one domain

	// Inline says that Data is a settings file (YAML or JSON) whose list `domains`, when there is one, holds rule documents;
	// its other keys are not looked at.
	Inline bool

	// Documents are rule documents that were decoded already, say from TOML; Data is not looked at when there are any. Keys are
	// text, as in the document. Mistakes in them have no line.
	Documents []map[string]any

	// Decode makes a rule document of Data that is neither YAML nor JSON; nil: it is one of them. Each Load calls it anew, so that
	// who keeps a Source keeps what is encoded and no more. It returns what is wrong with the data, and what it has to warn of,
	// both without the File; a document of nil says that there is none. Mistakes in the document have no line. Neither Inline nor
	// Documents are looked at.
	Decode func(data []byte) (document map[string]any, mistakes []Error, warnings []Warning)
}

// Load turns documents into rules. Either all of them are good, or the error is an [Errors] with every mistake in any of
// them, sorted by file and line, and there are no rules. Warnings, sorted the same way, are about what is accepted and
// probably not meant: what envoyproxy/ratelimit ignores without a word is ignored here with one. No source at all gives
// rules without domains.
//
// A document is not trusted: Load does not panic, however deep or self-referential it is, and stops at bounds: 200 levels of
// maps and lists, 500 000 values repeated through aliases, 64 MiB.
func Load(sources []Source, o Options) (*Rules, []Warning, error) {
	if o.MaxLogEntries == 0 {
		o.MaxLogEntries = DefaultMaxLogEntries
	}
	var (
		mistakes Errors
		warnings []Warning
		rules    = &Rules{domains: make(map[string]*Domain)}
		readers  = make([]*reader, 0, len(sources))
		merged   = make(map[string]*tree)
	)
	for _, s := range sources {
		r := &reader{file: s.Name, options: o, merged: merged}
		readers = append(readers, r)
		for _, d := range r.documents(s) {
			if first := rules.domains[d.Name]; first != nil && first != d.Domain {
				r.errs = append(r.errs, Error{File: d.File, Line: d.Line, Path: d.path, Text: fmt.Sprintf(
					"domain %s is defined already, at %s: a domain must be one document", quote(d.Name), position(first.File, first.Line))})
				continue
			}
			rules.domains[d.Name] = d.Domain
		}
	}
	for _, r := range readers {
		for _, t := range r.trees { // which know all names by now
			t.checkReplaces()
		}
		mistakes = append(mistakes, r.errs...)
		warnings = append(warnings, r.warnings...)
	}
	slices.SortStableFunc(mistakes, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	slices.SortStableFunc(warnings, func(a, b Warning) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	if len(mistakes) > 0 {
		return nil, warnings, mistakes
	}
	for _, d := range rules.Domains() {
		if i := slices.Index(d.rules, d.Default); i >= 0 { // of several documents it need not be last
			d.rules = append(slices.Delete(d.rules, i, i+1), d.Default)
		}
		for _, r := range d.rules {
			r.ID = len(rules.all)
			rules.all = append(rules.all, r)
		}
	}
	return rules, warnings, nil
}

// Domain returns the domain of that name, nil when there is none. Names are case-sensitive.
func (r *Rules) Domain(name string) *Domain { return r.domains[name] }

// Domains returns all domains, sorted by name.
func (r *Rules) Domains() []*Domain {
	return slices.SortedFunc(maps.Values(r.domains), func(a, b *Domain) int { return cmp.Compare(a.Name, b.Name) })
}

// All returns all rules, in the order of their IDs: domain by domain as [Rules.Domains], each in the order of its document,
// a default last. The slice must not be changed.
func (r *Rules) All() []*Rule { return r.all }

// Len returns the number of rules.
func (r *Rules) Len() int { return len(r.all) }

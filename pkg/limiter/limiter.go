// Package limiter is the heart of Weir: rules and a store make Check(request). It matches descriptors to rules, turns them
// into the charges of one transaction, lets the store decide, and gives one verdict; overrides, replaced rules, shadow and
// quota mode, and several limits of a rule are its doing. It is also the API for programs that embed Weir: it speaks in plain
// Go types and knows no protocol.
//
// It does not read rules (package descriptors does), keep states (a store does) or know the time of day.
package limiter

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Defaults of Options.
const (
	DefaultMaxDescriptors = 1000
	DefaultMaxLogEntries  = 10_000
	DefaultDetailedValues = 1000
)

// Options is what New needs besides a store. The zero value is valid.
type Options struct {
	MaxDescriptors int    // most descriptors of a request; 0 means DefaultMaxDescriptors
	MaxLogEntries  uint32 // most requests of a sliding_window_log that a request may override a limit to; 0 means DefaultMaxLogEntries
	DetailedValues int    // most values of a rule that are counted apart, see [Counts]; 0 means DefaultDetailedValues

	OnStoreError store.OnError // of limits whose rules do not say what becomes of them when the store cannot be asked

	NearLimit    float64 // from which part of a limit on hits count as near it, see [Tally]; 0: none are counted
	DropRejected bool    // denied hits of overrides that no rule matches do not count, as descriptors.Options has it for rules
	Shadow       bool    // every request passes; its statuses say what was found
	Quota        bool    // every limit is a quota; a request with a descriptor that no limit applies to passes
	NeedRules    bool    // requests fail with ErrNoRules before the first SetRules; else they pass
}

// ErrNoRules says that a request came before the first rules, with Options.NeedRules.
var ErrNoRules = errors.New("no rate limit configuration loaded")

// Limiter decides requests. All methods are safe for concurrent use. It starts nothing and needs no Close; its store may.
type Limiter struct {
	store    store.Store
	options  Options
	units    unitLimits
	current  atomic.Pointer[ruleSet]
	status   atomic.Pointer[Status]
	requests requestCounts
	setting  sync.Mutex // held while rules are set
}

// forgetter is a store that remembers what it decided by rules of before.
type forgetter interface{ Forget() }

// ruleSet is the rules in force and what is counted of each.
type ruleSet struct {
	loaded    bool // by SetRules
	rules     *descriptors.Rules
	counts    []*Counts          // by Rule.ID
	overrides map[string]*Counts // by domain: limits that requests brought themselves where no rule matched
}

// Status is what is loaded and what became of the last attempt to load. Its slices must not be changed.
type Status struct {
	Rules       *descriptors.Rules    // in force; never nil
	Warnings    []descriptors.Warning // of the rules in force
	LoadedAt    time.Time             // when they came into force, or DoWithoutRules was called before any; else zero
	AttemptedAt time.Time             // of the last attempt, successful or not
	Errors      []string              // why the last attempt was refused; empty when it was not
	Loads       uint64                // attempts that came into force
	Refusals    uint64                // attempts that were refused
}

// New returns a limiter without rules: until [Limiter.SetRules] every request passes, or fails with Options.NeedRules. It fails
// when an option is out of bounds.
func New(s store.Store, o Options) (*Limiter, error) {
	var errs []error
	if s == nil {
		errs = append(errs, errors.New("store: must not be nil"))
	}
	if o.MaxDescriptors < 0 {
		errs = append(errs, fmt.Errorf("max descriptors: %d: must be at least 1", o.MaxDescriptors))
	}
	if o.DetailedValues < 0 {
		errs = append(errs, fmt.Errorf("detailed values: %d: must be at least 1", o.DetailedValues))
	}
	if !(o.NearLimit >= 0) || math.IsInf(o.NearLimit, 0) {
		errs = append(errs, fmt.Errorf("near limit: %v: must be at least 0", o.NearLimit))
	}
	if o.OnStoreError > store.Deny {
		errs = append(errs, fmt.Errorf("on store error: %d: must be Local, Allow or Deny", o.OnStoreError))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.MaxDescriptors == 0 {
		o.MaxDescriptors = DefaultMaxDescriptors
	}
	if o.MaxLogEntries == 0 {
		o.MaxLogEntries = DefaultMaxLogEntries
	}
	if o.DetailedValues == 0 {
		o.DetailedValues = DefaultDetailedValues
	}
	l := &Limiter{store: s, options: o, units: newUnitLimits()}
	none := new(descriptors.Rules)
	l.current.Store(&ruleSet{rules: none})
	l.status.Store(&Status{Rules: none})
	return l, nil
}

// SetRules puts rules in force, for every request that begins after it returns. at is the time of it, for Status. What was
// counted of a rule goes on where the new rules have one of the same domain and path; states in the store stay. A store with a
// method Forget is told, so that no answer it remembers is one of the rules of before.
func (l *Limiter) SetRules(rules *descriptors.Rules, warnings []descriptors.Warning, at time.Time) {
	l.setting.Lock()
	defer l.setting.Unlock()
	was := l.current.Load()
	known := make(map[[2]string]*Counts, was.rules.Len())
	for _, r := range was.rules.All() {
		known[[2]string{r.Domain, r.Path}] = was.counts[r.ID]
	}
	next := &ruleSet{loaded: true, rules: rules, counts: make([]*Counts, rules.Len()), overrides: make(map[string]*Counts)}
	for _, r := range rules.All() { // those whose paths read the same (a=b alone, and a with the value b) share one
		name := [2]string{r.Domain, r.Path}
		if known[name] == nil {
			known[name] = newCounts(l.options.DetailedValues)
		}
		next.counts[r.ID] = known[name]
	}
	for _, d := range rules.Domains() {
		c := was.overrides[d.Name]
		if c == nil {
			c = newCounts(l.options.DetailedValues)
		}
		next.overrides[d.Name] = c
	}
	l.current.Store(next)
	if s, ok := l.store.(forgetter); ok {
		s.Forget()
	}
	s := l.status.Load()
	l.status.Store(&Status{
		Rules: rules, Warnings: warnings, LoadedAt: at, AttemptedAt: at, Loads: s.Loads + 1, Refusals: s.Refusals,
	})
}

// DoWithoutRules has Status say that none are waited for, where none came yet. What becomes of requests until some do does not change.
func (l *Limiter) DoWithoutRules(at time.Time) {
	l.setting.Lock()
	defer l.setting.Unlock()
	if s := *l.status.Load(); s.LoadedAt.IsZero() {
		s.LoadedAt = at
		l.status.Store(&s)
	}
}

// Refused records that an attempt to load rules failed, with every reason; the rules in force stay.
func (l *Limiter) Refused(reasons []string, at time.Time) {
	l.setting.Lock()
	defer l.setting.Unlock()
	s := *l.status.Load()
	s.Errors, s.AttemptedAt = reasons, at
	s.Refusals++
	l.status.Store(&s)
}

// Status returns what is loaded and what became of the last attempt to load.
func (l *Limiter) Status() *Status { return l.status.Load() }

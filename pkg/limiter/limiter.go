// Package limiter is the heart of Weir. A [Limiter] is rules and a store. [Limiter.Check] decides a
// request: Check matches descriptors to rules, and turns the rules into the charges of one
// transaction. The store decides them, and Check returns one verdict. Overrides, replaced rules,
// shadow and quota mode, and several limits of a rule are decided here. The package is also the API
// for programs that embed Weir, in plain Go types: [Limiter.Allow] is the short way.
//
// Package descriptors decodes rules, and a store keeps states and time.
package limiter

import (
	"cmp"
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
	DefaultDetailedValues = 1000
	DefaultTopKeys        = 1000 // of the programs; Options.TopKeys has no default
)

// MaxCharges is the most charges of one request: one for each limit of the rule of each descriptor,
// and one for each override. A request for more is invalid. So is a request with descriptors that
// replace more names, see [descriptors.Rule.Replaces].
const MaxCharges = 4096

// MaxTopKeys is the bound of Options.TopKeys. As many keys take up to 100 MB.
const MaxTopKeys = 100_000

// Options is the options of New. The zero value is valid.
type Options struct {
	MaxDescriptors int // largest number of descriptors in a request; 0 means DefaultMaxDescriptors
	DetailedValues int // largest number of values of a rule that are counted apart, see [Counts]; 0 means DefaultDetailedValues

	TopKeys int // number of keys with the most hits that are tracked, see [Limiter.TopKeys], at most MaxTopKeys; 0: none is

	OnStoreError store.OnError // for limits without on_store_error, while the store does not answer
	Leased       bool          // limits without sharing may be decided from hits taken in advance, see package shared

	NearLimit    float64 // part of a limit above which hits count as near, see [Tally]; 0 counts no hits
	Remembered   bool    // denials from the memory of an earlier one are counted apart, see [Tally]; 20 to 40 ns for each charge
	DropRejected bool    // denied hits of overrides without a matching rule do not count; as in descriptors.Options
	Shadow       bool    // every request passes; the statuses show the decisions
	Quota        bool    // every limit is a quota; a request with a descriptor that no limit applies to passes
	NeedRules    bool    // requests fail with ErrNoRules before the first SetRules; else they pass

	// CalendarMonths aligns an override of one month to the calendar in UTC, as in
	// descriptors.Options, unless its rule is aligned.
	CalendarMonths bool

	// OnNotice is called when a key crosses a mark of warn_at, when an estimate is cut, and when a
	// model has no price. The caller is the goroutine that decides the request. OnNotice must not
	// wait, and must be safe for concurrent use. Nil: notices of marks and cuts are only counted.
	OnNotice func(*Notice)

	// Now is the clock by which grants end, windows of notices, the memory of earlier limits, and
	// schedules. Nil: no grant is ever in force, there are no notices, a limit with another algorithm
	// or period starts anew, and schedules follow [time.Now]. Safe for concurrent use.
	Now func() time.Time
}

// ErrNoRules is the error of a request before the first rules, with Options.NeedRules.
var ErrNoRules = errors.New("no rate limit configuration loaded")

// Limiter decides requests. All methods are safe for concurrent use. A Limiter needs no Close; the
// store may.
type Limiter struct {
	store    store.Store
	options  Options
	units    unitLimits
	current  atomic.Pointer[ruleSet]
	requests requestCounts
	tracking tracking
	accounts accounts

	estimates atomic.Pointer[estimates] // nil until a limit learns
	divided   divided

	calls sync.Pool // of *call
	local bool      // the store decides in place

	setting sync.Mutex        // held while rules and grants are set; guards grants
	grants  map[string]*Grant // by ID
}

// New returns a limiter without rules: until [Limiter.SetRules] every request passes, or fails with
// Options.NeedRules. An option out of bounds is an error.
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
	if o.TopKeys < 0 || o.TopKeys > MaxTopKeys {
		errs = append(errs, fmt.Errorf("top keys: %d: must be from 0 to %d", o.TopKeys, MaxTopKeys))
	}
	if !(o.NearLimit >= 0) || math.IsInf(o.NearLimit, 0) {
		errs = append(errs, fmt.Errorf("near limit: %v: must be at least 0", o.NearLimit))
	}
	if o.OnStoreError > store.OnErrorDeny {
		errs = append(errs, fmt.Errorf("on store error: %d: must be Local, Allow or Deny", o.OnStoreError))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	o.MaxDescriptors = cmp.Or(o.MaxDescriptors, DefaultMaxDescriptors)
	o.DetailedValues = cmp.Or(o.DetailedValues, DefaultDetailedValues)
	l := &Limiter{store: s, options: o, units: newUnitLimits(o.CalendarMonths), grants: make(map[string]*Grant)}
	l.tracking = newTracking(o.TopKeys, l.balance)
	if o.Now != nil {
		l.accounts.since = o.Now()
	}
	_, l.local = s.(store.Local)
	l.calls.New = func() any { return new(call) }
	l.current.Store(&ruleSet{rules: new(descriptors.Rules), grants: newGrantTable()})
	return l, nil
}

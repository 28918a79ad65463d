package limiter

import (
	"errors"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Dividend is the limits of a set of entries without an order, for a caller that divides these
// limits among clients. See [Limiter.Dividend].
type Dividend struct {
	Rule   *descriptors.Rule
	Base   string             // all entries with one Base share one count; "" where nothing is limited
	Limits []algorithms.Limit // all hold; none: everything passes
}

// The reasons why a limit cannot be divided. errors.Is works with all of them.
var (
	ErrNoRule      = errors.New("no rule has all these keys")
	ErrSeveral     = errors.New("several rules have these keys in different orders")
	ErrIndivisible = errors.New("a limit with holders, prices, groups, replaces or escalate cannot be divided")
)

// Dividend returns the limits of a rule for entries in any order, with the numbers of tables, of
// schedules and of grants for now. In shadow mode nothing is limited. Dividend changes the order of
// entries, and charges nothing. The error is one of the above, or an [*InvalidError].
func (l *Limiter) Dividend(domain string, entries []Entry) (Dividend, error) {
	set := l.current.Load()
	d := set.rules.Domain(domain)
	if d == nil {
		return Dividend{}, ErrNoRule
	}
	switch d.Order(entries) {
	case 0:
		return Dividend{}, ErrNoRule
	case 1:
	default:
		return Dividend{}, ErrSeveral
	}
	return l.DividendInOrder(domain, entries)
}

// DividendInOrder is Dividend for the descriptor of a request: the order of entries counts.
func (l *Limiter) DividendInOrder(domain string, entries []Entry) (Dividend, error) {
	v, err := l.undivided(domain, entries)
	if err != nil {
		return Dividend{}, err
	}
	if v.Statuses[0].Rule == nil {
		return Dividend{}, ErrNoRule
	}
	rule := v.Statuses[0].Rule
	if rule.Holds() || rule.Group.Rank > 0 || len(rule.Replaces) > 0 || rule.Escalates() {
		return Dividend{}, ErrIndivisible
	}
	of := Dividend{Rule: rule}
	if rule.Shadow || l.options.Shadow {
		return of, nil
	}
	for i := range v.charges {
		of.Limits = append(of.Limits, v.charges[i].Limit)
	}
	if len(v.charges) > 0 {
		of.Base = string(v.terms[0].limit.Base(v.charges[0].Key))
	}
	return of, nil
}

package page

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// row is a rule as the page lists it.
type row struct {
	About

	ID       int     `json:"id"`
	Passed   float64 `json:"ok"` // per second, as the next two
	Denied   float64 `json:"no"`
	Shadowed float64 `json:"shadow"`
	Total    uint64  `json:"total"`  // decisions since the start
	Refused  uint64  `json:"denied"` // denials since the start
}

// state is all that the page shows, without curves.
type state struct {
	Point     point   `json:"point"`
	Unmatched float64 `json:"unmatched"` // descriptors per second, as the next
	NoDomain  float64 `json:"noDomain"`
	Total     uint64  `json:"total"` // requests since the start
	Store     Store   `json:"store"`
	Loads     Loads   `json:"loads"`
	Ready     string  `json:"ready"`
	Rules     []row   `json:"rules"`
	Number    int     `json:"number"` // of all rules
}

// showLocked puts the state for viewers in place.
func (s *sampler) showLocked(now time.Time, totals *Totals, p point) {
	step := now.Sub(s.at)
	if s.at.IsZero() {
		step = 0
	}
	out := state{
		Point: p, Unmatched: rate(totals.Unmatched, s.before.Unmatched, step), NoDomain: rate(totals.NoDomain, s.before.NoDomain, step),
		Total: totals.Passed + totals.Denied + totals.Failed, Rules: s.rowsLocked(), Number: s.number,
	}
	if s.source.Store != nil {
		out.Store = s.source.Store()
		out.Store.P99 = out.Store.Latency.quantile(&s.store, 0.99)
		s.store = out.Store.Latency
	}
	if s.source.Loads != nil {
		out.Loads = s.source.Loads()
	}
	if s.source.Ready != nil {
		out.Ready = s.source.Ready()
	}
	live, err := json.Marshal(out)
	if err != nil { // no value of a state can fail
		return
	}
	s.live = live
	close(s.next)
	s.next = make(chan struct{})
}

// rowsLocked returns the rules with the most denials, and then the most requests.
func (s *sampler) rowsLocked() []row {
	all := make([]*curve, 0, len(s.rules))
	for _, c := range s.rules {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *curve) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(b.passed, a.passed), cmp.Compare(b.now.sum(), a.now.sum()), cmp.Compare(a.number, b.number))
	})
	rows := make([]row, 0, min(len(all), maxRows))
	for _, c := range all[:min(len(all), maxRows)] {
		rows = append(rows, row{
			About: c.rule.About(), ID: c.number, Passed: c.passed, Denied: c.denied, Shadowed: c.shadowed, Total: c.now.sum(), Refused: c.now.Denied,
		})
	}
	return rows
}

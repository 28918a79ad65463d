package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weirproxy/weir/internal/printable"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Bounds of a summary.
const (
	maxSummed  = 10_000 // places that are counted apart
	maxSummary = 50     // places that are listed
)

// WatchSummary counts watched descriptors by rule. Descriptors without a rule count by domain and
// keys. The zero value is empty.
type WatchSummary struct {
	requests, overLimit uint64
	places              map[summaryPlace]*[]uint64 // by outcome
	others              uint64                     // descriptors beyond maxSummed places
}

// summaryPlace is a rule, or the keys of descriptors without one.
type summaryPlace struct{ domain, rule, keys string }

// Add counts a request.
func (s *WatchSummary) Add(r *adminv1.WatchedRequest) {
	s.requests++
	if r.GetOverLimit() {
		s.overLimit++
	}
	if s.places == nil {
		s.places = make(map[summaryPlace]*[]uint64)
	}
	for _, d := range r.GetDescriptors() {
		at := summaryPlace{domain: r.GetDomain(), rule: d.GetRule()}
		if at.rule == "" {
			at.keys = keysText(d.GetEntries())
		}
		counts := s.places[at]
		if counts == nil {
			if len(s.places) == maxSummed {
				s.others++
				continue
			}
			all := make([]uint64, len(adminv1.Outcome_name))
			counts = &all
			s.places[at] = counts
		}
		if o := int(d.GetOutcome()); o >= 0 && o < len(*counts) {
			(*counts)[o]++
		}
	}
}

// keysText returns the keys of entries, printable.
func keysText(entries []*adminv1.Entry) string {
	var keys []string
	for i, e := range entries {
		if i == printable.MaxEntries {
			keys = append(keys, "…")
			break
		}
		keys = append(keys, printable.Key(e.GetKey()))
	}
	return strings.Join(keys, ",")
}

// String returns the summary as lines: the requests, and a line for each rule, the most frequent
// first.
func (s *WatchSummary) String() string {
	var b strings.Builder
	plural := "s"
	if s.requests == 1 {
		plural = ""
	}
	fmt.Fprintf(&b, "%d request%s, %d over limit\n", s.requests, plural, s.overLimit)
	if len(s.places) == 0 {
		return b.String()
	}
	sum := func(p summaryPlace) (n uint64) {
		for _, c := range *s.places[p] {
			n += c
		}
		return n
	}
	places := slices.SortedFunc(maps.Keys(s.places), func(a, b summaryPlace) int {
		return cmp.Or(cmp.Compare(sum(b), sum(a)), cmp.Compare(a.domain, b.domain), cmp.Compare(a.rule, b.rule), cmp.Compare(a.keys, b.keys))
	})
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DOMAIN\tRULE\tDESCRIPTORS\tOUTCOMES")
	for i, p := range places {
		if i == maxSummary {
			break
		}
		rule := printable.Text(p.rule)
		if rule == "" {
			rule = "none for " + p.keys
		}
		var outcomes []string
		for o, n := range *s.places[p] {
			if n > 0 {
				outcomes = append(outcomes, fmt.Sprintf("%s %d", OutcomeName(adminv1.Outcome(o)), n))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", orDash(printable.Text(p.domain)), rule, sum(p), strings.Join(outcomes, ", "))
	}
	_ = t.Flush() // to memory
	if rest := len(places) - maxSummary; rest > 0 || s.others > 0 {
		fmt.Fprintf(&b, "and %d more rules, and %d descriptors that were not counted apart\n", max(rest, 0), s.others)
	}
	return b.String()
}

package render

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/internal/timespan"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// OutcomeName returns an outcome as commands write it, such as over_limit.
func OutcomeName(o adminv1.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

// OutcomeOf returns the outcome of a name; OUTCOME_UNSPECIFIED when there is no such outcome.
func OutcomeOf(name string) adminv1.Outcome {
	return adminv1.Outcome(adminv1.Outcome_value["OUTCOME_"+strings.ToUpper(name)])
}

// OutcomeNames returns the names of all outcomes, in their order.
func OutcomeNames() []string {
	var all []string
	for o := range adminv1.Outcome(len(adminv1.Outcome_name)) {
		if o != adminv1.Outcome_OUTCOME_UNSPECIFIED {
			all = append(all, OutcomeName(o))
		}
	}
	return all
}

// column is a column of a watched descriptor: its name, and its smallest and largest width. A wider
// text moves the rest of its own line.
type column struct {
	name        string
	least, most int
}

// columns are all columns before the last one.
func columns() [5]column {
	return [...]column{{"TIME", 24, 24}, {"OUTCOME", 11, 12}, {"DOMAIN", 6, 16}, {"DESCRIPTOR", 26, 56}, {"RULE", 26, 56}}
}

// Watched writes watched requests for people, each as a block of one line for each descriptor. The
// columns grow with their texts, and stay aligned from then on. The zero value is ready.
type Watched struct {
	Sources []string // of the rules, as Status names them. Files below an absolute one have short names

	widths [5]int
}

// maxShownDescriptors is the most lines of a request.
const maxShownDescriptors = 20

// Header returns the line above the others.
func (w *Watched) Header() string {
	var names [5]string
	for i, c := range columns() {
		names[i] = c.name
	}
	return w.line(names, "RESULT")
}

// Lines returns the lines of a request. The first is of the descriptor that decided, and has the
// time and the domain of all. All texts are printable.
func (w *Watched) Lines(r *adminv1.WatchedRequest) string {
	at := r.GetAt().AsTime().UTC().Format("2006-01-02T15:04:05.000Z")
	domain := orDash(printable.Text(r.GetDomain()))
	in := "in " + r.GetTook().AsDuration().Round(time.Microsecond).String()
	if r.GetQuota() != nil {
		in = watchedQuotaText(r.GetQuota())
	}
	if len(r.GetDescriptors()) == 0 {
		failed := [5]string{at, OutcomeName(adminv1.Outcome_OUTCOME_FAILED), domain, "-", "-"}
		return w.line(failed, printable.Text(r.GetError())+", "+in)
	}
	var b strings.Builder
	for i, d := range decidingFirst(r.GetDescriptors()) {
		if i == maxShownDescriptors {
			fmt.Fprintf(&b, "and %d more descriptors of this request\n", len(r.GetDescriptors())-i)
			break
		}
		rule := "-"
		if d.GetRule() != "" {
			rule = printable.Text(d.GetRule()) + " " + printable.Text(Place(w.file(d.GetFile()), d.GetLine()))
		}
		result := resultText(r, d)
		if i > 0 {
			at, domain, in = "", "", ""
		}
		if result != "" && in != "" {
			result += ", "
		}
		b.WriteString(w.line([5]string{at, OutcomeName(d.GetOutcome()), domain, orDash(EntriesText(d.GetEntries())), rule}, result+in))
	}
	return b.String()
}

// decidingFirst returns the descriptors of a request, the one before the others whose limit the
// answer reports.
func decidingFirst(all []*adminv1.WatchedDescriptor) []*adminv1.WatchedDescriptor {
	var limited []*adminv1.WatchedDescriptor
	for _, d := range all {
		if o := d.GetOutcome(); o == adminv1.Outcome_OUTCOME_OVER_LIMIT || o == adminv1.Outcome_OUTCOME_OK {
			limited = append(limited, d)
		}
	}
	deciding, _ := Deciding(limited...)
	at := slices.Index(all, deciding)
	if at <= 0 {
		return all
	}
	return slices.Concat(all[at:at+1], all[:at], all[at+1:])
}

// file returns the name of a rule file from the last element of its absolute source on, else the
// whole name.
func (w *Watched) file(name string) string {
	for _, source := range w.Sources {
		source = path.Clean(source)
		if path.IsAbs(source) && path.Clean(name) == name && (name == source || strings.HasPrefix(name, source+"/")) {
			return strings.TrimPrefix(name[len(path.Dir(source)):], "/")
		}
	}
	return name
}

// line returns one line, and widens the columns.
func (w *Watched) line(texts [5]string, last string) string {
	var b strings.Builder
	for i, c := range columns() {
		n := utf8.RuneCountInString(texts[i])
		w.widths[i] = max(w.widths[i], c.least, min(n, c.most))
		b.WriteString(texts[i])
		b.WriteString(strings.Repeat(" ", max(w.widths[i]-n, 0)+2))
	}
	return strings.TrimRight(b.String()+last, " ") + "\n"
}

func resultText(r *adminv1.WatchedRequest, d *adminv1.WatchedDescriptor) string {
	var parts []string
	if _, l := Deciding(d); l != nil {
		parts = append(parts, watchedLimitText(d, l))
	}
	if d.GetGroup() != "" {
		parts = append(parts, "group "+d.GetGroup())
	}
	if d.GetGrant() != "" && len(d.GetLimits()) == 0 {
		parts = append(parts, "grant "+printable.Text(d.GetGrant()))
	}
	if d.GetOutcome() == adminv1.Outcome_OUTCOME_FAILED {
		parts = append(parts, printable.Text(r.GetError()))
	}
	if m := d.GetNearestMiss(); m != nil {
		parts = append(parts, printable.Escaped(m.GetWhy()))
	}
	return strings.Join(parts, ", ")
}

// Deciding returns the limit that the answer reports, and the descriptor of that limit. A limit
// that can never admit the hits goes first, then the denying one with the longest wait. If all
// admit the hits, it is the one with the least left. The results are nil without limits.
func Deciding(all ...*adminv1.WatchedDescriptor) (of *adminv1.WatchedDescriptor, limit *adminv1.WatchedLimit) {
	for _, d := range all {
		for _, l := range d.GetLimits() {
			if limit == nil || before(d, l, of, limit) {
				of, limit = d, l
			}
		}
	}
	return of, limit
}

// before reports whether limit a of one descriptor decides before limit b of another.
func before(of *adminv1.WatchedDescriptor, a *adminv1.WatchedLimit, other *adminv1.WatchedDescriptor, b *adminv1.WatchedLimit) bool {
	switch {
	case a.GetAllowed() != b.GetAllowed():
		return b.GetAllowed()
	case a.GetAllowed():
		return Number(a.GetRemaining(), a.GetLargeRemaining()) < Number(b.GetRemaining(), b.GetLargeRemaining())
	case Never(of, a) != Never(other, b):
		return Never(of, a)
	}
	return a.GetRetryAfter().AsDuration() > b.GetRetryAfter().AsDuration()
}

// Never reports whether a limit that denied the hits of a descriptor denies them for ever.
func Never(d *adminv1.WatchedDescriptor, l *adminv1.WatchedLimit) bool {
	held := l.GetLimit().GetAtMost() != nil && l.GetLimit().GetPeriod() != nil // an estimate is cut to the limit
	return !l.GetAllowed() && l.GetGrant() == "" && !held && d.GetHits() > int64(l.GetLimit().GetBurst())
}

// watchedLimitText returns a limit with its decision: "0 left of 100 per 1m, retry after 30s".
func watchedLimitText(d *adminv1.WatchedDescriptor, l *adminv1.WatchedLimit) string {
	amount := func(few uint32, large uint64) string { return Amount(l.GetLimit(), Number(few, large)) }
	text := amount(l.GetRemaining(), l.GetLargeRemaining()) + " left of " + amount(l.GetLimit().GetRequestsPerUnit(), l.GetLimit().GetLargeRequests())
	if period := l.GetLimit().GetPeriod(); period != nil {
		text += " per " + timespan.Format(period.AsDuration())
	} else {
		text += " at once"
	}
	if l.GetLimit().GetBurst() != l.GetLimit().GetRequestsPerUnit() {
		text += " with a burst of " + amount(l.GetLimit().GetBurst(), 0)
	}
	if d.GetOverride() {
		text += " by override"
	}
	hits := d.GetHits()
	if hits != 1 {
		text = fmt.Sprintf("%d hits, ", hits) + text
	}
	switch {
	case l.GetAllowed():
	case l.GetBlockedUntil() != nil:
		text += blockedText(l.GetBlockedUntil())
	case Never(d, l):
		text += ", these hits never pass"
	default:
		text += ", retry after " + waitText(l.GetRetryAfter().AsDuration())
	}
	text += sourceText(l.GetSource())
	if l.GetGrant() != "" {
		text += ", grant " + printable.Text(l.GetGrant())
	}
	return text
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

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
	if r.GetQuota() == nil {
		s.requests++
	}
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

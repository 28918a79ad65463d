package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Bounds of ListQuotasRequest.most.
const (
	usualQuotas = 20
	mostQuotas  = 1000

	mostQuotaEntries = 16
	mostShares       = 2000 // of all limits of an answer but the first one
)

// Quotas returns the divided limits that a request chooses. The error is a mistake in the request.
func Quotas(p *quota.Picture, in *adminv1.ListQuotasRequest) (*adminv1.ListQuotasResponse, error) {
	most := int(in.GetMost())
	switch n := len(in.GetEntries()); {
	case n > mostQuotaEntries:
		return nil, fmt.Errorf("entries: %d are given, must be at most %d", n, mostQuotaEntries)
	case most > mostQuotas:
		return nil, fmt.Errorf("most: %d: must be from 1 to %d, or 0 for %d", most, mostQuotas, usualQuotas)
	case most == 0:
		most = usualQuotas
	}
	all := choose(p, in)
	slices.SortFunc(all, func(a, b *divided) int {
		return cmp.Or(-cmp.Compare(a.remarks, b.remarks), -cmp.Compare(a.demand, b.demand), -cmp.Compare(a.Limit.Rate, b.Limit.Rate),
			slices.CompareFunc(a.Parts[0].Entries, b.Parts[0].Entries, func(a, b descriptors.Entry) int {
				return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
			}))
	})
	out := &adminv1.ListQuotasResponse{
		Number: uint64(len(all)), Streams: uint32(p.Streams), Buckets: uint32(p.Buckets), Refused: make(map[string]uint64, len(p.Refused)),
	}
	for reason, n := range p.Refused {
		out.Refused[strings.ToValidUTF8(reason, "\uFFFD")] += n
	}
	shares := 0
	for i, d := range all[:min(most, len(all))] {
		if shares += len(d.Parts); shares > mostShares && i > 0 {
			break
		}
		out.Quotas = append(out.Quotas, d.message())
	}
	return out, nil
}

// divided is a limit, or a bucket without one, and its place in the order of the list.
type divided struct {
	quota.Divided

	remarks int // 1 if an Envoy decides by its own configuration, as far as Weir sees
	demand  int64
}

// choose returns the limits and other buckets that a request chooses. Other buckets with the same
// entries are one.
func choose(p *quota.Picture, in *adminv1.ListQuotasRequest) (all []*divided) {
	chosen := func(l quota.Divided) bool {
		path := ""
		if l.Rule != nil {
			path = l.Rule.Path
		}
		return len(l.Parts) > 0 && (in.GetDomain() == "" || in.GetDomain() == l.Parts[0].Domain) &&
			(in.GetRule() == "" || in.GetRule() == path) &&
			slices.ContainsFunc(l.Parts, func(p quota.Part) bool { return hasEntries(p.Entries, in.GetEntries()) })
	}
	add := func(l quota.Divided) {
		if !chosen(l) {
			return
		}
		d := &divided{Divided: l}
		for i := range l.Parts {
			d.demand += max(l.Parts[i].Demand, 0)
			if fallback(&l.Parts[i]) != "" {
				d.remarks = 1
			}
		}
		slices.SortStableFunc(d.Parts, func(a, b quota.Part) int {
			return cmp.Or(-cmp.Compare(a.Demand, b.Demand), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Peer, b.Peer))
		})
		all = append(all, d)
	}
	for _, l := range p.Limits {
		add(l)
	}
	others := make(map[string]*quota.Divided)
	for _, part := range p.Others {
		entries := slices.Clone(part.Entries) // without a rule they have no order
		slices.SortFunc(entries, func(a, b descriptors.Entry) int { return cmp.Compare(a.Key, b.Key) })
		part.Entries, part.Demand = entries, demandOf(part.Report)
		key := strconv.Quote(part.Domain) + printable.Entries(entries)
		if others[key] == nil {
			others[key] = new(quota.Divided)
		}
		others[key].Parts = append(others[key].Parts, part)
	}
	for _, l := range others {
		add(*l)
	}
	return all
}

// hasEntries reports whether entries have all that are asked for. One without a value has all
// values.
func hasEntries(entries []descriptors.Entry, asked []*adminv1.Entry) bool {
	return !slices.ContainsFunc(asked, func(a *adminv1.Entry) bool {
		return !slices.ContainsFunc(entries, func(e descriptors.Entry) bool {
			return e.Key == a.GetKey() && (a.GetValue() == "" || e.Value == a.GetValue())
		})
	})
}

// demandOf returns the rate of the requests of a report, in billionths of a hit in a second; -1 for
// a first one.
func demandOf(r quota.Report) int64 {
	if r.Span <= 0 {
		return -1
	}
	return int64(min(float64(r.Allowed+r.Denied)/r.Span.Seconds(), quota.MostHits) * 1e9)
}

// perSecond returns billionths as hits.
func perSecond(n int64) float64 { return float64(n) / 1e9 }

func (d *divided) message() *adminv1.Quota {
	first := &d.Parts[0]
	out := &adminv1.Quota{
		Domain: strings.ToValidUTF8(first.Domain, "\uFFFD"), Entries: EntryMessages(first.Entries), Demand: perSecond(d.demand),
		Rate: perSecond(d.Limit.Rate), Burst: perSecond(d.Limit.Burst), Assigned: perSecond(d.Rate),
	}
	if r := d.Rule; r != nil {
		out.Rule, out.File, out.Line = strings.ToValidUTF8(r.Path, "\uFFFD"), r.File, uint32(r.Line)
	}
	for i := range d.Parts {
		p := &d.Parts[i]
		if r := p.Report; r.Span > 0 && !p.Gone {
			out.Allowed += float64(r.Allowed) / r.Span.Seconds()
		}
		out.Shares = append(out.Shares, shareMessage(p))
	}
	return out
}

func shareMessage(p *quota.Part) *adminv1.QuotaShare {
	out := &adminv1.QuotaShare{
		Name: strings.ToValidUTF8(p.Name, "\uFFFD"), Peer: p.Peer, Entries: EntryMessages(p.Entries), State: quotaState(p), Tokens: p.Bucket.Max,
		Allowed: p.Report.Allowed, Denied: p.Report.Denied, Reported: durationpb.New(p.Report.Age),
		Unacknowledged: p.Ordered && !p.Last, Unsettled: p.Unsettled, Remark: remark(p),
	}
	if p.Bucket.Max > 0 {
		out.Rate = float64(p.Bucket.Fill) / float64(p.Bucket.Interval)
	}
	if p.Demand >= 0 {
		demand := perSecond(p.Demand)
		out.Demand = &demand
	}
	if p.Report.Span > 0 {
		out.Span = durationpb.New(p.Report.Span)
	}
	if p.Ordered {
		out.Sent = durationpb.New(p.Sent)
	}
	return out
}

func quotaState(p *quota.Part) adminv1.QuotaState {
	switch {
	case p.Gone:
		return adminv1.QuotaState_QUOTA_STATE_GONE
	case p.Leaving:
		return adminv1.QuotaState_QUOTA_STATE_LEAVING
	case p.Open:
		return adminv1.QuotaState_QUOTA_STATE_ALLOW_ALL
	case p.Why != "":
		return adminv1.QuotaState_QUOTA_STATE_NONE
	case !p.Received:
		return adminv1.QuotaState_QUOTA_STATE_FIRST
	case p.Expired:
		return adminv1.QuotaState_QUOTA_STATE_EXPIRED
	case p.Bucket.Max == 0:
		return adminv1.QuotaState_QUOTA_STATE_DENY_ALL
	}
	return adminv1.QuotaState_QUOTA_STATE_BUCKET
}

// fallback says why an Envoy decides by its own configuration, by all that Weir can see; "" for no
// reason to think so.
func fallback(p *quota.Part) string {
	switch state := quotaState(p); {
	case state == adminv1.QuotaState_QUOTA_STATE_NONE:
		return "no_assignment_behavior of Envoy decides: " + p.Why
	case state == adminv1.QuotaState_QUOTA_STATE_EXPIRED:
		return "expired_assignment_behavior of Envoy may decide: it has acknowledged no assignment in time"
	case p.Against:
		return fmt.Sprintf("allowed %d in the last report, although it must deny all", p.Report.Allowed)
	}
	return ""
}

// remark returns fallback, or that hits passed before the first assignment.
func remark(p *quota.Part) string {
	if text := fallback(p); text != "" || p.Early == 0 {
		return text
	}
	return fmt.Sprintf("allowed %d before its first assignment of this stream", p.Early)
}

// bucketExplanation explains a bucket id, and puts its entries in the order of the rules.
func bucketExplanation(l *limiter.Limiter, domain string, entries []descriptors.Entry) *adminv1.BucketExplanation {
	of, err := l.Dividend(domain, entries)
	out := &adminv1.BucketExplanation{Entries: EntryMessages(entries), Open: err == nil && len(of.Limits) == 0}
	if err == nil && !out.GetOpen() {
		var limit quota.Limit
		limit, err = quota.LimitOfAll(of.Limits)
		out.Rate, out.Burst = perSecond(limit.Rate), perSecond(limit.Burst)
	}
	if err != nil {
		out.Why = strings.ToValidUTF8(err.Error(), "\uFFFD")
	}
	return out
}

// bucketText returns a bucket and its assignment as text.
func bucketText(b *adminv1.BucketExplanation) string {
	text := EntriesText(b.GetEntries())
	switch {
	case b.GetWhy() != "":
		return text + ": no assignment: " + printable.Escaped(b.GetWhy())
	case b.GetOpen():
		return text + ": ALLOW_ALL"
	}
	return text + fmt.Sprintf(": %s per second and %s at once are divided among Envoys", rateText(b.GetRate()), rateText(b.GetBurst()))
}

// QuotasText returns divided limits as tables for people.
func QuotasText(r *adminv1.ListQuotasResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "limits and buckets without one: %d; buckets of Envoys: %d; streams: %d\n", r.GetNumber(), r.GetBuckets(), r.GetStreams())
	for _, q := range r.GetQuotas() {
		b.WriteString("\n" + quotaText(q))
	}
	if n := r.GetNumber() - uint64(len(r.GetQuotas())); n > 0 {
		fmt.Fprintf(&b, "\nand %d more: raise --most, or choose fewer\n", n)
	}
	for i, reason := range slices.Sorted(maps.Keys(r.GetRefused())) {
		if i == 0 {
			b.WriteString("\nno assignment, since the start:\n")
		}
		fmt.Fprintf(&b, "%d times: %s\n", r.GetRefused()[reason], printable.Escaped(reason))
	}
	return b.String()
}

func quotaText(q *adminv1.Quota) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", safe(q.GetDomain()), EntriesText(q.GetEntries()))
	if q.GetFile() != "" {
		fmt.Fprintf(&b, "  %s per second, burst %s (%s)\n", rateText(q.GetRate()), rateText(q.GetBurst()), Place(q.GetFile(), q.GetLine()))
		fmt.Fprintf(&b, "demand %s, assigned %s, allowed %s\n", rateText(q.GetDemand()), rateText(q.GetAssigned()), rateText(q.GetAllowed()))
	} else {
		b.WriteString("  no limit is divided\n")
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENVOY\tDEMAND\tSHARE\tRATE\tTOKENS\tUSED\tREPORT\tSTATE")
	for _, s := range q.GetShares() {
		demand, share, rate, tokens, used := "?", "-", "-", "-", "-"
		if s.Demand != nil {
			demand = rateText(s.GetDemand())
		}
		if s.GetTokens() > 0 {
			rate, tokens = rateText(s.GetRate()), strconv.FormatUint(uint64(s.GetTokens()), 10)
			if q.GetRate() > 0 {
				share = fmt.Sprintf("%.0f%%", 100*s.GetRate()/q.GetRate())
			}
			if span := s.GetSpan().AsDuration().Seconds(); span > 0 && s.GetRate() > 0 {
				used = fmt.Sprintf("%.0f%%", 100*float64(s.GetAllowed())/span/s.GetRate())
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", envoyText(s), demand, share, rate, tokens, used,
			s.GetReported().AsDuration().Round(100*time.Millisecond).String()+" ago", stateWords(s, q))
	}
	_ = w.Flush() // to memory
	return b.String()
}

// envoyText returns the name and the address of an Envoy.
func envoyText(s *adminv1.QuotaShare) string {
	switch {
	case s.GetName() == "":
		return safe(s.GetPeer())
	case s.GetPeer() == "":
		return safe(s.GetName())
	}
	return safe(s.GetName()) + " " + safe(s.GetPeer())
}

// watchedQuotaText returns a report or an assignment: "edge-1 10.0.0.1:5000 allowed 40, denied 3 in
// 5s".
func watchedQuotaText(q *adminv1.WatchedQuota) string {
	who := envoyText(&adminv1.QuotaShare{Name: q.GetName(), Peer: q.GetPeer()})
	switch q.GetState() {
	case adminv1.QuotaState_QUOTA_STATE_UNSPECIFIED, adminv1.QuotaState_QUOTA_STATE_NONE:
		who += fmt.Sprintf(" allowed %d, denied %d", q.GetAllowed(), q.GetDenied())
		if q.GetSpan() != nil {
			who += " in " + q.GetSpan().AsDuration().Round(100*time.Millisecond).String()
		}
		if q.GetWhy() != "" {
			who += ", no assignment: " + printable.Escaped(q.GetWhy())
		}
		return who
	case adminv1.QuotaState_QUOTA_STATE_BUCKET:
		return who + fmt.Sprintf(" gets %s per second, %d at once", rateText(q.GetRate()), q.GetTokens())
	default:
		return who + " gets " + QuotaStateName(q.GetState())
	}
}

// QuotaStateName returns a state as people read it, such as deny_all.
func QuotaStateName(s adminv1.QuotaState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "QUOTA_STATE_"))
}

// stateWords returns the state and the remark of a part, and its bucket where the limit has
// several.
func stateWords(s *adminv1.QuotaShare, q *adminv1.Quota) string {
	text := QuotaStateName(s.GetState())
	if s.GetUnacknowledged() {
		text += ", unacknowledged for " + s.GetSent().AsDuration().Round(100*time.Millisecond).String()
	} else if s.GetUnsettled() {
		text += ", changing"
	}
	if entries := EntriesText(s.GetEntries()); entries != EntriesText(q.GetEntries()) {
		text += ", of " + entries
	}
	if s.GetRemark() != "" {
		text += ", " + printable.Escaped(s.GetRemark())
	}
	return text
}

// rateText returns a number with two digits after the point if it is small.
func rateText(n float64) string {
	if n >= 100 {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(n, 'f', 2, 64), "0"), ".")
}

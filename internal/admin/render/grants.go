package render

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Grant returns a grant as a message, with the key that it is for under the rules in force; nil for
// nil. l may be nil: then the message has no key.
func Grant(l *limiter.Limiter, g *limiter.Grant) *adminv1.Grant {
	if g == nil {
		return nil
	}
	out := &adminv1.Grant{
		Id: g.ID, Domain: g.Domain, Limit: g.Limit, Burst: g.Burst, Reason: g.Reason, By: g.By, Rule: g.Rule,
		Until: timestamppb.New(g.Until), GivenAt: timestamppb.New(g.Given), Entries: EntryMessages(g.Entries),
	}
	switch g.Gives {
	case limiter.GivesRequests:
		out.Gives = &adminv1.Grant_RequestsPerUnit{RequestsPerUnit: uint32(g.Requests)}
		if g.Requests > math.MaxUint32 {
			out.Gives = &adminv1.Grant_LargeRequests{LargeRequests: g.Requests}
		}
	case limiter.GivesFactor:
		out.Gives = &adminv1.Grant_Factor{Factor: g.Factor}
	case limiter.GivesUnlimited:
		out.Gives = &adminv1.Grant_Unlimited{Unlimited: true}
	case limiter.GivesAdd:
		out.Gives, out.From = &adminv1.Grant_Add{Add: uint32(g.Requests)}, timestamppb.New(g.From)
		if g.Requests > math.MaxUint32 {
			out.Gives = &adminv1.Grant_LargeAdd{LargeAdd: g.Requests}
		}
		out.Over, _ = Numbers(g.Over)
	}
	if l != nil {
		target, err := l.Grantable(g)
		if out.Key, out.OtherKeys = target.Key, target.Others; err != nil {
			out.WithoutEffect = err.Error()
		}
	}
	return out
}

// Given returns the answer to a grant: the grant, its rule, and its limits before and after.
func Given(l *limiter.Limiter, g *limiter.Grant) *adminv1.GrantResponse {
	out := &adminv1.GrantResponse{Grant: Grant(l, g)}
	target, err := l.Grantable(g)
	if err != nil { // the rules have changed; the grant says so
		return out
	}
	out.Rule = Rule(target.Rule)
	if d := l.Rules().Domain(g.Domain); d != nil && target.Rule == d.Default {
		out.Default, out.NearestMiss = true, NearestMiss(d, g.Entries, target.Rule)
	}
	for i, key := range append([]string{target.Key}, target.Others...) {
		limit := &adminv1.GrantedLimit{Key: key, Name: target.Before[i].Label(), Before: Limit(&target.Before[i])}
		if g.Gives != limiter.GivesUnlimited {
			limit.After = Limit(&target.Limits[i])
		}
		out.Limits = append(out.Limits, limit)
	}
	return out
}

// FromGrant returns a grant as the limiter has it, without the fields that the server sets.
func FromGrant(in *adminv1.Grant) limiter.Grant {
	g := limiter.Grant{
		Domain: in.GetDomain(), Entries: Entries(in.GetEntries()), Limit: in.GetLimit(), Burst: in.GetBurst(),
		Reason: in.GetReason(), By: in.GetBy(),
	}
	if in.GetUntil().IsValid() {
		g.Until = in.GetUntil().AsTime()
	}
	switch gives := in.GetGives().(type) {
	case *adminv1.Grant_RequestsPerUnit:
		g.Gives, g.Requests = limiter.GivesRequests, uint64(gives.RequestsPerUnit)
	case *adminv1.Grant_LargeRequests:
		g.Gives, g.Requests = limiter.GivesRequests, gives.LargeRequests
	case *adminv1.Grant_Factor:
		g.Gives, g.Factor = limiter.GivesFactor, gives.Factor
	case *adminv1.Grant_Unlimited:
		if gives.Unlimited {
			g.Gives = limiter.GivesUnlimited
		}
	case *adminv1.Grant_Add:
		g.Gives, g.Requests = limiter.GivesAdd, uint64(gives.Add)
	case *adminv1.Grant_LargeAdd:
		g.Gives, g.Requests = limiter.GivesAdd, gives.LargeAdd
	}
	return g
}

// GivenText returns a grant that was given as lines of a label and a text.
func GivenText(r *adminv1.GrantResponse) string {
	var b strings.Builder
	line := func(label, text string) { fmt.Fprintf(&b, "%-7s %s\n", label, text) }
	g := r.GetGrant()
	line("grant", printable.Text(g.GetId()))
	line("for", printable.Text(g.GetDomain())+" "+EntriesText(g.GetEntries()))
	if rule := r.GetRule(); r.GetDefault() {
		line("rule", "the domain's default ("+Place(rule.GetFile(), rule.GetLine())+")")
	} else if rule != nil {
		line("rule", rule.GetPath()+" ("+Place(rule.GetFile(), rule.GetLine())+")")
	}
	if why := g.GetWithoutEffect(); why != "" {
		line("key", "without effect: "+printable.Text(why))
	}
	for _, l := range r.GetLimits() {
		line("key", printable.Text(l.GetKey()))
		name := ""
		if len(r.GetRule().GetLimits()) > 1 {
			name = " (--limit " + l.GetName() + ")"
		}
		line("before", LimitText(l.GetBefore())+name)
		if l.GetAfter() == nil {
			line("after", "everything passes")
		} else {
			line("after", LimitText(l.GetAfter()))
		}
	}
	writeGift(&b, g)
	if r.GetDefault() {
		line("warning", "no rule but the default matches these entries: "+printable.Escaped(r.GetNearestMiss().GetWhy()))
	}
	if r.GetNoHits() {
		line("warning", "the key has no hits now: if its client sends requests, the entries may be wrong (sidecar watch shows them)")
	}
	kept := r.GetKept()
	if !r.GetDurable() {
		kept += " (a restart forgets it)"
	}
	fmt.Fprintf(&b, "kept    %s\n", printable.Text(kept))
	if was := r.GetReplaced(); was != nil {
		fmt.Fprintf(&b, "instead of %s: %s until %s\n", printable.Text(was.GetId()), givesText(was), timeText(was.GetUntil()))
	}
	return b.String()
}

// GrantsText returns a list of grants.
func GrantsText(r *adminv1.ListGrantsResponse) string {
	var b strings.Builder
	for _, g := range r.GetGrants() {
		writeGrant(&b, g)
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%d in all, kept %s\n", r.GetNumber(), printable.Text(r.GetKept()))
	return b.String()
}

// RevokedText returns a grant that was revoked.
func RevokedText(r *adminv1.RevokeResponse) string {
	var b strings.Builder
	b.WriteString("revoked\n")
	writeGrant(&b, r.GetGrant())
	if why := r.GetNotKept(); why != "" {
		fmt.Fprintf(&b, "kept    in memory until the process ends, as %s (a restart may bring the grant back)\n", printable.Text(why))
	}
	return b.String()
}

func writeGrant(b *strings.Builder, g *adminv1.Grant) {
	line := func(label, text string) { fmt.Fprintf(b, "%-7s %s\n", label, text) }
	line("grant", printable.Text(g.GetId()))
	line("for", printable.Text(g.GetDomain())+" "+EntriesText(g.GetEntries()))
	switch {
	case g.GetWithoutEffect() != "":
		line("key", "without effect: "+printable.Text(g.GetWithoutEffect()))
	case g.GetKey() != "":
		line("key", printable.Text(g.GetKey()))
		for _, key := range g.GetOtherKeys() {
			line("key", printable.Text(key))
		}
	}
	writeGift(b, g)
}

// writeGift writes the change, the end and the reason of a grant.
func writeGift(b *strings.Builder, g *adminv1.Grant) {
	line := func(label, text string) { fmt.Fprintf(b, "%-7s %s\n", label, text) }
	line("gives", givesText(g))
	line("until", timeText(g.GetUntil()))
	by := ""
	if g.GetBy() != "" {
		by = " (" + printable.Text(g.GetBy()) + ")"
	}
	line("reason", printable.Text(g.GetReason())+by)
}

// grantRemark returns the grant of a limit, in brackets behind the limit.
func grantRemark(g *adminv1.Grant) string {
	if g == nil {
		return ""
	}
	return fmt.Sprintf(" (by grant %s until %s: %s)", printable.Text(g.GetId()), timeText(g.GetUntil()), printable.Text(g.GetReason()))
}

// givesText returns the change by a grant.
func givesText(g *adminv1.Grant) string {
	text := "unlimited"
	switch gives := g.GetGives().(type) {
	case *adminv1.Grant_RequestsPerUnit, *adminv1.Grant_LargeRequests:
		switch n := Number(g.GetRequestsPerUnit(), g.GetLargeRequests()); {
		case n == 0:
			text = "nothing: the key is blocked"
		case strings.HasSuffix(g.GetKey(), "#concurrency"):
			text = fmt.Sprintf("%d at once", n)
		case n == 1:
			text = "1 request per period"
		default:
			text = fmt.Sprintf("%d requests per period", n)
		}
		if g.GetBurst() > 0 {
			text += fmt.Sprintf(", burst %d", g.GetBurst())
		}
	case *adminv1.Grant_Factor:
		text = strconv.FormatFloat(gives.Factor, 'g', -1, 64) + " times the limit"
	case *adminv1.Grant_Add, *adminv1.Grant_LargeAdd:
		text = strconv.FormatUint(Number(g.GetAdd(), g.GetLargeAdd()), 10) + " more in the window that began at " + timeText(g.GetFrom())
		if g.GetOver() > 0 {
			text += ", above " + strconv.FormatUint(uint64(g.GetOver()), 10) + " denied hits that counted"
		}
	}
	if g.GetLimit() != "" {
		text += ", of the limit " + printable.Text(g.GetLimit())
	}
	return text
}

// timeText returns a time to the second, in UTC.
func timeText(t *timestamppb.Timestamp) string { return t.AsTime().Format(time.RFC3339) }

package render

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/descriptors"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// ExplanationText returns the explanation of a request in a domain as lines of a label and a text.
// The state of each key is left out unless states is true.
func ExplanationText(domain string, r *adminv1.ExplainResponse, states bool) string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-7s "+format+"\n", append([]any{label}, args...)...)
	}
	d := r.GetDomain()
	if d == nil {
		line("domain", "%s: has no rules, so nothing is limited; there are %s", domain, and(r.GetKnownDomains()))
	} else {
		line("domain", "%s (%s)", domain, Place(d.GetFile(), d.GetLine()))
	}
	for i, e := range r.GetDescriptors() {
		if i > 0 {
			b.WriteString("\n")
		}
		if e.GetBucket() != nil {
			line("bucket", "%s", bucketText(e.GetBucket()))
		}
		for _, s := range e.GetSteps() {
			line("entry", "%s", stepText(s))
		}
		switch rule := e.GetRule(); {
		case rule == nil && len(e.GetLimits()) > 0:
			line("rule", "none: the limit came with the descriptor")
		case rule == nil && d != nil:
			line("rule", "none, so it is not limited")
		case e.GetDefault():
			line("rule", "the domain's default (%s)", Place(rule.GetFile(), rule.GetLine()))
		case rule != nil:
			line("rule", "%s (%s)%s", rule.GetPath(), Place(rule.GetFile(), rule.GetLine()), remarks(e))
		}
		if m := e.GetNearestMiss(); m != nil {
			line("nearest", "%s", printable.Escaped(m.GetWhy()))
		}
		if g := e.GetGrant(); g != nil && len(e.GetLimits()) == 0 {
			line("grant", "%s", "everything passes"+grantRemark(g))
		}
		for _, l := range e.GetLimits() {
			line("limit", "%s", LimitText(l.GetLimit())+grantRemark(l.GetGrant()))
			if t := l.GetLimit().GetTable(); t != nil {
				line("table", "%s", tableText(t, l.GetLimit().GetTableLine()))
			}
			if t := l.GetLimit().GetPrices(); t != nil {
				without := ""
				if l.GetNoPrice() {
					without = ": no price for the model, so a begin is denied, and an end changes nothing"
				}
				line("prices", "%s%s", t.GetFile(), without)
			}
			scheduleLines(l.GetLimit(), line)
			if l.GetWindowEnd() != "" {
				line("window", "%s to %s", l.GetWindowStart(), l.GetWindowEnd())
			}
			line("key", "%s", l.GetKey())
			if !states {
				continue
			}
			line("now", "%s", stateText(l))
			if n := l.GetBlocks(); n > 0 {
				line("blocks", "%d so far, none now", n)
			}
			if e := l.GetLimit().GetLearned(); e != nil {
				line("learned", "%s", learnedText(l))
			}
			if h := l.GetHolders(); h != nil {
				line("held", "%s", holdersText(h))
				line("holder", "%s", holderText(l.GetHolder(), l.GetHolderStatus()))
			}
		}
	}
	return b.String()
}

// scheduleLines writes a line for each entry of a schedule.
func scheduleLines(l *adminv1.Limit, line func(label, format string, args ...any)) {
	until, held := "", false
	if l.GetScheduleUntil() != "" {
		until = " until " + l.GetScheduleUntil()
	}
	for _, e := range l.GetSchedule() {
		text := e.GetWhen() + ": " + e.GetGives()
		if held = held || e.GetHolds(); e.GetHolds() {
			text += "; holds" + cmp.Or(until, " now")
		}
		line("when", "%s", printable.Text(text))
	}
	if len(l.GetSchedule()) > 0 && !held {
		line("when", "%s", "no entry holds"+until)
	}
}

// ScheduleText returns the schedule of a limit as text, behind a comma; "" without one.
func ScheduleText(l *adminv1.Limit) string {
	var all []string
	for _, e := range l.GetSchedule() {
		all = append(all, e.GetWhen()+": "+e.GetGives())
	}
	if len(all) == 0 {
		return ""
	}
	return ", schedule: " + printable.Text(strings.Join(all, "; "))
}

// LimitText returns a limit as text: "10 per 1s, token_bucket, burst 1000".
func LimitText(l *adminv1.Limit) string {
	text := fmt.Sprintf("%d at once, %s", l.GetRequestsPerUnit(), l.GetAlgorithm())
	if l.GetPeriod() != nil {
		text = fmt.Sprintf("%s per %s, %s", Amount(l, Number(l.GetRequestsPerUnit(), l.GetLargeRequests())), windowText(l), l.GetAlgorithm())
	}
	if aligned := l.GetAlignment(); aligned != "" {
		text += ", align: " + printable.Text(aligned)
	}
	if l.GetBurst() != l.GetRequestsPerUnit() {
		text += ", burst " + Amount(l, uint64(l.GetBurst()))
	}
	if l.GetAtMost() != nil {
		text += ", held at most " + timespan.Format(l.GetAtMost().AsDuration())
		if l.GetGivesBack() {
			text += ", then given back"
		}
	}
	if e := l.GetLearned(); e != nil {
		percent := descriptors.Estimate{Quantile: e.GetQuantile()}.Percent()
		text += fmt.Sprintf(", estimate: learned, covers %s%%, at most %s", percent, Amount(l, uint64(e.GetCeiling())))
	}
	if l.GetCountRejected() {
		text += ", denied hits count too"
	}
	if policy := l.GetOnStoreError(); policy != "" {
		text += ", on store error: " + policy
	}
	if sharing := l.GetSharing(); sharing != "" {
		text += ", sharing: " + sharing
	}
	if place := l.GetOverlay(); place != "" {
		text += ", overlay: " + printable.Text(place)
	}
	if words := l.GetEscalate(); words != "" {
		text += ", escalate: {" + words + "}"
	}
	for n, mark := range l.GetWarnAt() {
		if text += " and "; n == 0 {
			text = strings.TrimSuffix(text, " and ") + ", warns at "
		}
		text += descriptors.MarkText(uint8(mark))
	}
	return text
}

// Amount returns hits of a limit as text: a number, or a decimal number of a budget.
func Amount(l *adminv1.Limit, hits uint64) string {
	if l.GetMoney() {
		return descriptors.Money(hits)
	}
	return strconv.FormatUint(hits, 10)
}

// tableText says where a table has the numbers of a descriptor; line is 0 when the table does not
// have them.
func tableText(t *adminv1.Table, line uint32) string {
	if line == 0 {
		return fmt.Sprintf("%s does not have the value, so the rule's own numbers count", t.GetFile())
	}
	return Place(t.GetFile(), line)
}

// Place returns file:line, or the file when the line is 0.
func Place(file string, line uint32) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

func stepText(s *adminv1.Step) string {
	text := s.GetKey() + "=" + s.GetValue() + ": "
	switch s.GetReason() {
	case "exact":
		text += "exact value"
	case "wildcard":
		text += "wildcard " + s.GetPattern()
	case "match":
		if text += "match " + s.GetPattern(); s.GetWhy() != "" {
			text += ": " + s.GetWhy()
		}
	case "key_only":
		text += "key only"
	case "begin":
		text += "begins a hold"
	case "end":
		text += "ends a hold"
	case "pair":
		text += "begins a hold, or ends it"
	case "usage":
		text += "the tokens"
	case "no_holder":
		text += "the rule has hold, and needs one more entry that names a holder"
	default:
		return text + "no descriptor for it here"
	}
	return text + " (" + Place(s.GetFile(), s.GetLine()) + ")"
}

// remarks returns the special settings of the rule of an explanation, after a colon.
func remarks(e *adminv1.DescriptorExplanation) string {
	var all []string
	add := func(applies bool, remark string) {
		if applies {
			all = append(all, remark)
		}
	}
	r := e.GetRule()
	add(r.GetUnlimited(), "unlimited")
	add(!r.GetUnlimited() && len(r.GetLimits()) == 0, "does not limit")
	add(len(r.GetLimits()) > 0 && len(e.GetLimits()) == 0 && e.GetGrant() == nil, "replaced by another rule of the request")
	add(r.GetShadowMode(), "shadow mode")
	add(r.GetQuotaMode(), "quota mode")
	add(r.GetGroup() != "", "group "+r.GetGroup())
	add(r.GetName() != "", "name "+r.GetName())
	add(len(r.GetReplaces()) > 0, "replaces "+and(r.GetReplaces()))
	add(len(r.GetShareThreshold()) > 0, "shares the count of "+and(r.GetShareThreshold()))
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ")
}

// stateText returns the decision of a limit on the hits of the request, and the source.
func stateText(l *adminv1.LimitExplanation) string {
	reset := "reset after " + waitText(l.GetResetAfter().AsDuration()) + sourceText(l.GetSource())
	left := Amount(l.GetLimit(), Number(l.GetRemaining(), l.GetLargeRemaining()))
	if l.GetDivided() {
		reset += "; this is the part of RLS in a limit that Envoys divide by RLQS"
	}
	if until := l.GetBlockedUntil(); until != nil {
		return fmt.Sprintf("denied%s, %s", blockedText(until), reset)
	}
	if l.GetAllowed() {
		return fmt.Sprintf("allowed, %s left after that, %s", left, reset)
	}
	pass := "the same hits pass in " + waitText(l.GetRetryAfter().AsDuration())
	if l.GetNever() {
		pass = "the same hits never pass"
	}
	return fmt.Sprintf("denied, %s left, %s, %s", left, pass, reset)
}

// blockedText returns the end of a block behind a comma; "" for a key that is not blocked.
func blockedText(until *timestamppb.Timestamp) string {
	if until == nil {
		return ""
	}
	return ", blocked until " + until.AsTime().UTC().Format(time.RFC3339)
}

// learnedText says which estimate the key has learned.
func learnedText(l *adminv1.LimitExplanation) string {
	if l.GetLearnedEstimate() == 0 {
		return "nothing yet, so the estimate is as sent"
	}
	return "a begin holds " + Amount(l.GetLimit(), uint64(min(l.GetLearnedEstimate(), l.GetLimit().GetLearned().GetCeiling())))
}

// sourceText returns the source of a decision behind a comma; "" for the usual sources.
func sourceText(source string) string {
	switch source {
	case "", "memory", "redis":
		return ""
	case "without redis":
		return ", " + source
	}
	return ", by " + printable.Text(source)
}

// waitText returns a wait in whole milliseconds, rounded up: the hits of a request that waits less
// would not pass.
func waitText(d time.Duration) string {
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return d.String()
}

// windowText returns the length of a limit's windows: "1m", and "month" or "3 months" of a
// calendar.
func windowText(l *adminv1.Limit) string {
	switch n := l.GetUnitMultiplier(); {
	case !strings.HasPrefix(l.GetAlignment(), "calendar"):
		return timespan.Format(l.GetPeriod().AsDuration())
	case n > 1:
		return fmt.Sprintf("%d %ss", n, l.GetUnit())
	default:
		return l.GetUnit()
	}
}

// and joins words for a sentence: "a, b and c".
func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

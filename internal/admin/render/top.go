package render

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Bounds of ListTopKeysRequest.most.
const (
	usualTopKeys = 20
	mostTopKeys  = 1000
)

// TopKeys returns the first tracked keys in an order. The error is [limiter.ErrNoTopKeys], or a
// mistake in the request.
func TopKeys(ctx context.Context, l *limiter.Limiter, in *adminv1.ListTopKeysRequest) (*adminv1.ListTopKeysResponse, error) {
	q := limiter.TopQuery{Domain: in.GetDomain(), Path: in.GetRule(), Most: int(in.GetMost())}
	switch {
	case in.GetMost() > mostTopKeys:
		return nil, fmt.Errorf("most: %d: must be from 1 to %d, or 0 for %d", in.GetMost(), mostTopKeys, usualTopKeys)
	case in.GetMost() == 0:
		q.Most = usualTopKeys
	}
	switch in.GetOrder() {
	case adminv1.TopOrder_TOP_ORDER_UNSPECIFIED, adminv1.TopOrder_TOP_ORDER_HITS:
	case adminv1.TopOrder_TOP_ORDER_DENIED:
		q.Order = limiter.ByDenied
	case adminv1.TopOrder_TOP_ORDER_USED:
		q.Order = limiter.ByUsed
	default:
		return nil, fmt.Errorf("order: %d: is not an order", in.GetOrder())
	}
	if w := in.GetWindow(); w != nil {
		if q.Window = w.AsDuration(); q.Window != limiter.ShortWindow && q.Window != limiter.LongWindow {
			return nil, fmt.Errorf("window: %v: must be %s or %s",
				q.Window, timespan.Format(limiter.ShortWindow), timespan.Format(limiter.LongWindow))
		}
	}
	top, err := l.TopKeys(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListTopKeysResponse{Tracked: uint64(top.Tracked), Covers: durationpb.New(top.Covers)}
	for i := range top.Keys {
		out.Keys = append(out.Keys, topKey(&top.Keys[i]))
	}
	return out, nil
}

// topKey returns a key as a message. Texts of clients that are not UTF-8 get U+FFFD in place of the
// wrong bytes.
func topKey(k *limiter.TopKey) *adminv1.TopKey {
	out := &adminv1.TopKey{
		Key: strings.ToValidUTF8(k.Key, "\uFFFD"), Domain: strings.ToValidUTF8(k.Domain, "\uFFFD"), Rule: strings.ToValidUTF8(k.Path, "\uFFFD"),
		Hits: k.Hits, HitsError: k.HitsError, Denied: k.Denied, DeniedError: k.DeniedError,
		Used: k.Used, Current: k.Current, Cut: k.Cut, Entries: EntryMessages(k.Entries),
	}
	out.Remaining, out.LargeRemaining = Numbers(k.Remaining)
	if r := k.Rule; r != nil {
		out.File, out.Line, out.ShadowMode = r.File, uint32(r.Line), r.Shadow && k.Override == nil
	}
	if !k.Cut {
		out.Limit = Limit(&k.Limit)
	}
	if k.Current {
		out.ResetAfter, out.BlockedUntil = durationpb.New(k.ResetAfter), BlockedUntil(time.Now(), k.Blocked)
	}
	if o := k.Override; o != nil {
		out.Override = &adminv1.LimitOverride{RequestsPerUnit: o.Requests, Unit: adminv1.Unit(o.Unit), UnitMultiplier: o.Multiplier}
	}
	return out
}

// TopText returns top keys as a table for people.
func TopText(r *adminv1.ListTopKeysResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tracked keys: %d; hits in %v\n", r.GetTracked(), r.GetCovers().AsDuration().Round(time.Second))
	if len(r.GetKeys()) == 0 {
		b.WriteString("no key has any\n")
		return b.String()
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "HITS\tDENIED\tUSED\tLEFT\tRESET\t")
	for _, k := range r.GetKeys() {
		left, reset := Amount(k.GetLimit(), Number(k.GetRemaining(), k.GetLargeRemaining())), "?"
		if k.GetCurrent() {
			reset = "in " + k.GetResetAfter().AsDuration().Round(time.Second).String()
		}
		used := fmt.Sprintf("%.0f%%", 100*k.GetUsed())
		if k.GetLimit() != nil && k.GetLimit().GetRequestsPerUnit() == 0 { // a ban has nothing to use
			used = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", numberWithError(k.GetHits(), k.GetHitsError()),
			numberWithError(k.GetDenied(), k.GetDeniedError()), used, left, reset)
	}
	_ = w.Flush() // to memory
	lines := strings.SplitAfter(b.String(), "\n")
	b.Reset()
	for i, line := range lines {
		switch line = strings.TrimSuffix(line, "\n"); {
		case i == 0:
			b.WriteString(line + "\n")
		case i == 1:
			b.WriteString(line + "  DOMAIN, DESCRIPTOR AND LIMIT\n")
		case i-2 < len(r.GetKeys()):
			b.WriteString(line + "  " + topKeyText(r.GetKeys()[i-2]) + "\n")
		}
	}
	return b.String()
}

// numberWithError returns a number, and the hits that may be missing.
func numberWithError(n, missing uint64) string {
	if missing == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d+%d?", n, missing)
}

// topKeyText returns a key as match takes it, and its limit.
func topKeyText(k *adminv1.TopKey) string {
	if k.GetCut() {
		return safe(k.GetKey())
	}
	text := safe(k.GetDomain()) + " " + EntriesText(k.GetEntries()) + "  " + LimitText(k.GetLimit())
	if k.GetShadowMode() {
		text += ", shadow mode"
	}
	if k.GetOverride() != nil {
		text += ", by override"
	}
	text += blockedText(k.GetBlockedUntil())
	if k.GetFile() != "" {
		text += " (" + Place(k.GetFile(), k.GetLine()) + ")"
	}
	return text
}

// safe quotes a text of clients that a terminal would not show as it is.
func safe(text string) string {
	if quoted := strconv.QuoteToGraphic(text); quoted != `"`+text+`"` || strings.ContainsAny(text, " \u00a0") {
		return quoted
	}
	return text
}

package render

import (
	"fmt"
	"strings"
	"time"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// HoldersText returns the holders of a descriptor as lines of a label and a text.
func HoldersText(r *adminv1.ListHoldersResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule    %s (%s): begin %s, end %s\n", r.GetRule().GetPath(), Place(r.GetRule().GetFile(), r.GetRule().GetLine()),
		r.GetRule().GetBegin(), r.GetRule().GetEnd())
	for _, l := range r.GetLimits() {
		fmt.Fprintf(&b, "limit   %s\nkey     %s\nheld    %s\n", LimitText(l.GetLimit()), l.GetKey(), numberText(l))
		for _, h := range l.GetHolders() {
			fmt.Fprintf(&b, "holder  %s %s\n", h.GetId(), heldText(h))
		}
		if rest := l.GetNumber() - uint64(len(l.GetHolders())); l.GetListed() && rest > 0 {
			fmt.Fprintf(&b, "        and %d more\n", rest)
		}
	}
	return b.String()
}

// ReleaseText returns a released holder as lines of a label and a text.
func ReleaseText(r *adminv1.ReleaseHolderResponse) string {
	var b strings.Builder
	for _, l := range r.GetLimits() {
		fmt.Fprintf(&b, "limit   %s\nkey     %s\nwas     %s\n", LimitText(l.GetLimit()), l.GetKey(), holderText(l.GetHolder(), l.GetStatus()))
	}
	return b.String()
}

// holdersText returns the number of holders, and the next one to run out.
func holdersText(h *adminv1.Holders) string {
	text := numberText(h)
	if len(h.GetHolders()) > 0 {
		text += "; the next to run out " + heldText(h.GetHolders()[0])
	}
	return text
}

// numberText returns the number of holders.
func numberText(h *adminv1.Holders) string {
	switch {
	case !h.GetListed():
		return "not known: this store does not list the holders of such a limit"
	case h.GetNumber() == 1:
		return "1 holder"
	default:
		return fmt.Sprintf("%d holders", h.GetNumber())
	}
}

// holderText returns a holder and its status.
func holderText(h *adminv1.Holder, s adminv1.HolderStatus) string {
	if s != adminv1.HolderStatus_HOLDER_STATUS_HELD {
		return fmt.Sprintf("%s: %s", h.GetId(), HolderStatus(s))
	}
	return h.GetId() + " " + heldText(h)
}

// heldText returns the hits of a holder and its times.
func heldText(h *adminv1.Holder) string {
	hits := "1 hit"
	if h.GetHits() != 1 {
		hits = fmt.Sprintf("%d hits", h.GetHits())
	}
	return fmt.Sprintf("holds %s since %s, until %s at most", hits, h.GetBegunAt().AsTime().Format(time.RFC3339), h.GetUntil().AsTime().Format(time.RFC3339))
}

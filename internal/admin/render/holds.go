package render

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Entries returns the entries of messages.
func Entries(all []*adminv1.Entry) []descriptors.Entry {
	entries := make([]descriptors.Entry, 0, len(all))
	for _, e := range all {
		entries = append(entries, descriptors.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	return entries
}

// EntryMessages returns entries as messages. Texts that are not UTF-8 get U+FFFD in place of the
// wrong bytes.
func EntryMessages(all []descriptors.Entry) []*adminv1.Entry {
	entries := make([]*adminv1.Entry, 0, len(all))
	for _, e := range all {
		entries = append(entries, &adminv1.Entry{Key: strings.ToValidUTF8(e.Key, "\uFFFD"), Value: strings.ToValidUTF8(e.Value, "\uFFFD")})
	}
	return entries
}

// EntriesText returns entries as [printable.Entries] does.
func EntriesText(all []*adminv1.Entry) string { return printable.Entries(Entries(all)) }

// Holders returns the holders of a limit as a message.
func Holders(h *limiter.LimitHolders) *adminv1.Holders {
	out := &adminv1.Holders{Limit: Limit(&h.Limit), Key: h.Key, Listed: h.Listed, Number: uint64(h.All)}
	for i := range h.Held {
		out.Holders = append(out.Holders, holder(h.Held[i]))
	}
	return out
}

// Release returns a released holder of a limit as a message.
func Release(l *limiter.LimitState) *adminv1.ReleaseHolderResponse_Release {
	out := &adminv1.ReleaseHolderResponse_Release{Limit: Limit(&l.Limit), Key: l.Key}
	out.Holder, out.Status = found(l.Hold)
	return out
}

// found returns a holder as the store found it, and its status.
func found(h *store.Hold) (*adminv1.Holder, adminv1.HolderStatus) {
	if h.Was.Status == algorithms.HoldHeld {
		return holder(store.Held{Holder: h.Holder, Hits: h.Was.Hits, At: h.Was.At, Until: h.Was.Until}), adminv1.HolderStatus_HOLDER_STATUS_HELD
	}
	out := &adminv1.Holder{Id: hex.EncodeToString(h.Holder[:])}
	switch h.Was.Status {
	case algorithms.HoldDenied:
		return out, adminv1.HolderStatus_HOLDER_STATUS_DENIED
	case algorithms.HoldEnded:
		return out, adminv1.HolderStatus_HOLDER_STATUS_ENDED
	default:
		return out, adminv1.HolderStatus_HOLDER_STATUS_UNSPECIFIED
	}
}

func holder(h store.Held) *adminv1.Holder {
	return &adminv1.Holder{Id: hex.EncodeToString(h.Holder[:]), Hits: h.Hits, BegunAt: instant(h.At), Until: instant(h.Until)}
}

// instant returns an instant of a store as a time. The clocks of stores count from the Unix epoch.
func instant(i algorithms.Instant) *timestamppb.Timestamp {
	return timestamppb.New(time.Unix(0, int64(i)))
}

// HolderStatus returns the status of a holder in a word or two.
func HolderStatus(s adminv1.HolderStatus) string {
	switch s {
	case adminv1.HolderStatus_HOLDER_STATUS_HELD:
		return "held"
	case adminv1.HolderStatus_HOLDER_STATUS_DENIED:
		return "denied"
	case adminv1.HolderStatus_HOLDER_STATUS_ENDED:
		return "ended"
	default:
		return "not known"
	}
}

// HoldersText returns the holders of a descriptor as lines of a label and a text.
func HoldersText(r *adminv1.ListHoldersResponse) string {
	var b strings.Builder
	ends := "begin " + r.GetRule().GetBegin() + ", end " + r.GetRule().GetEnd()
	if r.GetRule().GetBegin() == r.GetRule().GetEnd() {
		ends = "pair " + r.GetRule().GetBegin()
	}
	fmt.Fprintf(&b, "rule    %s (%s): %s\n", r.GetRule().GetPath(), Place(r.GetRule().GetFile(), r.GetRule().GetLine()), ends)
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

func holderText(h *adminv1.Holder, s adminv1.HolderStatus) string {
	if s != adminv1.HolderStatus_HOLDER_STATUS_HELD {
		return fmt.Sprintf("%s: %s", h.GetId(), HolderStatus(s))
	}
	return h.GetId() + " " + heldText(h)
}

func heldText(h *adminv1.Holder) string {
	hits := "1 hit"
	if h.GetHits() != 1 {
		hits = fmt.Sprintf("%d hits", h.GetHits())
	}
	return fmt.Sprintf("holds %s since %s, until %s at most", hits,
		h.GetBegunAt().AsTime().Format(time.RFC3339), h.GetUntil().AsTime().Format(time.RFC3339))
}

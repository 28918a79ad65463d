package render

import (
	"encoding/hex"
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

// EntryMessages returns entries as messages. Texts that are not UTF-8 get U+FFFD in place of the wrong
// bytes.
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

// holder returns a holder as a message.
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

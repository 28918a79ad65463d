package render

import (
	"context"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Usage returns how much the keys of a rule have used. The error wraps [limiter.ErrNoUsage].
func Usage(ctx context.Context, l *limiter.Limiter, in *adminv1.ListUsageRequest) (*adminv1.ListUsageResponse, error) {
	found, err := l.Usage(ctx, limiter.UsageQuery{
		Domain: in.GetDomain(), Path: in.GetRule(), Last: in.GetLast(), Most: int(min(in.GetMost(), limiter.MaxAccounts)),
	})
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListUsageResponse{Since: timestamppb.New(found.Since), LeftOut: found.LeftOut}
	for i := range found.Keys {
		k := &found.Keys[i]
		use := &adminv1.KeyUsage{
			Key: strings.ToValidUTF8(k.Key, "\uFFFD"), Entries: EntryMessages(k.Entries), Limit: Limit(&k.Limit),
			Used: k.Used, Of: k.Of, Current: k.Current,
		}
		if !k.Until.IsZero() {
			use.Until = timestamppb.New(k.Until)
		}
		out.Keys = append(out.Keys, use)
	}
	return out, nil
}

// UsageText returns the use of keys as a table for people.
func UsageText(r *adminv1.ListUsageResponse) string {
	var b strings.Builder
	if len(r.GetKeys()) > 0 {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "USED\tOF\tPART\tUNTIL\tDESCRIPTOR AND LIMIT")
		for _, k := range r.GetKeys() {
			used, until := Amount(k.GetLimit(), k.GetUsed()), "-"
			if !k.GetCurrent() {
				used += "?"
			}
			if k.GetUntil() != nil {
				until = timeText(k.GetUntil())
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s  %s\n", used, Amount(k.GetLimit(), k.GetOf()), part(k), until, EntriesText(k.GetEntries()), LimitText(k.GetLimit()))
		}
		_ = w.Flush() // to memory
	}
	fmt.Fprintf(&b, "%d of the keys that this Weir has charged since %s\n", len(r.GetKeys()), timeText(r.GetSince()))
	if n := r.GetLeftOut(); n > 0 {
		fmt.Fprintf(&b, "some keys may be missing: %d times a key, of any rule, got no account or lost it\n", n)
	}
	return b.String()
}

// part returns the used part of a limit, rounded down, so that 100% means that nothing is left.
func part(k *adminv1.KeyUsage) string {
	if k.GetOf() == 0 {
		return "-"
	}
	return strconv.FormatUint(100*k.GetUsed()/k.GetOf(), 10) + "%"
}

// UsageCSV returns the use of keys as CSV, with a line of names.
func UsageCSV(r *adminv1.ListUsageResponse) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"descriptor", "limit", "used", "of", "until", "current"})
	for _, k := range r.GetKeys() {
		until := ""
		if k.GetUntil() != nil {
			until = timeText(k.GetUntil())
		}
		_ = w.Write([]string{
			inert(EntriesText(k.GetEntries())), limitEnd(k.GetKey()), Amount(k.GetLimit(), k.GetUsed()),
			Amount(k.GetLimit(), k.GetOf()), until, strconv.FormatBool(k.GetCurrent()),
		})
	}
	w.Flush() // to memory
	return b.String()
}

// limitEnd returns the end of a key that names its limit, as --limit of grant takes it.
func limitEnd(key string) string {
	return printable.Text(key[strings.LastIndexByte(key, '#')+1:])
}

// inert puts a quote before a text that a spreadsheet would run as a formula.
func inert(text string) string {
	if text != "" && strings.ContainsRune("=+-@", rune(text[0])) {
		return "'" + text
	}
	return text
}

package grants

import (
	"context"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/weirproxy/weir/pkg/limiter"
)

// audit logs a change by an operator.
func (k *Keeper) audit(ctx context.Context, text string, g *limiter.Grant, more ...slog.Attr) {
	attrs := append(Attrs(g), more...)
	k.options.Logger.LogAttrs(ctx, slog.LevelWarn, text, attrs...) //nolint:sloglint // the callers have constant texts
}

// Of lines about single grants, linesAtOnce pass at once, and then one each linesEvery. Files,
// Redis and other processes can change many grants at a time.
const (
	linesAtOnce = 20
	linesEvery  = time.Second
)

// logOne logs a change of a grant that no operator made here and now.
func (k *Keeper) logOne(ctx context.Context, text string, g *limiter.Grant) {
	missed, ok := k.single.DueOf(linesAtOnce, linesEvery)
	if !ok {
		return
	}
	attrs := Attrs(g)
	if missed > 0 {
		attrs = append(attrs, slog.Uint64("not_logged", missed))
	}
	k.options.Logger.LogAttrs(ctx, slog.LevelInfo, text, attrs...) //nolint:sloglint // the callers have constant texts
}

// Attrs returns a grant as attributes of a log line.
func Attrs(g *limiter.Grant) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("grant", g.ID), slog.String("domain", harmless(g.Domain)),
		slog.String("descriptor", descriptor(g.Entries)), slog.String("rule", g.Rule),
	}
	if g.Limit != "" {
		attrs = append(attrs, slog.String("limit", g.Limit))
	}
	switch g.Gives {
	case limiter.GivesUnlimited:
		attrs = append(attrs, slog.Bool("unlimited", true))
	case limiter.GivesAdd:
		attrs = append(attrs, slog.Uint64("add", g.Requests))
	case limiter.GivesFactor:
		attrs = append(attrs, slog.Float64("factor", g.Factor))
	case limiter.GivesRequests:
		attrs = append(attrs, slog.Uint64("requests", g.Requests))
		if g.Burst > 0 {
			attrs = append(attrs, slog.Uint64("burst", uint64(g.Burst)))
		}
	}
	return append(attrs, slog.Time("until", g.Until), slog.String("reason", g.Reason), slog.String("by", g.By))
}

// descriptor returns entries in the form of an argument of commands, such as
// "path=/search,client_id=c1". Other log lines have that form too.
func descriptor(entries []limiter.Entry) string {
	value, key := strings.NewReplacer(`\`, `\\`, `,`, `\,`), strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`)
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = harmless(key.Replace(e.Key) + "=" + value.Replace(e.Value))
	}
	return strings.Join(parts, ",")
}

// harmless returns a text with U+FFFD in place of each character that a terminal may obey when it
// shows the log.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

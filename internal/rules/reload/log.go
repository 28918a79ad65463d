package reload

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Bounds of the lines about one reload.
const (
	maxLines = 100 // mistakes, warnings or domains
	maxPaths = 20  // rules of a domain
)

// texts is a list in a log: a JSON log shows the texts, a text log their number, after a line for
// each of them.
type texts []string

// MarshalJSON returns the texts.
func (t texts) MarshalJSON() ([]byte, error) { return json.Marshal([]string(t)) }

// MarshalText returns the number of texts.
func (t texts) MarshalText() ([]byte, error) { return fmt.Append(nil, len(t)), nil }

// logEach logs a line for each text, up to maxLines, before the line about all of them.
func (r *Reloader) logEach(ctx context.Context, level slog.Level, message, key string, all []string) {
	for _, text := range all[:min(len(all), maxLines)] {
		r.options.Logger.LogAttrs(ctx, level, message, slog.String(key, text)) //nolint:sloglint // callers pass constants
	}
}

// logRefused logs why rules were refused.
func (r *Reloader) logRefused(ctx context.Context, refusal error, attrs ...slog.Attr) {
	all := reasons(refusal)
	r.logEach(ctx, slog.LevelError, "rule mistake", "error", all)
	r.options.Logger.LogAttrs(ctx, slog.LevelError, "rules refused", append([]slog.Attr{slog.Any("errors", texts(all))}, attrs...)...)
}

// logLoaded logs which rules came into force, and how they differ from the rules before, nil for
// the first rules.
func (r *Reloader) logLoaded(ctx context.Context, rules, before *descriptors.Rules) {
	status := r.Status()
	attrs := []slog.Attr{
		slog.Int("files", len(r.files)), slog.Int("domains", len(rules.Domains())), slog.Int("rules", rules.Count()),
		slog.String("hash", status.Hash),
	}
	if r.options.Pushed {
		attrs = append(attrs, slog.Int("pushed", len(r.pushed)))
	}
	r.options.Logger.LogAttrs(ctx, slog.LevelInfo, "rules loaded", attrs...)
	if before != nil {
		r.logChanges(ctx, rules.Since(before))
	}
	if len(status.Warnings) > 0 {
		r.logEach(ctx, slog.LevelWarn, "rule warning", "warning", status.Warnings)
		r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rules have warnings", slog.Any("warnings", texts(status.Warnings)))
	}
}

// logChanges logs a line for each domain whose rules changed, and at WARN another one when it lost
// rules.
func (r *Reloader) logChanges(ctx context.Context, changes []descriptors.Change) {
	for i, c := range changes {
		if i == maxLines {
			r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rules changed in more domains", slog.Int("domains", len(changes)-i))
			return
		}
		domain := slog.String("domain", c.Domain)
		if len(c.Added)+len(c.Changed) > 0 {
			r.options.Logger.LogAttrs(ctx, slog.LevelInfo, "rules changed", domain, paths("added", c.Added), paths("changed", c.Changed))
		}
		if len(c.Removed) > 0 {
			r.options.Logger.LogAttrs(ctx, slog.LevelWarn, "rules removed", domain, paths("removed", c.Removed))
		}
	}
}

// paths returns the number of rules and the paths of the first ones.
func paths(key string, all []string) slog.Attr {
	if len(all) > maxPaths {
		all = append(slices.Clone(all[:maxPaths]), fmt.Sprintf("and %d more", len(all)-maxPaths))
	}
	return slog.Any(key, all)
}

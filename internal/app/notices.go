package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Of the lines about notices, noticesAtOnce pass at once, and then one each noticesEvery.
const (
	noticesAtOnce = 20
	noticesEvery  = time.Second
)

func logNotices(logger *slog.Logger) func(*limiter.Notice) {
	marks, begins := new(loglimit.Limiter), new(loglimit.Limiter) // clients choose their models and estimates
	return func(n *limiter.Notice) {
		limit := marks
		if n.Mark == 0 {
			limit = begins
		}
		missed, due := limit.DueOf(noticesAtOnce, noticesEvery)
		if !due {
			return
		}
		attrs := []slog.Attr{
			slog.String("domain", printable.Text(n.Domain)), slog.String("rule", n.Rule.Path), slog.String("key", printable.Text(n.Key)),
		}
		switch {
		case n.Block > 0:
			attrs = append(attrs, slog.String("block", timespan.Format(n.Block)))
		case n.Model != "":
			attrs = append(attrs, slog.String("model", printable.Text(n.Model)))
		case n.Estimate > 0:
			attrs = append(attrs, slog.Uint64("estimate", n.Estimate), slog.Uint64("of", n.Of))
		default:
			attrs = append(attrs, slog.Int("percent", int(n.Mark)), slog.Uint64("used", n.Used), slog.Uint64("of", n.Of))
		}
		attrs = append(attrs, slog.String("limit", render.LimitText(render.Limit(&n.Limit))))
		if !n.Until.IsZero() {
			attrs = append(attrs, slog.Time("until", n.Until.Round(time.Second).UTC()))
		}
		if missed > 0 {
			attrs = append(attrs, slog.Uint64("not_logged", missed))
		}
		switch {
		case n.Block > 0:
			logger.LogAttrs(context.Background(), slog.LevelInfo, "a key is blocked, as it offends again and again", attrs...)
		case n.Model != "":
			logger.LogAttrs(context.Background(), slog.LevelWarn, "a model has no price", attrs...)
		case n.Estimate > 0:
			logger.LogAttrs(context.Background(), slog.LevelWarn, "an estimate above its limit was cut to the limit", attrs...)
		default:
			logger.LogAttrs(context.Background(), slog.LevelInfo, "a key has reached a mark of its limit", attrs...)
		}
	}
}

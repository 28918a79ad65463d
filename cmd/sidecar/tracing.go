package main

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/weirproxy/weir/pkg/tracing"
)

// newTracing returns what sends spans, nil when nobody asked for any.
func newTracing(ctx context.Context, c *config, logger *slog.Logger) (*tracing.Tracing, error) {
	if !c.Tracing {
		return nil, nil //nolint:nilnil // a nil Tracing is one that makes no spans
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	version, _ := versionOf(info)
	return tracing.New(ctx, tracing.Options{
		Service:    "weir",
		Attributes: map[string]string{"service.version": version},
		Ratio:      1,
		Logger:     logger,
	})
}

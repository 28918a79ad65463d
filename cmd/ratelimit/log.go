package main

import (
	"io"
	"log/slog"
	"strings"
)

// newLogger returns the logger, in JSON with the original's names. The server may change the level.
func newLogger(w io.Writer, c *config) *slog.Logger {
	c.Pages.LogLevel = new(slog.LevelVar)
	c.Pages.LogLevel.Set(c.LogLevel)
	o := &slog.HandlerOptions{Level: c.Pages.LogLevel}
	if !c.LogJSON {
		return slog.New(slog.NewTextHandler(w, o))
	}
	o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey:
			a.Key = "@timestamp"
		case slog.MessageKey:
			a.Key = "@message"
		case slog.LevelKey:
			level := strings.ToLower(a.Value.String())
			if level == "warn" {
				level = "warning"
			}
			a.Value = slog.StringValue(level)
		}
		return a
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

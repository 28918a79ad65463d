package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/spelling"
)

// warn logs a missing Redis, and variables that may be misspelled. The service starts all the same:
// platforms pass variables of others.
func warn(logger *slog.Logger, environ []string, backend string) {
	given := make(map[string]string, len(environ))
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		given[name] = text
	}
	if backend == backendMemory && given["BACKEND_TYPE"] == "" {
		logger.Warn("REDIS_URL is not set, so counts are in memory: each replica has its own. Set BACKEND_TYPE=memory if that is meant")
	}
	for _, u := range unknown(given) {
		logger.LogAttrs(context.Background(), slog.LevelWarn, "a variable is unknown, and has no effect", u...)
	}
}

// unknown returns the variables that are in no table, and begin with WEIR_ or are nearly the name
// of one that is. Nearly means that one byte of five differs, and two at most.
func unknown(given map[string]string) (found [][]slog.Attr) {
	var known []string
	for _, g := range table(new(config)) {
		for _, v := range g.variables {
			known = append(known, v.name)
		}
	}
	for name, text := range given {
		if slices.Contains(known, name) || settings.OfKubernetes(name, text) {
			continue
		}
		if meant := spelling.Nearest(name, known, min(2, len(name)/5)); meant != "" {
			found = append(found, []slog.Attr{slog.String("variable", name), slog.String("meant", meant)})
		} else if strings.HasPrefix(name, "WEIR_") {
			found = append(found, []slog.Attr{slog.String("variable", name)})
		}
	}
	slices.SortFunc(found, func(x, y []slog.Attr) int { return strings.Compare(x[0].Value.String(), y[0].Value.String()) })
	return found
}

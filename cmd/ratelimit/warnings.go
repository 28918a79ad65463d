package main

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"

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
// of one that is.
func unknown(given map[string]string) (found [][]slog.Attr) {
	var known []string
	for _, g := range table(new(config)) {
		for _, v := range g.variables {
			known = append(known, v.name)
		}
	}
	for name, text := range given {
		if slices.Contains(known, name) || ofKubernetes(name, text) {
			continue
		}
		if meant := nearest(name, known); meant != "" {
			found = append(found, []slog.Attr{slog.String("variable", name), slog.String("meant", meant)})
		} else if strings.HasPrefix(name, "WEIR_") {
			found = append(found, []slog.Attr{slog.String("variable", name)})
		}
	}
	slices.SortFunc(found, func(x, y []slog.Attr) int { return strings.Compare(x[0].Value.String(), y[0].Value.String()) })
	return found
}

// nearest returns the known name that differs by one byte of five, and by two at most; "" if none
// does.
func nearest(name string, known []string) (meant string) {
	if len(name) > spelling.MaxBytes {
		return ""
	}
	pattern := spelling.New(name)
	shortest := min(2, len(name)/5) + 1
	for _, k := range known {
		if d := pattern.Distance(k); d < shortest {
			meant, shortest = k, d
		}
	}
	return meant
}

// ofKubernetes reports whether Kubernetes sets a variable for a Service.
func ofKubernetes(name, text string) bool {
	return regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`).MatchString(name) ||
		strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

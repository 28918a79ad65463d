package tracing

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
)

// heard is what the SDK has to complain of. It tells no caller: it has one handler of errors and one logger for all.
type heard struct {
	logger *slog.Logger

	mu       sync.Mutex // guards the rest
	starting bool       // complaints are mistakes in the environment, which are kept
	mistakes []error
}

// hear takes what the SDK complains of from now on.
func hear(logger *slog.Logger) *heard {
	h := &heard{logger: logger, starting: true}
	otel.SetErrorHandler(h)
	// At this verbosity it logs errors and nothing else.
	otel.SetLogger(funcr.New(func(_, args string) { h.Handle(errors.New(args)) }, funcr.Options{}))
	return h
}

// startOver returns what was heard so far; from then on it is logged.
func (h *heard) startOver() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starting = false
	return h.mistakes
}

// Handle implements [otel.ErrorHandler].
func (h *heard) Handle(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starting {
		h.mistakes = append(h.mistakes, err)
		return
	}
	h.logger.LogAttrs(context.Background(), slog.LevelWarn, "OpenTelemetry", slog.String("error", err.Error()))
}

package tracing

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
)

// sdkReports takes the errors of the SDK, which has one error handler and one logger per process
// instead of returned errors.
type sdkReports struct {
	logger *slog.Logger

	mu       sync.Mutex // guards the rest
	starting bool       // errors are mistakes in the environment: keep them
	mistakes []error
}

// collectReports takes the errors of the SDK from now on.
func collectReports(logger *slog.Logger) *sdkReports {
	r := &sdkReports{logger: logger, starting: true}
	otel.SetErrorHandler(r)
	// At this verbosity the SDK logs errors only.
	otel.SetLogger(funcr.New(func(_, args string) { r.Handle(errors.New(args)) }, funcr.Options{}))
	return r
}

// logFromNow returns the errors so far, and logs later ones.
func (r *sdkReports) logFromNow() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting = false
	return r.mistakes
}

// Handle implements [otel.ErrorHandler].
func (r *sdkReports) Handle(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting {
		r.mistakes = append(r.mistakes, err)
		return
	}
	r.logger.LogAttrs(context.Background(), slog.LevelWarn, "OpenTelemetry", slog.String("error", err.Error()))
}

package fallback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Defaults and bounds of Options.
const (
	DefaultFailures   = 5
	DefaultFailingFor = 25 * time.Millisecond
	DefaultMinOpen    = 100 * time.Millisecond
	DefaultMaxOpen    = 5 * time.Second
	LongestOpen       = time.Hour
)

// ProbeTimeout is how long Options.Probe has to answer: longer than an attempt to connect, so that
// it can say why that failed.
const ProbeTimeout = 3 * time.Second

// Options configures New. Primary, Local, Probe and Logger must be given.
type Options struct {
	Primary store.Store // must bound its waits itself, and end them a little before the caller's deadline
	Local   store.Store // must never fail, and take any valid limit
	// Probe returns nil if the primary would serve. One goroutine calls Probe, which should wait,
	// while ctx lasts, for a connection that is being made.
	Probe func(ctx context.Context) error
	// Unavailable marks errors of a primary without a connection, which wrap it, for Stats. Nil: Stats
	// has no such errors.
	Unavailable error

	// Answered returns when the primary last completed a round trip, in time for its callers or not.
	// Nil: only requests tell.
	Answered func() time.Time
	// Silent returns how long the primary has owed answers without giving one; 0 as long as that is
	// usual. More than FailingFor opens the breaker. Nil: only requests tell. Each request calls
	// Silent.
	Silent func() time.Duration

	// Fleet returns the number of processes that share the primary. Nil, or less than 1: this one
	// alone. Each request that is decided without the primary calls Fleet.
	Fleet func() int
	// Outbox charges the primary later with the hits that the local store applied. If it is a
	// HoldOutbox, it also tells the primary of holders. Nil: the primary never knows of these.
	Outbox outbox
	// Now returns the instant by the primary's clock, of hits in the Outbox. The local store should
	// keep its windows by the same clock. Nil: this machine's wall clock.
	Now func() algorithms.Instant

	Failures   int           // failures without a success in between that open the breaker; 0 means DefaultFailures
	FailingFor time.Duration // shortest time from the first of these failures to the last; 0 means DefaultFailingFor
	MinOpen    time.Duration // first interval, of which three quarters to all are waited; 0 means DefaultMinOpen
	MaxOpen    time.Duration // longest interval, at most LongestOpen; 0 means DefaultMaxOpen, or MinOpen when that is longer

	Logger *slog.Logger // gets one line per change of the breaker's state
}

// validate returns all mistakes in the options, joined.
func (o *Options) validate() error {
	var errs []error
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"primary", o.Primary == nil},
		{"local", o.Local == nil},
		{"probe", o.Probe == nil},
		{"logger", o.Logger == nil},
	} {
		if part.missing {
			errs = append(errs, fmt.Errorf("%s: must be given", part.name))
		}
	}
	if o.Failures < 0 {
		errs = append(errs, fmt.Errorf("failures: %d: must be at least 1", o.Failures))
	}
	if o.FailingFor < 0 {
		errs = append(errs, fmt.Errorf("failing for: %v: must be more than 0", o.FailingFor))
	}
	if o.MinOpen < 0 || o.MinOpen > LongestOpen {
		errs = append(errs, fmt.Errorf("min open: %v: must be more than 0 and at most %v", o.MinOpen, LongestOpen))
	}
	shortest := o.MinOpen
	if shortest <= 0 || shortest > LongestOpen {
		shortest = DefaultMinOpen
	}
	if o.MaxOpen != 0 && (o.MaxOpen < shortest || o.MaxOpen > LongestOpen) {
		errs = append(errs, fmt.Errorf("max open: %v: must be between min open (%v) and %v", o.MaxOpen, shortest, LongestOpen))
	}
	return errors.Join(errs...)
}

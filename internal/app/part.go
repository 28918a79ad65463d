package app

import (
	"errors"
	"fmt"
)

// Part is a part of a Config that a setting chooses.
type Part string

// The parts that a [PartError] can be about.
const (
	PartGRPC    Part = "grpc"
	PartSocket  Part = "socket"
	PartHTTP    Part = "http"
	PartAdmin   Part = "admin"
	PartDebug   Part = "debug"
	PartMetrics Part = "metrics"
	PartState   Part = "state"
	PartRecord  Part = "record"
)

// PartError is the error of one part of a Config.
type PartError struct {
	Part Part
	Err  error
}

// Error implements error.
func (e *PartError) Error() string { return string(e.Part) + ": " + e.Err.Error() }

// Unwrap returns the error of the part.
func (e *PartError) Unwrap() error { return e.Err }

// Named puts the names of settings in the place of parts in an error of Run.
func Named(err error, settings map[Part]string) error {
	if _, found := errors.AsType[*PartError](err); !found {
		return err
	}
	switch e := err.(type) { //nolint:errorlint // Run joins PartErrors, and wraps none
	case *PartError:
		return fmt.Errorf("%s: %w", settings[e.Part], e.Err)
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, Named(one, settings))
		}
		return errors.Join(all...)
	}
	return err
}

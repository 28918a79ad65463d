package main

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirproxy/weir/internal/timespan"
)

// addDuration adds a flag for a duration. The usage names the value in back quotes.
func addDuration(flags *pflag.FlagSet, to *time.Duration, name string, usual time.Duration, usage string) {
	*to = usual
	flags.Var((*durationFlag)(to), name, usage)
}

// durationFlag is a duration as the value of a flag.
type durationFlag time.Duration

func (f *durationFlag) Set(text string) error {
	d, err := timespan.Parse(text)
	if err != nil {
		return errors.New(err.Error() + timespan.Hint(text))
	}
	*f = durationFlag(d)
	return nil
}

// String returns "" for 0, so that help shows no default.
func (f *durationFlag) String() string {
	if *f == 0 {
		return ""
	}
	return time.Duration(*f).String()
}

func (*durationFlag) Type() string { return "duration" }

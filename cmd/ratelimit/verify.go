package main

import (
	"errors"

	"github.com/weirproxy/weir/pkg/statistics"
)

// verify returns everything that is wrong with what is made of the variables before anything of it is made, so that an operator is
// told of it at once. It reads the files of certificates and opens nothing.
func (c *config) verify() error {
	var errs []error
	if c.GRPCTLS.On {
		errs = append(errs, c.GRPCTLS.files().Check())
	}
	if c.Backend == backendRedis {
		_, _, err := c.redisTargets()
		errs = append(errs, err)
	}
	if c.overXDS() {
		o := c.XDS.options()
		errs = append(errs, lines("xds", o.Check())...)
	}
	if c.Stats.Prometheus != "" {
		errs = append(errs, lines("EXTRA_TAGS", statistics.CollectorOptions{Tags: c.Stats.Tags}.Check())...)
	}
	return errors.Join(errs...)
}

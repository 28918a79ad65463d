package serving

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/xds"
)

// Feed is what brings rules from an xDS server; nil brings none.
type Feed struct {
	client   *xds.Client
	required bool
}

// NewFeed returns what brings rules from an xDS server, and registers its metrics. Where rules are not required, there being none
// is in force until they come.
func NewFeed(o xds.Options, required bool, l *limiter.Limiter, registry prometheus.Registerer) (*Feed, error) {
	client, err := xds.New(o)
	if err != nil {
		return nil, fmt.Errorf("xds: %w", err)
	}
	if err := registry.Register(client); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if !required {
		l.DoWithoutRules(time.Now())
	}
	return &Feed{client, required}, nil
}

// Run brings rules until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f.client.Run(ctx)
}

// Ready returns what tells whether rules have come, and what else must be ready; nil where nothing speaks against it ever.
func (f *Feed) Ready(other func() error) func() error {
	if f == nil || !f.required {
		return other
	}
	return func() error {
		if err := f.client.Ready(); err != nil || other == nil {
			return err
		}
		return other()
	}
}

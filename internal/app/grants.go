package app

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/admin/grants"
	"github.com/weirproxy/weir/pkg/limiter"
)

// keepGrants loads the grants that are kept in Redis or in the directory of the counts, and
// registers the metrics.
func (c *Config) keepGrants(ctx context.Context, l *limiter.Limiter, stores *Stores, registry prometheus.Registerer) (*grants.Keeper, error) {
	o := grants.Options{Limiter: l, Max: c.Grants, Dir: c.State.Dir, Logger: c.Logger}
	if stores.redis != nil {
		o.Redis = stores.redis
	}
	keeper, err := grants.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("grants: %w", err)
	}
	if err := registry.Register(keeper.Metrics()); err != nil {
		keeper.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return keeper, nil
}

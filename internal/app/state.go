package app

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/snapshots"
)

// State is the directory in which counts in memory outlive the process. Without a Dir it is off. A
// State needs a store without Redis.
type State struct {
	Setting string // name of the setting with the directory, for errors
	Dir     string
}

// keepState loads the counts of the process before, and registers the metrics. The result is nil
// without a directory.
func (c *Config) keepState(ctx context.Context, stores *Stores, registry prometheus.Registerer) (*snapshots.Keeper, error) {
	if c.State.Dir == "" {
		return nil, nil //nolint:nilnil // see above
	}
	keeper, err := snapshots.Open(ctx, snapshots.Options{Dir: c.State.Dir, Store: stores.memory, Logger: c.Logger})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.State.Setting, err)
	}
	if err := registry.Register(keeper.Metrics()); err != nil {
		keeper.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return keeper, nil
}

// Check returns an error for a directory beside counts in Redis.
func (s *State) Check(redis bool) error {
	if s.Dir != "" && redis {
		return fmt.Errorf("%s: counts in Redis outlive a restart there: must be off unless counts are in memory", s.Setting)
	}
	return nil
}

package app

import (
	"context"
	"log/slog"

	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/limiter"
)

// fleetSource says where the number of processes that share Redis comes from.
type fleetSource string

// The sources. The zero value is fleetUnknown.
const (
	fleetUnknown    fleetSource = "unknown"    // this process decides as if it were alone
	fleetSetting    fleetSource = "setting"    // StoreOptions.FleetSize
	fleetRemembered fleetSource = "remembered" // the directory of the counts
	fleetCounted    fleetSource = "counted"    // Redis
)

// assume sets the number of processes for as long as Redis has not counted them. Of the setting and
// the number in the directory the larger one counts. Too large a number admits too little, and
// never too much. 0 is not known.
func (s *Stores) assume(setting, remembered int) {
	s.redis.Assume(max(setting, remembered))
	switch {
	case remembered > setting:
		s.fleet = fleetRemembered
	case setting > 0:
		s.fleet = fleetSetting
	default:
		s.fleet = fleetUnknown
	}
}

// follow divides limits among the processes by the requests that each has admitted, while Redis
// does not answer. Denied requests do not count: a flood at one process would take the limits of
// the others. follow also compares the time zones with the other processes, while a rule needs one.
func (s *Stores) follow(l *limiter.Limiter) {
	if s.redis == nil {
		return
	}
	s.redis.Follow(func() uint64 { return l.Requests().OK })
	s.redis.CompareZones(func() string {
		if l.Rules().NeedsZones() {
			return zones.Version
		}
		return ""
	})
}

func (s *Stores) fleetSource() fleetSource {
	if s.redis.Stats().FleetCounted {
		return fleetCounted
	}
	return s.fleet
}

// countedFleet returns the number of processes that share Redis; 0: Redis has not counted them.
func (s *Stores) countedFleet() int {
	if now := s.redis.Stats(); now.FleetCounted {
		return now.Fleet
	}
	return 0
}

// startWithoutRedis says how this process begins if Redis has not answered by now.
func (p *process) startWithoutRedis(ctx context.Context) error {
	if p.stores.redis == nil {
		return nil
	}
	if p.state != nil {
		p.stores.assume(p.Store.FleetSize, p.state.Fleet())
		p.stores.redis.Succeed(p.state.Former())
	}
	if p.stores.Ready() == nil {
		return nil
	}
	processes, source := slog.Int("processes", max(1, p.stores.redis.Stats().Fleet)), slog.String("source", string(p.stores.fleetSource()))
	if p.stores.fleetSource() == fleetUnknown {
		p.Logger.LogAttrs(ctx, slog.LevelWarn,
			"redis does not answer at the start, and the number of processes that share it is unknown: this one admits whole limits", processes, source)
		return nil
	}
	p.Logger.LogAttrs(ctx, slog.LevelWarn,
		"redis does not answer at the start: limits are divided by the number of processes that is assumed", processes, source)
	return nil
}

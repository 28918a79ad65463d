package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
)

// inRedis returns a limiter whose counts all processes share. While Redis does not answer, limits
// are counted in memory.
func inRedis(ctx context.Context, url string, logger *slog.Logger) (*limiter.Limiter, func(), error) {
	redis, err := redisstore.New(redisstore.Options{Target: redisstore.Target{URLs: []string{url}}, CountFleet: true, Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	memory, err := memstore.New(memstore.Options{Logger: logger})
	if err != nil {
		redis.Close()
		return nil, nil, err
	}
	states, err := shared.New(shared.Options{Remote: redis, Local: memory, Unavailable: redisstore.ErrUnavailable, Logger: logger})
	if err != nil {
		redis.Close()
		memory.Close()
		return nil, nil, err
	}
	if redis.Connected(ctx) == nil { // else the first requests are decided without Redis
		_ = states.Await(ctx)
	}
	limits, err := limiter.New(states, limiter.Options{})
	return limits, func() { states.Close(); redis.Close(); memory.Close() }, err
}

func TestProcessesOfAGoProgramShareTheirCountsInRedis(t *testing.T) {
	server := parts.RedisFor(t, parts.RedisOptions{})
	shop := descriptors.Source{Name: "shop", Data: []byte("domain: shop\ndescriptors:\n- key: customer\n  rate_limit: {requests_per_unit: 2, unit: hour}\n")}
	for i, allowed := range []bool{true, true, false} { // each one a process
		limits, closeStates, err := inRedis(t.Context(), "redis://"+server.Address(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		_, wrong := limits.Load(shop)
		result, err := limits.Allow(t.Context(), "shop", limiter.Entry{Key: "customer", Value: "alice"})
		if err := errors.Join(wrong, err); err != nil || result.Allowed != allowed {
			t.Errorf("process %d: got %+v and %v, want allowed: %t", i, result, err, allowed)
		}
		closeStates()
	}
}

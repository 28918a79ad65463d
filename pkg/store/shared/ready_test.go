package shared

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// A process that has just started is ready when each shard has answered once, or has failed.
func TestAProcessIsReadyWhenEachShardWasAsked(t *testing.T) {
	for name, outcome := range map[string]error{"answers": nil, "fails": errDown} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, setup{Shards: []string{"a", "b", "c"}, Sick: 1, Probe: func(context.Context) error {
					time.Sleep(2 * time.Second)
					return outcome
				}})
				time.Sleep(time.Second)
				if err := r.Ready(); !errors.Is(err, errUnasked) {
					t.Errorf("a shard was not asked: ready is %v; want %v", err, errUnasked)
				}
				time.Sleep(2 * time.Second)
				if err := r.Ready(); err != nil {
					t.Errorf("each shard was asked: ready is %v", err)
				}
			})
		})
	}
}

// growing is a cluster that knows its three shards when the first one has been asked.
type growing struct {
	remote

	known atomic.Bool
	takes time.Duration // until another shard than the first one answers
}

func (g *growing) Shards() []string {
	if g.known.Load() {
		return []string{"a", "b", "c"}
	}
	return []string{"a"}
}

func (g *growing) Await(_ context.Context, shard int) error {
	if shard > 0 {
		time.Sleep(g.takes)
	}
	g.known.Store(true)
	return nil
}

// A cluster shows its shards with the first answer. The connections to them may take long.
func TestShardsThatTheFirstAnswerShowsAreAskedBeforeAProcessIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := must.Get(memstore.New(memstore.Options{SweepInterval: time.Hour}))(t)
		defer local.Close()
		g := &growing{remote: remote{storetest.Of(&scripted{}), new(setup)}, takes: time.Second}
		s := must.Get(New(Options{Remote: g, Local: local, Logger: slog.New(slog.DiscardHandler)}))(t)
		defer s.Close()
		synctest.Wait()
		if err := s.Ready(); !errors.Is(err, errUnasked) || len(s.Stats().Shards) != 3 {
			t.Errorf("ready is %v, with the shards %+v; want %v, with three", err, s.Stats().Shards, errUnasked)
		}
		began := time.Now()
		if err := s.Await(t.Context()); err != nil || time.Since(began) != g.takes {
			t.Errorf("Await: %v after %v; want an answer of each shard after %v", err, time.Since(began), g.takes)
		}
		synctest.Wait()
		if err := s.Ready(); err != nil || s.State() != Closed {
			t.Errorf("each shard has answered: ready is %v, and the worst shard is %v", err, s.State())
		}
	})
}

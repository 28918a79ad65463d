package server

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/test/parts"
)

// settle writes the clocks of a Redis that has lost nothing, so that parts grow at once.
func settle(t *testing.T, r *parts.Redis) {
	t.Helper()
	run := must.Get(r.Info(t.Context(), "server"))(t)["run_id"]
	var clock []byte
	for _, n := range []int64{time.Now().UnixMilli(), time.Now().UnixMilli(), 0} {
		clock = binary.LittleEndian.AppendUint64(clock, uint64(n))[:len(clock)+6]
	}
	for i := range quotaSlots {
		must.Get(r.Do(t.Context(), "SET", fmt.Sprintf("weir:rlqs:{%d}", i), string(clock)+run))(t)
	}
}

func TestProcessesAtOneRedisDivideALimit(t *testing.T) {
	t.Parallel()
	once(t)
	r := parts.RedisFor(t, parts.RedisOptions{})
	settle(t, r)
	var all []*fixture
	for range 2 {
		s := must.Get(redisstore.New(redisstore.Options{
			Target: redisstore.Target{URLs: []string{"redis://" + r.Address()}}, Logger: slog.New(slog.DiscardHandler),
		}))(t)
		t.Cleanup(s.Close)
		must.Do(t, s.Connected(t.Context()))
		all = append(all, start(t, quotaRules, func(o *Options) { o.GRPCGo, o.Parts = false, s }))
	}
	first, second := all[0].quotas(t), all[1].quotas(t)
	first.report("edge", 1, bucketID("tenant", "acme"))
	first.expect("map[tenant:acme] 22, 96 per 1s")
	second.report("edge", 1, bucketID("tenant", "acme"))
	second.next() // the part that is kept for a process that comes
	parts.Eventually(t, func() string {
		var rates []float64
		for _, f := range all {
			q := f.server.service.quotas
			q.mu.Lock()
			for _, d := range q.divisions {
				rates = append(rates, float64(d.Limit().Rate)/1e9)
			}
			q.mu.Unlock()
		}
		if len(rates) != 2 || rates[0]+rates[1] > 100 || rates[0] < 45 || rates[1] < 45 {
			return fmt.Sprintf("the processes have %v of 100 in a second", rates)
		}
		return ""
	})
}

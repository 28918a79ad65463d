package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/quota"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/test/parts"
)

// partsRedis is a Redis that gives one part to each claim, or fails.
type partsRedis struct {
	mu     sync.Mutex // guards the rest
	part   uint32     // of the rate and of the burst
	err    error
	calls  int
	claims map[string]int // by key
}

func (r *partsRedis) Run(_ context.Context, script string, keys, args []string) (answers []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	switch {
	case r.err != nil:
		return nil, r.err
	case script != quota.PartsScript || len(args) != len(keys)+1 || len(args[0]) != 8 || args[1] != "0":
		return nil, fmt.Errorf("a wrong call: %q, %q", keys, args)
	}
	for i, key := range keys[1:] {
		if claim := args[i+2]; len(claim) != 32 || !strings.HasPrefix(key, keys[0]+":") {
			return nil, fmt.Errorf("key %q: a wrong claim: %x", key, claim)
		}
		r.claims[key]++
		b := binary.LittleEndian.AppendUint32(nil, r.part)
		b = binary.LittleEndian.AppendUint32(b, r.part)
		tokens := uint32(0)
		if r.claims[key] == 1 {
			tokens = r.part
		}
		b = binary.LittleEndian.AppendUint32(b, tokens)
		answers = append(answers, string(binary.LittleEndian.AppendUint16(b, 2)))
	}
	return answers, nil
}

func (r *partsRedis) set(part uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.part, r.err = part, err
}

// dividedRules are quotaRules with parts in Redis.
var dividedRules = strings.Replace(quotaRules, "burst: 80}", "burst: 80, sharing: divided}", 1)

func startParts(t *testing.T) (*fixture, *partsRedis) {
	t.Helper()
	once(t)
	r := &partsRedis{part: quota.One / 2, claims: make(map[string]int)}
	return start(t, dividedRules, func(o *Options) { o.GRPCGo, o.Parts = false, r }), r
}

func TestOfALimitInRedisThePartIsDivided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := startParts(t)
		c := f.quotas(t)
		begun := time.Now()
		c.report("edge", 1, bucketID("tenant", "acme"))
		c.expect("map[tenant:acme] 13, 489 per 10s")
		if took := time.Since(begun); took > 50*time.Millisecond {
			t.Errorf("the first assignment came after %v", took)
		}
		r.set(quota.One/10, nil)
		c.expect("map[tenant:acme] 2, 97 per 10s")
		r.set(0, nil)
		c.expect("map[tenant:acme] DENY_ALL")
		r.set(quota.One/2, nil)
		c.until("] 13, 489 per 10s") // after a small one
	})
}

func TestWithoutAnswersOfRedisAPartStaysAndNewLimitsHaveNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := startParts(t)
		c := f.quotas(t)
		c.report("edge", 1, bucketID("tenant", "acme"))
		c.expect("map[tenant:acme] 13, 489 per 10s")
		r.set(quota.One, errors.New("nobody there"))
		for range 30 { // of 5 seconds
			c.report("edge", 500, bucketID("tenant", "acme"))
			c.report("edge", 1, bucketID("tenant", "new"))
			c.expect("map[tenant:acme] 13, 489 per 10s")
		}
		if n := strings.Count(f.logs.String(), "redis does not divide the limits of RLQS"); n < 2 || n > 4 {
			t.Errorf("%d lines about Redis:\n%s", n, f.logs.String())
		}
		if text := scrape(t, f); strings.Contains(text, `weir_rlqs_redis_calls_total{outcome="failed"} 0`) {
			t.Error("no call has failed by the metrics")
		}
		r.set(quota.One/2, nil)
		for range 3 {
			if got := fmt.Sprint(c.next()); strings.Contains(got, "[map[tenant:new] 13,") {
				return
			}
		}
		t.Error("the new limit has no assignment after Redis is back")
	})
}

func TestAStoppedProcessAsksRedisBeforeItSendsOrders(t *testing.T) {
	for name, stop := range map[string]func(q *quotas){
		"a process": func(q *quotas) { q.begun = q.begun.Add(-quota.Dead) },
		"a machine that sleeps": func(q *quotas) { // the clock of the process stands still
			limits := q.limits.(*redisLimits) //nolint:errcheck // startParts has Redis
			limits.wall = limits.wall.Add(-quota.Dead)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, r := startParts(t)
				c := f.quotas(t)
				c.report("edge", 1, bucketID("tenant", "acme"))
				c.expect("map[tenant:acme] 13, 489 per 10s")
				r.set(0, errors.New("nobody there"))
				q := f.server.service.quotas
				q.mu.Lock()
				stop(q)
				q.mu.Unlock()
				c.report("edge", 1, bucketID("tenant", "acme"))
				time.Sleep(time.Second)
				q.mu.Lock()
				for _, d := range q.divisions {
					if l := d.Limit(); d.part.known || l.Rate > 0 && name == "a process" {
						t.Errorf("after a stop of %v the limit is %+v without an answer of Redis", quota.Dead, l)
					}
				}
				q.mu.Unlock()
			})
		})
	}
}

func TestALimitWithoutClientsLeavesRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := startParts(t)
		c := f.quotas(t)
		c.report("edge", 1, bucketID("tenant", "acme"))
		c.next()
		if err := c.CloseSend(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		q := f.server.service.quotas
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, s := range q.limits.(*redisLimits).slots { //nolint:errcheck // startParts has no other
			if len(s.limits) > 0 {
				t.Errorf("%d limits are left", len(s.limits))
			}
		}
		if len(q.divisions) > 0 || len(r.claims) != 1 {
			t.Errorf("%d divisions are left, claims %v", len(q.divisions), r.claims)
		}
	})
}

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
		all = append(all, start(t, dividedRules, func(o *Options) { o.GRPCGo, o.Parts = false, s }))
	}
	first, second := all[0].quotas(t), all[1].quotas(t)
	first.report("edge", 1, bucketID("tenant", "acme"))
	first.expect("map[tenant:acme] 23, 97 per 1s")
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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/quota"
	"github.com/weirproxy/weir/test/parts"
)

// row is loads on the same Envoys, and a fault.
type row struct {
	name      string
	loads     []load
	mayBeOver bool          // docs/rlqs.md says by how much
	every     time.Duration // between two faults; 0: none
	settles   time.Duration // after a fault that the admitted part does not count; 0: all counts
	fault     func(ctx context.Context, w *world, n int) error
}

// load is the requests of a tenant, and its limit.
type load struct {
	what, tenant string
	limit        algorithms.Limit
	rate         func(envoy int, at time.Duration) float64 // requests in a second
}

func bucket(requests, burst uint32, period time.Duration) algorithms.Limit {
	return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: requests, Period: period, Extra: algorithms.Extra{Burst: burst}}
}

func (l *load) limitText() string {
	return fmt.Sprintf("%d per %v, burst %d", l.limit.Requests, l.limit.Period, l.limit.Burst)
}

// rules returns rules with a limit for each tenant.
func (r *row) rules() string {
	var text strings.Builder
	text.WriteString("domain: edge\ndescriptors:\n")
	for _, l := range r.loads {
		fmt.Fprintf(&text, "  - key: tenant\n    value: %s\n    rate_limit: {algorithm: token_bucket, requests_per_unit: %d, period: %v, burst: %d}\n",
			l.tenant, l.limit.Requests, l.limit.Period, l.limit.Burst)
	}
	return text.String()
}

// only returns the load of a row that has one.
func only(what string, rate func(envoy int, at time.Duration) float64) []load {
	return []load{{what, "acme", bucket(1000, 200, time.Second), rate}}
}

// Loads. The sum of one with a hot Envoy is twice the limit of 1000/s.
func hot(first func(at time.Duration) int) func(int, time.Duration) float64 {
	return func(envoy int, at time.Duration) float64 {
		if envoy == first(at) {
			return 1800
		}
		return 200. / (envoys - 1)
	}
}

func steady(time.Duration) int { return 0 }

func moving(at time.Duration) int { return int(at/(30*time.Second)) % envoys }

func each(rate float64) func(int, time.Duration) float64 {
	return func(int, time.Duration) float64 { return rate }
}

// crowd is a tenth of the limit, and after 20 seconds of each minute twice the limit.
func crowd(_ int, at time.Duration) float64 {
	if at%time.Minute < 20*time.Second {
		return 100. / envoys
	}
	return 2000. / envoys
}

// waking has one hot Envoy, and each 6 seconds another one asks for a moment, for the first time.
func waking(envoy int, at time.Duration) float64 {
	if begins := time.Duration(6+6*envoy) * time.Second; envoy == 0 || at > begins && at < begins+time.Second {
		return []float64{1800, 400}[min(envoy, 1)]
	}
	return 0
}

func rows() []row {
	few := load{"2/s on each", "few", bucket(3, 3, time.Second), each(2)}
	rare := load{"2/s on each", "rare", bucket(1, 1, 10*time.Second), each(2)}
	return []row{
		{name: "steady", loads: append(only("one Envoy has 90 % of the load", hot(steady)), few, rare)},
		{name: "moving", loads: only("the hot Envoy changes every 30 s", hot(moving))},
		{name: "crowd", loads: only("from a tenth of the limit to twice the limit, on all", crowd)},
		{name: "waking", loads: only("another Envoy's first request while one has all", waking)},
		{name: "small", loads: []load{few, rare}},
		{
			name: "faults", loads: only("the hot Envoy changes every 30 s; a fault every minute, and 25 s after it do not count", hot(moving)),
			every: time.Minute, settles: quota.TTL + 5*time.Second, fault: inTurn,
		},
		{
			name: "killed", loads: only("an Envoy is killed and started again every 7 s", hot(moving)),
			every: 7 * time.Second, fault: func(ctx context.Context, w *world, n int) error { return w.restartEnvoy(ctx, n%envoys, false) },
		},
		{
			name: "hot", loads: only("an Envoy has a hot restart every 7 s", hot(moving)),
			every: 7 * time.Second, fault: func(ctx context.Context, w *world, n int) error { return w.restartEnvoy(ctx, n%envoys, true) },
		},
		{
			name: "cut", loads: only("a stream is cut every 3 s", hot(moving)),
			every: 3 * time.Second, fault: func(_ context.Context, w *world, n int) error { return w.proxies[n%envoys].Cut() },
		},
		{
			name: "gone", loads: only("an Envoy cannot reach Weir for 12 s of 20", hot(moving)),
			every: 20 * time.Second, fault: func(ctx context.Context, w *world, n int) error {
				w.proxies[n%envoys].HalfOpen()
				drive.Pause(ctx, 12*time.Second)
				w.proxies[n%envoys].Clear()
				return nil
			},
		},
		{
			name: "weir", loads: only("Weir is killed and started again every 25 s, counts in memory", hot(moving)), mayBeOver: true,
			every: 25 * time.Second, fault: func(ctx context.Context, w *world, _ int) error { return w.restartSidecar(ctx) },
		},
		{
			name: "blocked", loads: only("a thread of the hot Envoy is blocked for 500 ms of each second", hot(moving)), mayBeOver: true,
			every: time.Second, fault: func(ctx context.Context, w *world, n int) error {
				return w.block(ctx, moving(time.Duration(n)*time.Second))
			},
		},
		{
			name: "busy", loads: only("an Envoy gets 5 MB of clusters every 10 s", hot(moving)), mayBeOver: true,
			every: 10 * time.Second, fault: func(_ context.Context, w *world, n int) error { return w.occupy(n % envoys) },
		},
		{
			name: "late", loads: only("assignments take 12 s for 30 s of each minute", hot(moving)), mayBeOver: true,
			every: time.Minute, fault: func(ctx context.Context, w *world, _ int) error {
				latency(w.proxies, 12*time.Second)
				drive.Pause(ctx, 30*time.Second)
				latency(w.proxies, 0)
				return nil
			},
		},
	}
}

// inTurn kills an Envoy, restarts one hot, and cuts all streams, in turn.
func inTurn(ctx context.Context, w *world, n int) error {
	switch i := n / 3 % envoys; n % 3 {
	case 0:
		return w.restartEnvoy(ctx, i, false)
	case 1:
		return w.restartEnvoy(ctx, i, true)
	}
	var errs []error
	for _, p := range w.proxies {
		errs = append(errs, p.Cut())
	}
	return errors.Join(errs...)
}

func latency(all []*parts.Proxy, d time.Duration) {
	for _, p := range all {
		p.Latency(d, 0)
	}
}

// block occupies one thread of an Envoy.
func (w *world) block(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := newRequest(ctx, w.urls[i], "acme")
	if err != nil {
		return err
	}
	r.Header.Set("X-Block", "500")
	_, err = clientOf(1).Do(r) //nolint:bodyclose // without a body
	return err
}

// occupy gives an Envoy 5 MB of clusters, or takes them away.
func (w *world) occupy(i int) error {
	const of = `{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","name":"%s","connect_timeout":"1s","type":"STATIC",` +
		`"load_assignment":{"cluster_name":"x","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"127.0.0.1","port_value":1}}}}]}]}}`
	w.versions[i]++
	var clusters []string
	for size := 0; w.versions[i]%2 == 1 && size < 5<<20; {
		text := fmt.Sprintf(of, fmt.Sprintf("cluster-%d-%s", len(clusters), strings.Repeat("x", 200)))
		clusters, size = append(clusters, text), size+len(text)
	}
	return w.writeClusters(i, clusters)
}

// writeClusters moves a file with clusters to the place where an Envoy looks.
func (w *world) writeClusters(i int, clusters []string) error {
	path := w.clusters(i)
	text := fmt.Sprintf(`{"version_info":"%d","resources":[%s]}`, w.versions[i], strings.Join(clusters, ","))
	if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}

func (w *world) clusters(i int) string {
	return filepath.Join(w.dir, fmt.Sprint("clusters-", i, ".json"))
}

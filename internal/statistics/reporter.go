package statistics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// DefaultInterval is the time between two flushes where ReporterOptions has no Interval.
const DefaultInterval = 10 * time.Second

// flushTimeout bounds the dial of a daemon, and then the writes.
const flushTimeout = 5 * time.Second

// ReporterOptions is the options of NewReporter. Address and Logger must be set.
type ReporterOptions struct {
	Address    string            // of StatsD or DogStatsD, host:port
	TCP        bool              // over TCP; else UDP
	Dog        bool              // write DogStatsD, which has tags
	Mogrifiers []Mogrifier       // of DogStatsD: the first that matches a name applies
	Tags       map[string]string // of every metric: for StatsD `.__name=text` after the name, as envoyproxy/ratelimit writes them
	Interval   time.Duration     // between flushes; 0 means DefaultInterval
	Logger     *slog.Logger      // for the first failed flush, and for the first good flush after it
}

// Reporter sends StatsD or DogStatsD the counts since the last flush. A flush that cannot connect
// loses nothing: the next one sends these counts too. UDP does not confirm packets.
type Reporter struct {
	reader  *Reader
	options ReporterOptions
	suffix  string   // of names: the tags of StatsD
	tags    []string // of DogStatsD
	sent    map[string]uint64
	spent   store.Durations // sent
	failing bool
}

// NewReporter returns a reporter. NewReporter starts nothing; the error lists every mistake in the
// options.
func (r *Reader) NewReporter(o ReporterOptions) (*Reporter, error) {
	var errs []error
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		errs = append(errs, fmt.Errorf("address: %w", err))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("logger: must not be nil"))
	}
	if o.Interval < 0 {
		errs = append(errs, fmt.Errorf("interval: %v: must not be negative", o.Interval))
	}
	if o.Dog && o.TCP {
		errs = append(errs, errors.New("DogStatsD: must be over UDP"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	p := &Reporter{reader: r, options: o, sent: make(map[string]uint64)}
	if o.Dog {
		p.tags = environmentTags()
	}
	for _, name := range slices.Sorted(maps.Keys(o.Tags)) {
		if o.Dog {
			p.tags = append(p.tags, dogTag(name, o.Tags[name]))
		} else {
			p.suffix += ".__" + r.clean(name) + "=" + strings.ReplaceAll(r.clean(o.Tags[name]), ".", "_")
		}
	}
	return p, nil
}

// environmentTags returns the tags that every client of DogStatsD takes from the environment.
func environmentTags() []string {
	var tags []string
	for _, of := range [][2]string{
		{"DD_ENTITY_ID", "dd.internal.entity_id"}, {"DD_ENV", "env"}, {"DD_SERVICE", "service"}, {"DD_VERSION", "version"},
	} {
		if value := os.Getenv(of[0]); value != "" {
			tags = append(tags, dogTag(of[1], value))
		}
	}
	return tags
}

// Run flushes every interval until ctx ends, and then once more. Only one Run may run at a time.
func (p *Reporter) Run(ctx context.Context) {
	tick := time.NewTicker(p.options.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.report(context.WithoutCancel(ctx))
			return
		case <-tick.C:
			p.report(ctx)
		}
	}
}

// report flushes, and logs the first failure and the first success after a failure.
func (p *Reporter) report(ctx context.Context) {
	err := p.flush(ctx)
	switch {
	case err != nil && !p.failing:
		p.options.Logger.LogAttrs(ctx, slog.LevelWarn, "metrics are not sent",
			slog.String("address", p.options.Address), slog.String("error", err.Error()))
	case err == nil && p.failing:
		p.options.Logger.LogAttrs(ctx, slog.LevelInfo, "metrics are sent again", slog.String("address", p.options.Address))
	}
	p.failing = err != nil
}

// flush sends the counts since the last flush. Every flush dials, so that a change of the name's
// address has an effect.
func (p *Reporter) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	network := "udp"
	if p.options.TCP {
		network = "tcp"
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, p.options.Address)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(flushTimeout)); err != nil {
		_ = conn.Close() // nothing was written
		return err
	}
	to := p.statsd(conn)
	// From here on the counts are sent, whether they arrive or not: a lost count is better than one
	// that counts twice.
	now := make(map[string]uint64, len(p.sent))
	for name, value := range p.reader.counters() {
		now[name] = value
		if more := value - min(p.sent[name], value); more > 0 {
			to.count(name, more)
		}
	}
	p.sent = now
	for name, value := range p.reader.gauges() {
		to.write(localCache+name, strconv.AppendUint(nil, value, 10), "|g", 1)
	}
	spent := p.reader.options.Spent()
	for _, s := range samples(p.spent, spent) {
		to.time(responseTime, s.took, s.requests)
	}
	p.spent = spent
	return to.close()
}

// sample is a time that several requests took, approximately.
type sample struct {
	took     time.Duration
	requests uint64
}

// samples returns the difference of two snapshots: one sample per bucket. The sum of the samples is
// near the sum of the times, as far as the bounds of the buckets allow.
func samples(before, now store.Durations) []sample {
	var all []sample
	var lower float64
	var below, weighed uint64
	var longest float64 // the sum if every request took the upper bound of its bucket
	for _, upper := range slices.Sorted(maps.Keys(now.Buckets)) {
		until := now.Buckets[upper] - min(before.Buckets[upper], now.Buckets[upper])
		if n := until - min(below, until); n > 0 {
			all = append(all, sample{time.Duration(upper * float64(time.Second)), n})
			longest += upper * float64(n)
			weighed += n
		}
		below, lower = max(below, until), upper
	}
	spent := max(now.Sum-before.Sum, 0).Seconds()
	beyond := now.Count - min(before.Count+weighed, now.Count)
	if beyond > 0 {
		rest := max((spent-longest)/float64(beyond), lower)
		return append(all, sample{time.Duration(rest * float64(time.Second)), beyond})
	}
	for i := range all {
		all[i].took = time.Duration(float64(all[i].took) * min(1, spent/longest))
	}
	return all
}

package statistics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/durations"
)

// DefaultInterval is that of ReporterOptions where none is given.
const DefaultInterval = 10 * time.Second

// patience is how long a collector has to take a connection, and then what there is to tell.
const patience = 5 * time.Second

// ReporterOptions is what NewReporter needs. Address and Logger must be given.
type ReporterOptions struct {
	Address    string            // of StatsD or DogStatsD, host:port
	TCP        bool              // over TCP; else UDP
	Dog        bool              // in the form of DogStatsD, which has tags
	Mogrifiers []Mogrifier       // of DogStatsD: the first one that matches a name counts
	Tags       map[string]string // of everything: for StatsD `.__name=text` behind a name, as the original writes them
	Interval   time.Duration     // between reports; 0 means DefaultInterval
	Logger     *slog.Logger      // for when telling begins to fail, and works again
}

// Reporter tells StatsD or DogStatsD what was counted since it told the last time. A figure that could not be told, as nobody
// took the connection, is told with the next one. Over UDP nobody knows what arrives.
type Reporter struct {
	reader  *Reader
	options ReporterOptions
	suffix  string   // of names: the tags of StatsD
	tags    []string // of DogStatsD
	told    map[string]uint64
	spent   durations.Snapshot // told
	failing bool
}

// NewReporter returns a reporter. It starts nothing. It fails with all that is wrong with the options.
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
		errs = append(errs, errors.New("DogStatsD is told over UDP"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	p := &Reporter{reader: r, options: o, told: make(map[string]uint64)}
	for _, name := range slices.Sorted(maps.Keys(o.Tags)) {
		p.suffix += ".__" + r.clean(name) + "=" + strings.ReplaceAll(r.clean(o.Tags[name]), ".", "_")
		p.tags = append(p.tags, dogTag(name, o.Tags[name]))
	}
	return p, nil
}

// Run reports every interval until ctx ends, and then once more. It must not run twice.
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

// report tells what is new, and logs when that begins to fail or works again.
func (p *Reporter) report(ctx context.Context) {
	err := p.tell(ctx)
	switch {
	case err != nil && !p.failing:
		p.options.Logger.LogAttrs(ctx, slog.LevelWarn, "figures are not told",
			slog.String("address", p.options.Address), slog.String("error", err.Error()))
	case err == nil && p.failing:
		p.options.Logger.LogAttrs(ctx, slog.LevelInfo, "figures are told again", slog.String("address", p.options.Address))
	}
	p.failing = err != nil
}

// tell tells what is new, over a connection of its own: so that a name that has come to stand for another address is found there.
func (p *Reporter) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	network := "udp"
	if p.options.TCP {
		network = "tcp"
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, p.options.Address)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		_ = conn.Close() // nothing was written
		return err
	}
	to, err := p.sink(conn)
	if err != nil {
		_ = conn.Close() // nothing was written
		return err
	}
	// From here on figures count as told, whether they arrive or not: better missed than told twice.
	now := make(map[string]uint64, len(p.told))
	for name, value := range p.reader.counters() {
		now[name] = value
		if more := value - min(p.told[name], value); more > 0 {
			to.count(name, more)
		}
	}
	p.told = now
	spent := p.reader.options.Spent()
	for _, s := range samples(p.spent, spent) {
		to.time(responseTime, s.took, s.times)
	}
	p.spent = spent
	return to.close()
}

// sample is a time that so many requests took, more or less.
type sample struct {
	took  time.Duration
	times uint64
}

// samples returns what two snapshots differ by: one time for each bucket, so that they add up to what was spent as nearly as the
// bounds of the buckets allow.
func samples(before, now durations.Snapshot) []sample {
	var all []sample
	var lower float64
	var below, weighed uint64
	var longest float64 // what the times would add up to if each took all of its bucket
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

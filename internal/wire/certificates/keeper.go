package certificates

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultEvery is the default of Options.Every. Each time a Keeper reads three small files.
const DefaultEvery = time.Second

// Options are the options of Open. Logger must be set.
type Options struct {
	Files  Files
	Every  time.Duration // between reads of the files; 0 means DefaultEvery
	Logger *slog.Logger
}

// Keeper keeps the last valid Set of the files. All methods are safe for concurrent use.
type Keeper struct {
	options Options
	now     atomic.Pointer[Set]
	stop    context.CancelFunc
	stopped chan struct{}

	// For Open, and then for the goroutine of watch.
	tried   fingerprint // the contents of the last attempt
	expired *Set        // the set whose expiry is logged
}

// Open reads the files, and watches them until Close. The error has all mistakes.
func Open(o Options) (*Keeper, error) {
	if o.Logger == nil {
		return nil, errors.New("logger: must not be nil")
	}
	if o.Every <= 0 {
		o.Every = DefaultEvery
	}
	k := &Keeper{options: o, stopped: make(chan struct{})}
	c := o.Files.read()
	set, err := o.Files.parse(c)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	k.tried, k.stop = c.fingerprint(), stop
	k.put(ctx, set)
	go k.watch(ctx)
	return k, nil
}

// Now returns the set in force.
func (k *Keeper) Now() *Set { return k.now.Load() }

// Close ends the watch. The set in force stays.
func (k *Keeper) Close() {
	k.stop()
	<-k.stopped
}

func (k *Keeper) watch(ctx context.Context) {
	defer close(k.stopped)
	tick := time.NewTicker(k.options.Every)
	defer tick.Stop()
	last := k.tried
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := k.options.Files.read()
		seen := c.fingerprint()
		if seen != k.tried && seen == last {
			k.try(ctx, c)
			k.tried = seen
		}
		last = seen
		k.logExpired(ctx)
	}
}

func (k *Keeper) try(ctx context.Context, c contents) {
	set, err := k.options.Files.parse(c)
	if err != nil {
		k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "certificates refused",
			slog.Any("errors", strings.Split(err.Error(), "\n")), slog.String("in_force", "the previous certificates"))
		return
	}
	k.put(ctx, set)
}

func (k *Keeper) put(ctx context.Context, set *Set) {
	k.now.Store(set)
	f := &k.options.Files
	var attrs []slog.Attr
	if set.Certificate != nil {
		attrs = append(attrs, slog.String("certificate", f.Certificate.Path), slog.Time("not_after", set.Certificate.Leaf.NotAfter))
	}
	if set.Authorities != nil {
		attrs = append(attrs, slog.String("authorities", f.Authorities.Path))
	}
	k.options.Logger.LogAttrs(ctx, slog.LevelInfo, "certificates loaded", attrs...)
	k.logExpired(ctx)
}

// logExpired logs once that a certificate has expired. The certificate stays in force: some peers
// do not check the time, and without a certificate all of them would fail.
func (k *Keeper) logExpired(ctx context.Context) {
	set := k.now.Load()
	if set.Certificate == nil || set == k.expired || time.Now().Before(set.Certificate.Leaf.NotAfter) {
		return
	}
	k.expired = set
	k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "certificate has expired",
		slog.String("certificate", k.options.Files.Certificate.Path), slog.Time("not_after", set.Certificate.Leaf.NotAfter))
}

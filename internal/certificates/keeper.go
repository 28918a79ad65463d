package certificates

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultEvery is how often the files are looked at where Options does not say. It costs the reading of three small files.
const DefaultEvery = time.Second

// Options is what Open needs. Logger must be given.
type Options struct {
	Files  Files
	Every  time.Duration // how often the files are looked at; 0 means DefaultEvery
	Logger *slog.Logger
}

// Keeper keeps what the files held when they last were right. All methods are safe for concurrent use.
type Keeper struct {
	options Options
	now     atomic.Pointer[Set]
	stop    context.CancelFunc
	stopped chan struct{}

	// These belong to Open, and then to watch.
	tried   fingerprint // what the last attempt was made of
	expired *Set        // the one that was said to have expired
}

// Open reads the files and looks at them until Close. The error says everything that is wrong with them.
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

// Now returns what is in force.
func (k *Keeper) Now() *Set { return k.now.Load() }

// Close ends the looking. What is in force stays.
func (k *Keeper) Close() {
	k.stop()
	<-k.stopped
}

// watch looks at the files until ctx ends.
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
		k.sayExpired(ctx)
	}
}

// try puts contents in force unless something is wrong with them.
func (k *Keeper) try(ctx context.Context, c contents) {
	set, err := k.options.Files.parse(c)
	if err != nil {
		k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "certificates refused",
			slog.Any("errors", strings.Split(err.Error(), "\n")), slog.String("in_force", "those before"))
		return
	}
	k.put(ctx, set)
}

// put puts a set in force.
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
	k.sayExpired(ctx)
}

// sayExpired logs once for each certificate that its time is over. It is shown all the same: not everybody looks, and to show
// none helps nobody.
func (k *Keeper) sayExpired(ctx context.Context) {
	set := k.now.Load()
	if set.Certificate == nil || set == k.expired || time.Now().Before(set.Certificate.Leaf.NotAfter) {
		return
	}
	k.expired = set
	k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "certificate has expired",
		slog.String("certificate", k.options.Files.Certificate.Path), slog.Time("not_after", set.Certificate.Leaf.NotAfter))
}

package app

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Go 1.25 and later take GOMAXPROCS from the CPU limit of the container, but not GOMEMLIMIT from
// its memory limit.

// limitMemory sets GOMEMLIMIT to 90 % of the container's memory limit, unless GOMEMLIMIT is set.
// Near the limit the collector then works harder, and the kernel does not kill the process. The
// rest is for memory outside of Go's heap.
func limitMemory(ctx context.Context, logger *slog.Logger) {
	limit, err := memlimit.Set(memlimit.WithProvider(memlimit.FromCgroup), memlimit.WithRatio(0.9))
	switch {
	case err != nil: // not in a container, or not on Linux
		logger.LogAttrs(ctx, slog.LevelDebug, "no memory limit found", slog.String("error", err.Error()))
	case limit != math.MaxInt64:
		logger.LogAttrs(ctx, slog.LevelInfo, "memory limit", slog.Int64("bytes", limit))
	}
}

// Garbage between two collections. A store of few keys leaves a few MiB alive. With Go's own goal
// (100 % of the live heap, at least 4 MiB) the garbage of gRPC starts nearly a hundred collections
// a second. A large store gets less garbage, and fits into a container with it. The tables of keys
// hold no pointers, so a collection costs little however large the tables are. GOMEMLIMIT takes the
// garbage back where there is less memory.
const (
	headroom = 32 << 20 // bytes of garbage, however much is alive
	smallest = 64 << 20 // bytes of the whole heap before a collection is worth while
)

// Bounds of the percentage, GOGC, that keeps the headroom.
const (
	minPercent = 20   // from 160 MiB alive on, garbage is a fifth of the live heap
	maxPercent = 1600 // for 4 MiB alive; Go takes less than that as so much
)

// keepHeadroom adjusts GOGC to the live heap after each collection until end, which restores GOGC.
// So a burst, or many rules at the start, that leave much alive at once do not multiply the heap.
// With GOGC in the environment keepHeadroom does nothing. GOMEMLIMIT still holds: near the limit
// the collector runs as often as necessary.
func keepHeadroom() (end func()) {
	if _, set := os.LookupEnv("GOGC"); set {
		return func() {}
	}
	k := keeper{before: debug.SetGCPercent(percentFor(alive()))}
	afterCollections(k.adjust)
	return k.end
}

type keeper struct {
	mu     sync.Mutex // guards ended, and GOGC from the end on
	ended  bool
	before int // GOGC to restore
}

// adjust sets GOGC for the live heap of the last collection, and reports whether to go on.
func (k *keeper) adjust() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ended {
		debug.SetGCPercent(percentFor(alive())) // some microseconds, and the world goes on
	}
	return !k.ended
}

func (k *keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	debug.SetGCPercent(k.before)
}

// afterCollections calls adjust after each collection, from a finalizer, until it returns false.
func afterCollections(adjust func() bool) {
	// The collector finds the object unreachable each time, because only its own finalizer sees the
	// object. The runtime calls a finalizer when the runtime has swept the object's memory. Objects
	// above 32 KiB come first (nextSpanForSweep), so the call comes at once.
	type large [40 << 10]byte
	var again func(*large)
	again = func(object *large) {
		if adjust() {
			runtime.SetFinalizer(object, again)
		}
	}
	runtime.SetFinalizer(new(large), again)
}

// percentFor returns the GOGC with which the collector waits for headroom more bytes, or until the
// heap is worth a collection.
func percentFor(alive uint64) int {
	if alive == 0 {
		return maxPercent
	}
	garbage := max(headroom, smallest-int64(alive))
	return int(min(max(100*garbage/int64(alive), minPercent), maxPercent))
}

// alive returns the bytes from which the collector computes its goal; 0 before the first one.
func alive() uint64 {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/stack:bytes"},
		{Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(samples)
	var sum uint64
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}

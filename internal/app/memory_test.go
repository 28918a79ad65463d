package app

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestTheCollectorWaitsForTheHeadroom(t *testing.T) {
	tests := []struct {
		name  string
		alive uint64
		want  int
	}{
		{"before_the_first_collection", 0, maxPercent},
		{"next_to_nothing", 1 << 20, maxPercent},
		{"8_MiB", 8 << 20, 700},
		{"32_MiB", 32 << 20, 100},
		{"a_million_keys", 64 << 20, 50},
		{"128_MiB", 128 << 20, 25},
		{"much_more_than_the_headroom", 1 << 30, minPercent},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := percentFor(test.alive); got != test.want {
				t.Errorf("percentFor(%d) = %d; want %d", test.alive, got, test.want)
			}
		})
	}
}

func TestAliveSeesTheHeap(t *testing.T) {
	runtime.GC()
	before := alive()
	block := make([]byte, 32<<20)
	runtime.GC()
	if got := alive(); got < before+24<<20 {
		t.Errorf("alive after 32 MiB more: got %d, before %d", got, before)
	}
	runtime.KeepAlive(block)
}

// A burst leaves much alive within a moment. The percentage for little alive would then let the
// heap grow to many times of that.
func TestTheHeadroomFollowsEachCollection(t *testing.T) {
	unsetGOGC(t)
	defer keepHeadroom()()
	var block []byte
	for round := range 20 {
		block = make([]byte, (1+round%2*100)<<20)
		runtime.GC()
		// The runtime calls finalizers soon after a collection.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		for garbage() > max(headroom, smallest-int64(alive()))*5/4 {
			if ctx.Err() != nil {
				t.Fatalf("round %d: with %d MiB alive the collector waits for %d MiB more", round, alive()>>20, garbage()>>20)
			}
			runtime.Gosched()
		}
		cancel()
		runtime.KeepAlive(block)
	}
}

// garbage returns how many bytes the collector waits for beyond the bytes alive.
func garbage() int64 {
	samples := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64()) - int64(samples[1].Value.Uint64())
}

func unsetGOGC(t *testing.T) {
	t.Helper()
	t.Setenv("GOGC", "") // puts it back
	must.Do(t, os.Unsetenv("GOGC"))
}

func TestTheEndOfTheHeadroomRestoresGOGC(t *testing.T) {
	unsetGOGC(t)
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	keepHeadroom()()
	if got := debug.SetGCPercent(123); got != 123 {
		t.Errorf("GOGC after the end: got %d, want it put back", got)
	}
}

package serving

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestTheCollectorWaitsForTheHeadroom(t *testing.T) {
	tests := []struct {
		name  string
		alive uint64
		want  int
	}{
		{"before_the_first_collection", 0, maxPercent},
		{"next_to_nothing", 1 << 20, maxPercent},
		{"8_MiB", 8 << 20, 800},
		{"64_MiB", 64 << 20, 100},
		{"more_than_the_headroom", 1 << 30, minPercent},
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

func TestTheHeadroomEndsWithItsContext(t *testing.T) {
	t.Setenv("GOGC", "") // puts it back
	if err := os.Unsetenv("GOGC"); err != nil {
		t.Fatal(err)
	}
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	keepHeadroom(ctx)
	if got := debug.SetGCPercent(123); got != 123 {
		t.Errorf("GOGC after the end: got %d, want it put back", got)
	}
}

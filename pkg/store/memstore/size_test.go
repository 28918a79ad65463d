package memstore

import (
	"testing"
	"unsafe"
)

func TestShardsDoNotShareCacheLines(t *testing.T) {
	if got := unsafe.Sizeof(shard{}); got%64 != 0 {
		t.Errorf("a shard has %d bytes; want a multiple of 64: add or change a padding", got)
	}
	if got := unsafe.Sizeof(slot{}); got != 40 {
		t.Errorf("a slot has %d bytes; want 40", got)
	}
}

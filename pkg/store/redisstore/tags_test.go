package redisstore

import "testing"

func TestEachSlotHasATag(t *testing.T) {
	for slot, tag := range tagsOfSlots() {
		if got := slotOf("weir:{" + string(tag[:]) + "}:k;1;2;h"); int(got) != slot {
			t.Fatalf("tag %q of slot %d lies in slot %d", tag, slot, got)
		}
	}
}

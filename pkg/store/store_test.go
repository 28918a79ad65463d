package store_test

import (
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestEndsOfHoldersHaveNoEffectOnTheVerdict(t *testing.T) {
	ends := map[string]algorithms.HoldPhase{"end": algorithms.HoldEnd, "begun": algorithms.HoldBegun, "cancel": algorithms.HoldCancel}
	for name, phase := range ends {
		end := store.Charge{Rule: 1, Mode: store.Quota, Hold: &store.Hold{Phase: phase}}
		begin := store.Charge{Rule: 1, Mode: store.Quota, Hold: &store.Hold{Phase: algorithms.HoldBegin}}
		for _, denied := range []bool{true, false} {
			charges := []store.Charge{end, begin}
			decisions := []algorithms.Decision{{Allowed: true}, {Allowed: !denied}}
			if got := store.Admitted(charges, decisions); got == denied {
				t.Errorf("%s and a begin under one quota, begin denied: %v: admitted = %v", name, denied, got)
			}
		}
		shadow := store.Charge{Rule: 2, Mode: store.Quota}
		end.Mode = store.ShadowQuota
		if store.Admitted([]store.Charge{end, shadow}, []algorithms.Decision{{Allowed: true}, {}}) {
			t.Errorf("%s under a shadow quota saves a request whose only quota is over", name)
		}
	}
}

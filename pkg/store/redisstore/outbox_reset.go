package redisstore

import (
	"slices"

	"github.com/weirproxy/weir/pkg/store"
)

// beginReset drops all about the keys of charges that waits here. Until endReset the outbox drops
// refused charges of these keys: a resend could charge a key after the reset.
func (o *outbox) beginReset(charges []store.Charge) {
	o.resetCount.Add(1)
	o.mu.Lock()
	for i := range charges {
		key := string(charges[i].Key)
		if o.resets[key] == nil {
			o.resets[key] = new(resetting)
		}
		o.resets[key].resets++
	}
	before := len(o.again)
	o.again = slices.DeleteFunc(o.again, func(c *call) bool {
		c.drop(o.resets)
		return len(c.charges) == 0
	})
	o.calls -= before - len(o.again)
	o.mu.Unlock()
	o.forget(charges)
}

// endReset ends a beginReset with the same charges, and drops hits that came in between. If the
// reset failed, the dropped hits of its keys are lost.
func (o *outbox) endReset(charges []store.Charge, failed bool) {
	o.forget(charges)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range charges {
		key := string(charges[i].Key)
		r := o.resets[key]
		if failed {
			o.lose(r.dropped)
		}
		r.dropped = 0
		if r.resets--; r.resets == 0 {
			delete(o.resets, key)
		}
	}
}

// forget drops the waiting hits of the keys of charges, which are being reset.
func (o *outbox) forget(charges []store.Charge) {
	for i := range charges {
		sh := o.shard(charges[i].Key)
		sh.mu.Lock()
		for _, d := range slices.Clone(sh.keys[string(charges[i].Key)]) {
			hits := d.waiting()
			d.slots = [deferredSlots]int64{}
			o.tidyLocked(sh, d)
			o.mu.Lock()
			o.resets[string(charges[i].Key)].drop(hits)
			o.mu.Unlock()
		}
		o.forgetHoldsLocked(sh, string(charges[i].Key), false)
		sh.mu.Unlock()
	}
}

func (r *resetting) drop(hits int64) { r.dropped += max(hits, -hits) }

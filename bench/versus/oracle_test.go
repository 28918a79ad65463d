package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

// flood returns requests of one key for three seconds, and the answers of a service that admits so
// many in each window.
func flood(l limit, admits int, seed uint64) (all []drive.Record) {
	random := rand.New(rand.NewPCG(seed, 1))
	at, begun, used := int64(1_800_000_000_300_000_000), int64(0), 0
	for end := at + int64(3*time.Second); at < end; at += random.Int64N(int64(2 * time.Millisecond)) {
		if l.anchored && at-begun >= int64(l.period) {
			begun, used = at, 0
		} else if now := at - at%int64(l.period); !l.anchored && now != begun {
			begun, used = now, 0
		}
		r := drive.Record{Sent: at - random.Int64N(1e6), Received: at + random.Int64N(1e6), Result: drive.Denied}
		if used < admits {
			r.Result, used = drive.Allowed, used+1
		}
		all = append(all, r)
	}
	return all
}

func TestTheOracleFindsAServiceThatLeaksOrIsStrict(t *testing.T) {
	for _, anchored := range []bool{false, true} {
		l := limit{most: 100, period: time.Second, anchored: anchored}
		for seed := range uint64(20) {
			for off, want := range map[int]tally{0: {}, 3: {over: 6}, -4: {under: 8}} { // of the two whole windows at least
				got := judge(l, flood(l, l.most+off, seed))
				if got.over < want.over || got.under < want.under || (got.over > 0) != (off > 0) || (got.under > 0) != (off < 0) {
					t.Errorf("anchored %v, seed %d, %d more than the limit: got %+v; want at least %+v", anchored, seed, off, got, want)
				}
			}
		}
	}
}

func TestARequestThatFailedMayHaveBeenCharged(t *testing.T) {
	l := limit{most: 100, period: time.Second}
	all := flood(l, l.most-4, 1)
	for i := range all {
		if i%5 == 0 {
			all[i].Result = drive.Failed
		}
	}
	if got := judge(l, all); got.over > 0 || got.under > 0 || got.failed == 0 {
		t.Errorf("got %+v; want no blame, as more requests failed than are missing", got)
	}
}

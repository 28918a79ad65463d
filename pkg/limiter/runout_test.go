package limiter_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const runOutRules = `domain: edge
descriptors:
  - key: gives
    rate_limit: {requests_per_unit: 100, unit: day, hold: {begin: b, end: e, at_most: 10m, on_run_out: give_back}}
  - key: keeps
    rate_limit: {requests_per_unit: 100, unit: day, hold: {begin: b, end: e, at_most: 10m, on_run_out: keep}}
  - key: pair
    rate_limit: {requests_per_unit: 100, unit: day, hold: {pair: id, at_most: 10m, on_run_out: give_back}}
`

func TestHeldHitsComeBackWhereTheRuleSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runOutRules)
		ask := f.wants
		ask("gives=a,b=1 hits=60", "OK ok:40/100")
		ask("gives=a,b=2 hits=30", "OK ok:10/100")
		ask("keeps=a,b=1 hits=60", "OK ok:40/100")
		ask("pair=a,id=1 hits=60", "OK ok:40/100")
		ask("gives=a,e=2 hits=20", "OK ok:20/100")
		time.Sleep(10 * time.Minute)
		ask("gives=a,b=3 hits=0", "OK ok:80/100")
		ask("keeps=a,b=3 hits=0", "OK ok:40/100")
		ask("gives=a,e=1 hits=50", "OK ok:30/100") // too late: the whole cost, on top
		ask("pair=a,id=1 hits=50", "OK ok:50/100") // the same, as a begin
		time.Sleep(10 * time.Minute)
		ask("gives=a,b=4 hits=0", "OK ok:30/100")
		ask("pair=a,id=1 hits=20", "OK ok:80/100")
	})
}

func TestAReloadChangesNothingForHoldersThatHold(t *testing.T) {
	const gives = "domain: edge\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 100, unit: day, " +
		"hold: {begin: b, end: e, at_most: 10m, on_run_out: give_back}}}]\n"
	keeps := strings.Replace(gives, ", on_run_out: give_back", "", 1)
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gives)
		ask := f.wants
		ask("k=a,b=1 hits=10", "OK ok:90/100")
		ask("k=a,b=2 hits=20", "OK ok:70/100")
		f.rules(keeps)
		ask("k=a,b=3 hits=30", "OK ok:40/100")
		ask("k=a,e=2 hits=20", "OK ok:40/100")
		f.rules(gives)
		time.Sleep(10 * time.Minute)
		ask("k=a,b=4 hits=0", "OK ok:50/100")
	})
}

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// durable is a Redis that has written its answers to disk.
var durable = []string{"appendonly yes", "appendfsync always"}

func TestAKilledRedisCostsNoErrorAndWhenItIsBackItsCountsGoOn(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{Config: durable})
	f := startFleet(t, urlOf(r.Address()))
	f.awaitState(t, "closed")
	f.holds(t)
	traffic := f.begin(t)
	user := f.use(t, 12, "window", "bucket")
	f.awaitShares(t)

	r.Kill()
	f.awaitState(t, "open")
	traffic.awaitMore(t, 50)
	// Each of the two sidecars has half of the limit.
	for _, key := range []string{"window", "bucket"} {
		if got := f.admitted(t, 2*few, key, "before"); got != few {
			t.Errorf("%s: while Redis is away %d requests passed at two sidecars, want %d", key, got, few)
		}
	}

	if err := r.Restart(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.left(t, few-12, "window", user)
	f.left(t, few-12, "bucket", user)
	f.left(t, 0, "bucket", "before")
	f.holds(t)
	f.finish(t)
}

func TestAStoppedRedisCostsNoErrorAndWhenItGoesOnSoDoItsCounts(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := startFleet(t, urlOf(r.Address()))
	f.awaitState(t, "closed")
	f.holds(t)
	traffic := f.begin(t)
	user := f.use(t, 12, "window", "bucket")
	f.awaitShares(t)

	if err := r.Pause(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitState(t, "open")
	traffic.awaitMore(t, 50)
	// The two sidecars divide the hits that were left.
	if got, want := f.admitted(t, 2*few, "window", user), few-12; got != want {
		t.Errorf("window: while Redis is stopped %d requests passed at two sidecars, want %d", got, want)
	}
	if got := f.admitted(t, 2, "bucket", user); got != 4 {
		t.Errorf("bucket: while Redis is stopped %d of 4 requests passed at two sidecars", got)
	}

	if err := r.Continue(); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.left(t, 0, "window", user)
	f.left(t, few-12-4, "bucket", user)
	f.holds(t)

	// A sidecar need not wait for a Redis that does not answer to end.
	if err := r.Pause(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitState(t, "open")
	f.finish(t)
}

func TestWhatAStoppedRedisWasAskedIsChargedOnce(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := startFleet(t, urlOf(r.Address()))
	f.awaitState(t, "closed")
	f.begin(t)
	user := f.use(t, 4, "window")
	f.awaitShares(t)
	if err := r.Pause(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	// These requests are on their way to Redis, or wait behind such requests, and get their answer
	// without Redis.
	if got := f.admitted(t, 4, "window", user); got != 8 {
		t.Errorf("while Redis is stopped %d of 8 requests passed", got)
	}
	// Redis may still charge a call until the call's deadline, which may be late by a round trip and a
	// millisecond (decision 16). A round trip is shorter than fleetTimeout.
	<-time.After(2 * fleetTimeout)
	if err := r.Continue(); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.left(t, few-4-8, "window", user)
	f.finish(t)
}

func TestARedisThatComesBackEmptyGetsItsCountsBack(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := startFleet(t, urlOf(r.Address()))
	f.awaitState(t, "closed")
	f.begin(t)
	user := f.use(t, 12, "window")

	before := f.opened(t)
	r.Kill()
	f.awaitOpened(t, before)
	if err := r.Restart(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.left(t, few-12, "window", user)
	f.holds(t)
	f.finish(t)
}

func TestScriptsFlushedUnderTrafficAreSentAgainAndNoCountIsWrong(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := startFleet(t, urlOf(r.Address()), patientFleet)
	f.awaitState(t, "closed")
	traffic := f.begin(t)

	away := f.away(t)
	flushing := newTraffic(t, 2, 10*time.Millisecond, func(context.Context, int) string {
		if _, err := r.Do(parts.Soon(t), "SCRIPT", "FLUSH"); err != nil {
			return err.Error()
		}
		return ""
	})
	flushing.awaitMore(t, 20)
	if got := f.admitted(t, 150, "many", "flushed"); got != 200 {
		t.Errorf("%d requests passed, want 200", got)
	}
	flushing.awaitMore(t, 20)
	traffic.awaitMore(t, 50)
	for outcome := range flushing.stop() {
		if outcome != "" {
			t.Errorf("SCRIPT FLUSH: %s", outcome)
		}
	}
	if got := f.away(t); got != away {
		t.Errorf("%d charges were decided without Redis, which was always there", got-away)
	}
	f.holds(t)
	f.finish(t)
}

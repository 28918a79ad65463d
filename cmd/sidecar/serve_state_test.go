package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// take asks n times about one user, and returns the status codes.
func (r *running) take(t *testing.T, n int) (codes []int) {
	t.Helper()
	for range n {
		code, _ := r.post(t, "/json", `{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "x"}]}]}`)
		codes = append(codes, code)
	}
	return codes
}

// stop ends the sidecar as the kubelet does.
func (r *running) stop(t *testing.T) {
	t.Helper()
	raise(t, syscall.SIGTERM)
	r.await(t, "stopped")
	r.awaitEnd(t)
}

// A restart during an outage must not make keys full again.
func TestASidecarThatStartsWithoutRedisGoesOnFromItsDirectory(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	args := []string{
		"--rules", rulesFile(t, rulesOf("5")), "--state-dir", t.TempDir(),
		"--store=redis", "--redis-url=redis://" + redis.Address(), "--redis-timeout=10s",
	}
	r := start(t, args...)
	if diff := cmp.Diff([]int{200, 200, 200}, r.take(t, 3)); diff != "" {
		t.Fatalf("with Redis (-want +got):\n%s", diff)
	}
	r.stop(t)
	redis.Kill()
	r = start(t, args...)
	if diff := cmp.Diff([]int{200, 200, 429}, r.take(t, 3)); diff != "" {
		t.Errorf("after a restart without Redis (-want +got):\n%s", diff)
	}
}

// fleetOf starts that many sidecars with the arguments and a directory each.
func fleetOf(t *testing.T, n int, dirs []string, args ...string) (all []*running) {
	t.Helper()
	for i := range n {
		own := args
		if dirs != nil {
			own = append([]string{"--state-dir", dirs[i]}, args...)
		}
		all = append(all, start(t, own...))
	}
	return all
}

// admitted asks each sidecar n times about one user, and returns how many requests passed in all.
func admitted(t *testing.T, fleet []*running, n int) (passed int) {
	t.Helper()
	for _, r := range fleet {
		passed += strings.Count(fmt.Sprint(r.take(t, n)), "200")
	}
	return passed
}

// wantFleet wants each sidecar to show the number of sidecars and its source.
func wantFleet(t *testing.T, fleet []*running, n int, source string) {
	t.Helper()
	for _, r := range fleet {
		parts.Eventually(t, func() string {
			want := fmt.Sprintf("\nweir_store_fleet_size{source=%q} %d\n", source, n)
			if _, page := r.get(t, "/metrics"); !strings.Contains(page, want) {
				return "/metrics does not say " + want
			}
			return ""
		})
	}
}

// stopAll ends the sidecars, which all get the signal.
func stopAll(t *testing.T, fleet []*running) {
	t.Helper()
	raise(t, syscall.SIGTERM)
	for _, r := range fleet {
		r.awaitEnd(t)
	}
}

const startedWithout = "redis does not answer at the start"

func TestAFleetThatStartsWithoutRedisDividesLimitsByItsSetting(t *testing.T) {
	fleet := fleetOf(t, 4, nil, "--rules", rulesFile(t, rulesOf("12")), "--store=redis", "--redis-url=redis://"+parts.Nowhere(t), "--fleet-size=4")
	wantFleet(t, fleet, 4, "setting")
	if got := admitted(t, fleet, 5); got != 12 {
		t.Errorf("four sidecars admit %d, want the 12 of the limit", got)
	}
	if log := fleet[0].log.String(); strings.Count(log, startedWithout+": limits are divided") != 1 {
		t.Errorf("the log does not say once how the start was:\n%s", log)
	}
}

func TestAFleetThatStartsWithoutRedisDividesLimitsAsBefore(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	var dirs []string
	for range 4 {
		dirs = append(dirs, t.TempDir())
	}
	args := []string{"--rules", rulesFile(t, rulesOf("12")), "--store=redis", "--redis-url=redis://" + redis.Address(), "--redis-timeout=10s"}
	fleet := fleetOf(t, 4, dirs, args...)
	wantFleet(t, fleet, 4, "counted")
	stopAll(t, fleet)
	redis.Kill()
	fleet = fleetOf(t, 4, dirs, args...)
	wantFleet(t, fleet, 4, "remembered")
	if got := admitted(t, fleet, 5); got != 12 {
		t.Errorf("four sidecars admit %d, want the 12 of the limit", got)
	}
}

func TestASidecarThatCannotFindOutItsFleetSaysSo(t *testing.T) {
	fleet := fleetOf(t, 1, nil, "--rules", rulesFile(t, rulesOf("3")), "--store=redis", "--redis-url=redis://"+parts.Nowhere(t))
	wantFleet(t, fleet, 1, "unknown")
	if log := fleet[0].log.String(); strings.Count(log, startedWithout+", and the number of processes that share it is unknown") != 1 {
		t.Errorf("the log does not say once that the size of the fleet is unknown:\n%s", log)
	}
}

func TestARedisThatAnswersCountsTheFleetInPlaceOfTheSetting(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	fleet := fleetOf(t, 1, nil, "--rules", rulesFile(t, rulesOf("3")), "--store=redis", "--redis-url=redis://"+redis.Address(), "--fleet-size=4")
	wantFleet(t, fleet, 1, "counted")
	if log := fleet[0].log.String(); strings.Contains(log, startedWithout) {
		t.Errorf("the log says that Redis was away:\n%s", log)
	}
}

// A key that was blocked stays blocked.
func TestASidecarThatStartsWithoutRedisHasTheLastGrants(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	args := []string{
		"--rules", rulesFile(t, rulesOf("5")), "--state-dir", t.TempDir(),
		"--store=redis", "--redis-url=redis://" + redis.Address(), "--redis-timeout=10s",
	}
	r := start(t, args...)
	if _, err := command(t, "grant", "--server="+r.address["admin tcp"], "test", "user=x", "--block", "--for=1h", "--reason=scraper"); err != nil {
		t.Fatal(err)
	}
	r.stop(t)
	redis.Kill()
	r = start(t, args...)
	if diff := cmp.Diff([]int{429}, r.take(t, 1)); diff != "" {
		t.Errorf("after a restart without Redis (-want +got):\n%s", diff)
	}
}

// A restart during an outage must not lose the hits of the outage, nor tell them twice.
func TestHitsThatRedisWasNotToldOutliveRestarts(t *testing.T) {
	redis := parts.RedisFor(t, parts.RedisOptions{})
	proxy, err := parts.StartProxy(redis.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	args := []string{
		"--rules", rulesFile(t, rulesOf("12")), "--state-dir", t.TempDir(),
		"--store=redis", "--redis-url=redis://" + proxy.Address(), "--redis-timeout=10s",
	}
	r := start(t, args...)
	r.take(t, 2)
	proxy.Down()
	for range 3 {
		if diff := cmp.Diff([]int{200, 200}, r.take(t, 2)); diff != "" {
			t.Fatalf("without Redis (-want +got):\n%s", diff)
		}
		r.stop(t)
		r = start(t, args...)
	}
	if err := proxy.Up(); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, func() string {
		_, page := r.get(t, "/metrics")
		for _, line := range []string{"weir_store_up 1", "weir_store_owed_keys 0", `weir_store_fleet_size{source="counted"}`} {
			if !strings.Contains(page, "\n"+line) {
				return "/metrics does not say " + line
			}
		}
		if !strings.Contains(page, "{source=\"counted\"} 1\n") {
			t.Error("Redis also counts the sidecars before, which could not take themselves out")
		}
		return ""
	})
	r.stop(t)
	r = start(t, "--rules", rulesFile(t, rulesOf("12")), "--store=redis", "--redis-url=redis://"+redis.Address(), "--redis-timeout=10s")
	if diff := cmp.Diff([]int{200, 200, 200, 200, 429}, r.take(t, 5)); diff != "" {
		t.Errorf("Redis does not count the 8 hits of before once (-want +got):\n%s", diff)
	}
}

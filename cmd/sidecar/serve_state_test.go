package main

import (
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

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

func TestKilledSidecarsWithLeasesAdmitNothingTooMany(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	h := startHot(t, urlOf(r.Address()), patientFleet)
	for i := range 3 {
		h.run(1)
		h.replace(t, i%2, urlOf(r.Address()), patientFleet)
	}
	h.run(1)
	h.awaitLeases(t)
	h.traffic.stop()
	h.atMost(t, 100, 0)
}

func TestASidecarThatWakesUpLateSpendsNoExpiredLease(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	h := startHot(t, urlOf(r.Address()), patientFleet)
	for i := range 4 {
		h.run(1)
		// A lease ends within a second, and with its window at the latest.
		for _, step := range []struct {
			signal syscall.Signal
			wait   time.Duration
		}{{syscall.SIGSTOP, time.Second + time.Duration(i)*burst/3}, {syscall.SIGCONT, 0}} {
			if err := h.sidecars[i%2].Signal(step.signal); err != nil {
				t.Fatal(err)
			}
			<-time.After(step.wait)
		}
	}
	h.run(1)
	h.awaitLeases(t)
	h.traffic.stop()
	h.errorless(t)
	h.atMost(t, 100, 0)
}

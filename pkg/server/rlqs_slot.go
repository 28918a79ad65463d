package server

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/quota"
)

// quotaSlot is the limits of one slot.
type quotaSlot struct {
	parts *redisLimits
	clock string        // key of the clock of the records, and with a colon the begin of theirs
	wake  chan struct{} // a limit is new
	calls uint32        // by the goroutine
	last  time.Duration // when the last call began

	limits []*divided // guarded by quotas.mu
}

const (
	partsEvery  = quota.Call / 2  // between two calls of a limit
	partsRarely = 5 * time.Second // the same with many limits and processes
	partsIdle   = time.Hour       // between two calls without limits, so that the clock stays in Redis
	partsWork   = time.Millisecond
)

// claimWork is about the time that Redis needs for a limit.
func claimWork(processes int) time.Duration {
	return 10*time.Microsecond + time.Duration(processes)*5*time.Microsecond
}

func (s *quotaSlot) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run calls Redis until ctx ends.
func (s *quotaSlot) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		for ctx.Err() == nil && s.call(ctx) {
		}
		timer.Reset(partsEvery)
	}
}

// call makes one call for the limits that are due, and reports whether more are due.
func (s *quotaSlot) call(ctx context.Context) (more bool) {
	begun := s.parts.of.now()
	s.calls++
	keys, args, all, more := s.claims()
	if keys == nil {
		return false
	}
	s.last = begun
	ctx, cancel := context.WithTimeout(ctx, quota.Call)
	defer cancel()
	answers, err := s.parts.redis.Run(ctx, quota.PartsScript, keys, args)
	if err == nil && len(answers) != len(all) {
		err = fmt.Errorf("an answer of %d parts to %d claims", len(answers), len(all))
	}
	return s.parts.answered(all, answers, begun, err) && more
}

// claims returns the keys and arguments of a call. The call takes Redis about partsWork, as nobody
// else is served meanwhile.
func (s *quotaSlot) claims() (keys, args []string, all []*divided, more bool) {
	q := s.parts.of
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if len(s.limits) == 0 && s.calls > 1 && now < s.last+partsIdle {
		return nil, nil, nil, false
	}
	keys, args = []string{s.clock}, []string{s.parts.name, "0"}
	work := partsWork
	for _, d := range s.limits {
		part := d.part
		pause := min(max(time.Duration(len(s.limits)*part.Processes())*4*time.Millisecond, partsEvery), partsRarely)
		if part.asked > 0 && now < part.asked+pause && (part.known || now < part.asked+partsEvery) {
			continue
		}
		if work <= 0 {
			return keys, args, all, true
		}
		work -= claimWork(part.Processes())
		part.asked = max(now, 1)
		keys = append(keys, s.clock+":"+d.key)
		args = append(args, string(part.Claim(nil, s.calls, now)))
		part.idle = d.Empty()
		all = append(all, d)
	}
	return keys, args, all, false
}

package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/conformance/cases"
)

// connections bounds the connections of a race.
const connections = 8

// race sends the requests of several clients at once, and counts the admitted ones.
func (p *play) race(ctx context.Context, r *cases.Race) error {
	from, to, err := r.Bounds()
	if err != nil {
		return err
	}
	clients := make([]*client, min(connections, r.Clients))
	for i := range clients {
		if clients[i], err = dial(p.target.address); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	asks := r.Asks()
	var next atomic.Int64
	var mu sync.Mutex
	seen := make(map[uint32]int) // remaining hits of admitted requests
	var admitted, failed uint64
	var example error
	var group sync.WaitGroup
	begin := make(chan struct{})
	for i := range r.Clients {
		c := clients[i%len(clients)]
		group.Go(func() {
			<-begin
			for {
				n := next.Add(1) - 1
				if n >= int64(r.Requests) {
					return
				}
				ask := asks[int(n)%len(asks)]
				request, err := cases.ParseRequest(strings.ReplaceAll(ask, "#", fmt.Sprint(n/int64(max(1, r.Share)))), p.c.Domain, p.fresh)
				if err != nil {
					return
				}
				got := c.ask(ctx, request)
				mu.Lock()
				switch {
				case got.err != nil:
					failed++
					example = got.err
				case got.outcome() == "OK":
					admitted++
					if s := got.response.GetStatuses(); len(s) > 0 {
						seen[s[0].GetLimitRemaining()]++
					}
				default:
				}
				stop := failed > 0 && !r.Errors
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	close(begin)
	group.Wait()
	if failed > 0 && !r.Errors {
		return fmt.Errorf("%d of %d requests failed, such as with: %w", failed, r.Requests, example)
	}
	if admitted < from || admitted > to {
		return fmt.Errorf("want %s of %d requests admitted, got %d", r.Admitted, r.Requests, admitted)
	}
	if r.Sum == "distinct" && uint64(len(seen)) != admitted {
		return fmt.Errorf("want %d different remaining numbers, got %d", admitted, len(seen))
	}
	return nil
}

// drain sends requests all the time, ends the target by SIGTERM, and checks that no request broke
// that the target had.
func (p *play) drain(ctx context.Context, d *cases.Drain) error {
	if p.target.process == nil {
		return errors.New("a drain needs a target that the runner started")
	}
	most, err := time.ParseDuration(d.Longest)
	if err != nil {
		return err
	}
	if d.Health {
		return p.drainHealth(ctx, most)
	}
	request, err := cases.ParseRequest(d.Ask, p.c.Domain, p.fresh)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var answered int
	var broken []error
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range d.Clients {
		c, err := dial(p.target.address)
		if err != nil {
			return err
		}
		defer c.Close()
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got := c.ask(ctx, request)
				mu.Lock()
				if got.err == nil {
					answered++
				} else if !refused(got.err) {
					broken = append(broken, got.err)
				}
				mu.Unlock()
				if got.err != nil {
					return
				}
			}
		})
	}
	pause(ctx, 300*time.Millisecond)
	err = p.terminate(most)
	close(stop)
	group.Wait()
	if answered == 0 {
		return errors.New("no request was answered")
	}
	if len(broken) > 0 {
		return fmt.Errorf("%d requests broke, such as with: %w", len(broken), broken[0])
	}
	return err
}

// refused reports whether a call never reached the target.
func refused(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "connection refused")
}

// terminate sends SIGTERM, and waits for an end with exit code 0.
func (p *play) terminate(most time.Duration) error {
	process := p.target.process
	if err := process.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-process.ended:
	case <-time.After(most):
		return fmt.Errorf("the process still runs %s after SIGTERM", most)
	}
	if process.err != nil {
		return fmt.Errorf("want exit code 0 after SIGTERM, got %w", process.err)
	}
	return nil
}

// drainHealth checks that a watcher of health is told of the end before the connection closes.
func (p *play) drainHealth(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	stream, err := healthpb.NewHealthClient(p.client.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("want SERVING before SIGTERM, got %s", first.GetStatus())
	}
	if err := p.target.process.signal(syscall.SIGTERM); err != nil {
		return err
	}
	next, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("want NOT_SERVING after SIGTERM, got %w", err)
	}
	if next.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		return fmt.Errorf("want NOT_SERVING after SIGTERM, got %s", next.GetStatus())
	}
	return nil
}

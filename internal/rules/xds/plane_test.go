package xds

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/test/parts"
)

const within = 2 * time.Minute

type plane struct {
	*parts.ControlPlane
	t *testing.T
}

const node = "test-node"

func startPlane(t *testing.T, options ...grpc.ServerOption) *plane {
	t.Helper()
	p := must.Get(parts.StartControlPlane(t.Context(), options...))(t)
	t.Cleanup(p.Stop)
	return &plane{p, t}
}

func (p *plane) restart() {
	p.t.Helper()
	if err := p.Restart(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(p.Stop)
}

func (p *plane) set(version string, all ...*ratelimitv3.RateLimitConfig) {
	p.t.Helper()
	if err := p.Set(node, version, all...); err != nil {
		p.t.Fatal(err)
	}
}

// config returns a resource with one limit per hour on the key user; 0 makes it bad.
func config(name, domain string, requests uint32) *ratelimitv3.RateLimitConfig {
	unit := ratelimitv3.RateLimitUnit_HOUR
	if requests == 0 {
		unit = 9
	}
	return &ratelimitv3.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: "user", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: unit, RequestsPerUnit: requests},
	}}}
}

// wire returns a message as it is on the wire with more behind it.
func wire(t *testing.T, m proto.Message, more ...byte) []byte {
	t.Helper()
	data := must.Get(proto.Marshal(m))(t)
	return append(data, more...)
}

type subject struct {
	*Client
	limiter  *limiter.Limiter
	reloader *reload.Reloader
	stop     func()
}

func startClient(t *testing.T, p *plane, o Options) *subject {
	t.Helper()
	w := must.Get(lab.New(nil, memstore.Options{MaxKeys: 100}))(t)
	t.Cleanup(w.Close)
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	r := must.Get(reload.New(reload.Options{Limiter: w.Limiter, Pushed: true, Logger: logger}))(t)
	o.Address, o.Logger = cmp.Or(o.Address, p.Address), logger
	return runClient(t, w.Limiter, r, o)
}

func runClient(t *testing.T, l *limiter.Limiter, r *reload.Reloader, o Options) *subject {
	t.Helper()
	if o.Node.ID == "" {
		o.Node.ID = node
	}
	if o.MinBackoff == 0 {
		o.MinBackoff, o.MaxBackoff = 5*time.Millisecond, 50*time.Millisecond
	}
	o.Push = r.Push
	c := must.Get(New(o))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	s := &subject{c, l, r, func() { cancel(); running.Wait() }}
	t.Cleanup(s.stop)
	return s
}

func (s *subject) inForce() map[string]uint32 {
	all := make(map[string]uint32)
	for _, d := range s.limiter.Rules().Domains() {
		rule := d.Match([]descriptors.Entry{{Key: "user", Value: "x"}})
		all[d.Name] = rule.Limits[0].Requests
	}
	return all
}

func (s *subject) await(t *testing.T, want map[string]uint32) {
	t.Helper()
	eventually(t, func() string {
		if got := s.inForce(); !maps.Equal(got, want) {
			return fmt.Sprintf("rules in force: got %v, want %v", got, want)
		}
		return ""
	})
}

// awaitRequest waits for a request and returns the first one that is it, from the one of the number
// from on, and its number.
func (p *plane) awaitRequest(t *testing.T, from int, what string, is func(parts.XDSRequest) bool) (parts.XDSRequest, int) {
	t.Helper()
	var found parts.XDSRequest
	number := -1
	eventually(t, func() string {
		all := p.Requests()
		for i := from; i < len(all); i++ {
			if is(all[i]) {
				found, number = all[i], i
				return ""
			}
		}
		return fmt.Sprintf("no request that is %s among %d", what, len(all))
	})
	return found, number
}

// eventually polls until done returns "", and fails with the last result of done after too long a
// time.
func eventually(t *testing.T, done func() string) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := done()
		if missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %s: %s", within, missing)
		}
	}
}

// kinds returns the kinds of streams by name: true is delta.
func kinds() map[string]bool { return map[string]bool{"state of the world": false, "delta": true} }

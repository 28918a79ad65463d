package parts

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A ControlPlane is an xDS server in this process, for rules: the snapshot cache and the server of
// go-control-plane, as Envoy Gateway has them. All methods are safe for concurrent use, but Stop
// and Restart are for one goroutine.
type ControlPlane struct {
	Address string           // host:port, the same after a Restart
	Heard   func(XDSRequest) // called with each request as it comes; nil: nobody wants to know. Must be set before the first one

	cache   cachev3.SnapshotCache
	options []grpc.ServerOption
	stop    func()

	mu       sync.Mutex // guards the rest
	requests []XDSRequest
	streams  []metadata.MD
}

// An XDSRequest is the part of a request, of either kind, that tests look at.
type XDSRequest struct {
	Node      *corev3.Node
	Resources []string          // the names in the request; empty means all
	Version   string            // state of the world: of the last response that was accepted
	Initial   map[string]string // delta: versions that the client knows, by resource
	Nonce     string            // "" on the first one of a stream
	Refused   bool
	Refusal   string // the reasons
}

// StartControlPlane serves on a port of 127.0.0.1.
func StartControlPlane(ctx context.Context, options ...grpc.ServerOption) (*ControlPlane, error) {
	p := &ControlPlane{cache: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil), options: options}
	return p, onFreeAddress(func(address string) error {
		p.Address = address
		return p.Restart(ctx)
	})
}

// Restart serves at the same address again, after Stop.
func (p *ControlPlane) Restart(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.Address)
	if err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	serve, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := grpc.NewServer(p.options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(serve, p.cache, serverv3.CallbackFuncs{
		StreamOpenFunc:      p.opened,
		DeltaStreamOpenFunc: p.opened,
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			p.note(XDSRequest{
				Node: r.GetNode(), Resources: r.GetResourceNames(), Version: r.GetVersionInfo(), Nonce: r.GetResponseNonce(),
				Refused: r.GetErrorDetail() != nil, Refusal: r.GetErrorDetail().GetMessage(),
			})
			return nil
		},
		StreamDeltaRequestFunc: func(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			p.note(XDSRequest{
				Node: r.GetNode(), Resources: r.GetResourceNamesSubscribe(), Initial: maps.Clone(r.GetInitialResourceVersions()),
				Nonce: r.GetResponseNonce(), Refused: r.GetErrorDetail() != nil, Refusal: r.GetErrorDetail().GetMessage(),
			})
			return nil
		},
	}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) }) // until stop
	p.stop = sync.OnceFunc(func() {
		cancel()
		g.Stop()
		serving.Wait()
	})
	return nil
}

// Stop breaks all streams and closes the port.
func (p *ControlPlane) Stop() { p.stop() }

// Forget empties the cache, as a process that starts does. Call Stop before.
func (p *ControlPlane) Forget() { p.cache = cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil) }

// Set makes these resources all that there are for a node.
func (p *ControlPlane) Set(node, version string, all ...*ratelimitv3.RateLimitConfig) error {
	resources := make([]types.Resource, 0, len(all))
	for _, c := range all {
		resources = append(resources, c)
	}
	snapshot, err := cachev3.NewSnapshot(version, map[resourcev3.Type][]types.Resource{resourcev3.RateLimitConfigType: resources})
	if err != nil {
		return fmt.Errorf("making a snapshot: %w", err)
	}
	return p.cache.SetSnapshot(context.Background(), node, snapshot)
}

// Requests returns the requests so far.
func (p *ControlPlane) Requests() []XDSRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Streams returns the headers of the streams so far.
func (p *ControlPlane) Streams() []metadata.MD {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.streams)
}

func (p *ControlPlane) opened(ctx context.Context, _ int64, _ string) error {
	headers, _ := metadata.FromIncomingContext(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = append(p.streams, headers)
	return nil
}

func (p *ControlPlane) note(r XDSRequest) {
	if p.Heard != nil {
		p.Heard(r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r)
}

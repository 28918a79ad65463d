package xds

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Of a connection. A server of gRPC takes more than one ping in five minutes for an attack unless it is told otherwise; that the
// other side is gone without a word TCP's own keepalive finds out earlier.
const (
	pingAfter    = 5 * time.Minute // without anything heard
	pingTimeout  = 20 * time.Second
	leastConnect = 10 * time.Second // that an attempt to connect may take
)

// dial opens a stream on a connection of its own, so that each attempt reads the certificates and resolves the name again.
func (c *Client) dial(ctx context.Context) (conversation, func(), error) {
	o := &c.options
	secure := insecure.NewCredentials()
	if o.TLS != nil {
		config, err := o.TLS.config()
		if err != nil {
			return nil, nil, err
		}
		secure = credentials.NewTLS(config)
	}
	connection, err := grpc.NewClient(o.Address,
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: leastConnect}), // no backoff: it is used once
		grpc.WithDisableServiceConfig(),                                             // which a name server could send
		grpc.WithUserAgent(c.node.GetUserAgentName()),
	)
	if err != nil {
		return nil, nil, err
	}
	end := func() { _ = connection.Close() } // fails when it is closed already
	for _, h := range o.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, h.Name, h.Value)
	}
	talk, err := c.open(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(connection))
	if err != nil {
		end()
		return nil, nil, err
	}
	return talk, end, nil
}

// open opens a stream of the kind that was asked for.
func (c *Client) open(ctx context.Context, service discoveryv3.AggregatedDiscoveryServiceClient) (conversation, error) {
	if c.options.Delta {
		stream, err := service.DeltaAggregatedResources(ctx)
		return &delta{client: c, stream: stream}, err
	}
	stream, err := service.StreamAggregatedResources(ctx)
	return &sotw{client: c, stream: stream}, err
}

// explain says what an error of receiving means where gRPC's own words leave that open. A control plane may have run out of something
// too; only the words, which are gRPC's of this side, tell a response that is too large for us from that.
func (c *Client) explain(err error) error {
	s := status.Convert(err)
	if s.Code() == codes.ResourceExhausted && strings.HasPrefix(s.Message(), "grpc: ") && strings.Contains(s.Message(), "larger than max") {
		return fmt.Errorf("a response may have at most %d bytes here (%s): %w", c.options.MaxMessageBytes, c.options.MaxMessageSetting, err)
	}
	return err
}

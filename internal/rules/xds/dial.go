package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/wire/certificates"
)

// Times of a connection. By default, a server of gRPC takes more than one ping in five minutes for
// an attack. TCP's own keepalive finds a lost connection earlier.
const (
	pingAfter      = 5 * time.Minute // of silence
	pingTimeout    = 20 * time.Second
	connectTimeout = 10 * time.Second
)

// dial opens a stream on a connection of its own: certificates and names are looked up again.
func (c *Client) dial(ctx context.Context) (stream, func(), error) {
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
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout}), // without backoff: it connects once
		grpc.WithDisableServiceConfig(),                                               // a name server could send one
		grpc.WithUserAgent(c.node.GetUserAgentName()),
	)
	if err != nil {
		return nil, nil, err
	}
	end := func() { _ = connection.Close() } // fails on a closed connection
	for _, h := range o.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, h.Name, h.Value)
	}
	s, err := c.open(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(connection))
	if err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

func (c *Client) open(ctx context.Context, service discoveryv3.AggregatedDiscoveryServiceClient) (stream, error) {
	if c.options.Delta {
		s, err := service.DeltaAggregatedResources(ctx)
		return &delta{c, s}, err
	}
	s, err := service.StreamAggregatedResources(ctx)
	return &sotw{client: c, AggregatedDiscoveryService_StreamAggregatedResourcesClient: s}, err
}

// explain names the setting when a response is too large. Only the text, which gRPC on this side
// wrote, distinguishes that error from a control plane that has run out of resources.
func (c *Client) explain(err error) error {
	s := status.Convert(err)
	if s.Code() == codes.ResourceExhausted && strings.HasPrefix(s.Message(), "grpc: ") && strings.Contains(s.Message(), "larger than max") {
		setting := ""
		if c.options.MaxMessageSetting != "" {
			setting = " (" + c.options.MaxMessageSetting + ")"
		}
		return fmt.Errorf("a response may have at most %d bytes here%s: %w", c.options.MaxMessageBytes, setting, err)
	}
	return err
}

// TLS secures the connection to the control plane. Each connection reads the files again, so that
// certificates may be renewed.
type TLS struct {
	certificates.Files        // no authorities: the system's. Name and Bundle of a file do not count
	ServerName         string // name (SAN) that the server's certificate must have; "" means the host of the address
}

// Check reads the files. The error joins every reason to refuse them.
func (t *TLS) Check() error { return t.files().Check() }

// files names the files for errors.
func (t *TLS) files() certificates.Files {
	f := t.Files
	f.Certificate.Name, f.Key.Name, f.Authorities.Name, f.Bundle = "tls cert", "tls key", "tls ca", true
	return f
}

func (t *TLS) config() (*tls.Config, error) {
	set, err := t.files().Read()
	if err != nil {
		return nil, err
	}
	return set.Client(t.ServerName), nil
}

// Package drive asks Envoy's rate limit service over gRPC for benchmarks. The client encodes each
// request once and reads only the verdict of an answer. So a client on the same cores takes little
// CPU time from the server.
package drive

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// An Entry is a key and its value.
type Entry struct{ Key, Value string }

// Request returns an encoded request for one hit on each descriptor.
func Request(domain string, descriptors ...[]Entry) ([]byte, error) {
	r := &ratelimitv3.RateLimitRequest{Domain: domain}
	for _, entries := range descriptors {
		d := &commonv3.RateLimitDescriptor{}
		for _, e := range entries {
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return proto.Marshal(r)
}

// A Conn is a connection to a service. A client is safe for concurrent use. Make one with Dial.
type Conn struct{ conn *grpc.ClientConn }

// Dial returns a connection, which is made when it is first used.
func Dial(address string) (*Conn, error) {
	// A server that was killed is back within a second.
	waits := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	again := grpc.ConnectParams{Backoff: waits, MinConnectTimeout: time.Second}
	conn, err := grpc.NewClient(address, grpc.WithConnectParams(again),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{})))
	if err != nil {
		return nil, err
	}
	return &Conn{conn}, nil
}

// Close ends the connection and the requests on it.
func (c *Conn) Close() error { return c.conn.Close() }

// Ask sends a request that Request has made and reports whether it is within its limits.
func (c *Conn) Ask(ctx context.Context, request []byte) (allowed bool, err error) {
	var code ratelimitv3.RateLimitResponse_Code
	if err := c.conn.Invoke(ctx, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, request, &code); err != nil {
		return false, err
	}
	switch code {
	case ratelimitv3.RateLimitResponse_OK:
		return true, nil
	case ratelimitv3.RateLimitResponse_OVER_LIMIT:
		return false, nil
	default:
		return false, fmt.Errorf("the answer has the code %v", code)
	}
}

// codec sends bytes as they are and reads an answer's code.
type codec struct{}

// Name implements [google.golang.org/grpc/encoding.Codec].
func (codec) Name() string { return "proto" }

// Marshal implements [google.golang.org/grpc/encoding.Codec].
func (codec) Marshal(v any) ([]byte, error) {
	request, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("a request is bytes, not %T", v)
	}
	return request, nil
}

// Unmarshal implements [google.golang.org/grpc/encoding.Codec].
func (codec) Unmarshal(data []byte, v any) error {
	code, ok := v.(*ratelimitv3.RateLimitResponse_Code)
	if !ok {
		return fmt.Errorf("of an answer the code is read, not %T", v)
	}
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if number == 1 && kind == protowire.VarintType {
			value, n := protowire.ConsumeVarint(data)
			*code = ratelimitv3.RateLimitResponse_Code(value)
			return protowire.ParseError(n)
		}
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
	}
	return nil
}

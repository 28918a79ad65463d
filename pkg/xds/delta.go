package xds

import (
	"errors"
	"io"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// delta is an incremental stream: a response has what changed.
type delta struct {
	client *Client
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// greet implements conversation. With the versions of what came into force, only what differs comes, and what is gone.
func (d *delta) greet(r *rules) error {
	r.resume()
	return sent(d.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: d.client.node, TypeUrl: typeURL, InitialResourceVersions: r.versions(),
	}))
}

// answer implements conversation.
func (d *delta) answer(in response, _ *rules, refusal error) error {
	return sent(d.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: d.client.node, TypeUrl: typeURL, ResponseNonce: in.nonce, ErrorDetail: errorDetail(refusal),
	}))
}

// receive implements conversation.
func (d *delta) receive() (response, error) {
	for {
		in, err := d.stream.Recv()
		if err != nil {
			return response{}, d.client.explain(err)
		}
		if in.GetTypeUrl() != "" && in.GetTypeUrl() != typeURL {
			continue // nobody asked for it
		}
		r := response{version: in.GetSystemVersionInfo(), nonce: in.GetNonce(), removed: in.GetRemovedResources()}
		for _, x := range in.GetResources() {
			if x.GetResource() == nil {
				continue // a heartbeat: what is known of that name goes on
			}
			r.resources = append(r.resources, resource{x.GetName(), x.GetVersion(), sourceOf(x.GetName(), x.GetResource())})
		}
		return r, nil
	}
}

// sent returns the error of sending, nil for io.EOF: that the stream has ended, and why, is what receive returns.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

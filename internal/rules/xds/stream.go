package xds

import (
	"errors"
	"io"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

// stream is one stream to the control plane, state of the world or delta.
type stream interface {
	// greet sends the first request: the node, and for delta the versions in force.
	greet(r *rules) error
	// answer accepts a response, or refuses it for a reason.
	answer(in response, refusal error) error
	// receive returns the next response. Another method may run at the same time.
	receive() (response, error)
}

type response struct {
	version   string
	nonce     string
	whole     bool // resources is the whole state: the control plane has removed every other resource
	resources []resource
	removed   []string
}

// sotw is a state-of-the-world stream: each response has all resources.
type sotw struct {
	client *Client
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	version string // of the last response that was accepted on this stream
}

// greet implements stream, without a version. A control plane that was restarted may have given the
// same version to other rules, and would never send these.
func (s *sotw) greet(*rules) error { return s.request("", nil) }

// answer implements stream. A refusal too carries the version of the last accepted response.
func (s *sotw) answer(in response, refusal error) error {
	if refusal == nil {
		s.version = in.version
	}
	return s.request(in.nonce, refusal)
}

// request always sends the node: some control planes forget the node of the first request.
func (s *sotw) request(nonce string, refusal error) error {
	return sent(s.Send(&discoveryv3.DiscoveryRequest{
		Node: s.client.node, TypeUrl: typeURL, VersionInfo: s.version, ResponseNonce: nonce, ErrorDetail: errorDetail(refusal),
	}))
}

func (s *sotw) receive() (response, error) {
	for {
		in, err := s.Recv()
		if err != nil {
			return response{}, s.client.explain(err)
		}
		if in.GetTypeUrl() == "" || in.GetTypeUrl() == typeURL { // else the client did not ask for it
			return response{
				version: in.GetVersionInfo(), nonce: in.GetNonce(), whole: true, resources: resourcesOf(in.GetResources(), s.client.options.Bounds),
			}, nil
		}
	}
}

// delta is an incremental stream: each response has the changes.
type delta struct {
	client *Client
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// greet implements stream. It sends the versions in force, so that the control plane sends only
// differences. A version of delta stands for the content of one resource: go-control-plane's is a
// hash.
func (d *delta) greet(r *rules) error {
	r.resume()
	return sent(d.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: d.client.node, TypeUrl: typeURL, InitialResourceVersions: r.versions(),
	}))
}

func (d *delta) answer(in response, refusal error) error {
	return sent(d.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: d.client.node, TypeUrl: typeURL, ResponseNonce: in.nonce, ErrorDetail: errorDetail(refusal),
	}))
}

func (d *delta) receive() (response, error) {
	for {
		in, err := d.Recv()
		if err != nil {
			return response{}, d.client.explain(err)
		}
		if in.GetTypeUrl() != "" && in.GetTypeUrl() != typeURL {
			continue // the client did not ask for it
		}
		r := response{version: in.GetSystemVersionInfo(), nonce: in.GetNonce(), removed: in.GetRemovedResources()}
		size := 0
		for _, x := range in.GetResources() {
			if x.GetResource() != nil { // else a heartbeat: the resource stays as it is
				source := sourceOf(x.GetName(), x.GetResource(), d.client.options.Bounds, &size)
				r.resources = append(r.resources, resource{x.GetName(), x.GetVersion(), source})
			}
		}
		return r, nil
	}
}

// sent returns the error of sending, nil for io.EOF: receive returns the reason of that.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func errorDetail(refusal error) *rpcstatus.Status {
	if refusal == nil {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: detail(refusal)}
}

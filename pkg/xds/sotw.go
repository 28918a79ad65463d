package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

// sotw is a state-of-the-world stream: each response has all resources.
type sotw struct {
	client *Client
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// greet implements conversation. The version tells what is known; a nonce is worth nothing on another stream. After a refusal, of
// which the good part is in force, that is no version, so that the control plane sends what it has, whatever that is by now.
func (s *sotw) greet(r *rules) error {
	if r.refusal != nil {
		return s.send("", "", nil)
	}
	return s.send(r.version, "", nil)
}

// answer implements conversation. The version of a refusal is that of the last response that was accepted.
func (s *sotw) answer(in response, r *rules, refusal error) error {
	return s.send(r.version, in.nonce, errorDetail(refusal))
}

// send sends a request, each with the node: not every control plane remembers it from the first one.
func (s *sotw) send(version, nonce string, detail *rpcstatus.Status) error {
	return sent(s.stream.Send(&discoveryv3.DiscoveryRequest{
		Node: s.client.node, TypeUrl: typeURL, VersionInfo: version, ResponseNonce: nonce, ErrorDetail: detail,
	}))
}

// receive implements conversation.
func (s *sotw) receive() (response, error) {
	for {
		in, err := s.stream.Recv()
		if err != nil {
			return response{}, s.client.explain(err)
		}
		if in.GetTypeUrl() != "" && in.GetTypeUrl() != typeURL {
			continue // nobody asked for it
		}
		return response{
			version: in.GetVersionInfo(), nonce: in.GetNonce(), whole: true, resources: resourcesOf(in.GetResources()),
		}, nil
	}
}

// errorDetail returns what refuses a response, nil to accept it.
func errorDetail(refusal error) *rpcstatus.Status {
	if refusal == nil {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: detail(refusal)}
}

package platforms

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"
)

// serveExtProc serves the processor of the test UsageRateLimit, with the certificate of its
// manifests.
func serveExtProc(t *testing.T, g *gateway) {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:9002")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(new(extProcCertificate(t, g.tree)))))
	extprocv3.RegisterExternalProcessorServer(server, extProc{})
	go func() { _ = server.Serve(l) }() // until Stop
	t.Cleanup(server.Stop)
}

// extProcCertificate returns the certificate of the Secret in the first document of the manifest.
func extProcCertificate(t *testing.T, source string) tls.Certificate {
	t.Helper()
	file, err := os.Open(filepath.Join(source, "test/e2e/testdata/ext-proc-service.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var secret struct{ Data map[string]string }
	if err := yaml.NewDecoder(file).Decode(&secret); err != nil {
		t.Fatal(err)
	}
	var pair [2][]byte
	for i, name := range []string{"tls.crt", "tls.key"} {
		if pair[i], err = base64.StdEncoding.DecodeString(secret.Data[name]); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := tls.X509KeyPair(pair[0], pair[1])
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// extProc says that each answer costs ten.
type extProc struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (extProc) Process(stream grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		response := new(extprocv3.ProcessingResponse)
		if request.GetResponseHeaders() == nil {
			response.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: new(extprocv3.HeadersResponse)}
		} else {
			response.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: new(extprocv3.HeadersResponse)}
			response.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{
				"io.envoyproxy.gateway.e2e": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
					"request_cost_set_by_ext_proc": structpb.NewNumberValue(10),
				}}),
			}}
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

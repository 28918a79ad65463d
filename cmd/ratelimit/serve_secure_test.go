package main

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	secured "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/certificates/certtest"
)

func TestClientsShowACertificateOfTheGivenAuthorityAndName(t *testing.T) {
	ours, theirs, dir := certtest.New(t, "ours"), certtest.New(t, "theirs"), t.TempDir()
	certificate, key := ours.Issue(t, "localhost").Write(t, dir)
	ca := certtest.Write(t, filepath.Join(dir, "ca.crt"), ours.PEM)
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 9)})
	as := func(pairs ...tls.Certificate) secured.TransportCredentials {
		return secured.NewTLS(&tls.Config{RootCAs: ours.Pool, ServerName: "localhost", Certificates: pairs})
	}
	r := startAs(t, append(anyPort(), "USE_STATSD=false", "RUNTIME_ROOT="+root, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+certificate,
		"GRPC_SERVER_TLS_KEY="+key, "GRPC_CLIENT_TLS_CACERT="+ca, "GRPC_CLIENT_TLS_SAN=envoy.local"), as(ours.Issue(t, "envoy.local").TLS(t)))
	for name, test := range map[string]struct {
		as   secured.TransportCredentials
		want codes.Code
	}{
		"the name":            {as(ours.Issue(t, "envoy.local").TLS(t)), codes.OK},
		"another name":        {as(ours.Issue(t, "other.local").TLS(t)), codes.Unavailable},
		"another authority":   {as(theirs.Issue(t, "envoy.local").TLS(t)), codes.Unavailable},
		"without certificate": {as(), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := grpc.NewClient(r.address["grpc"], grpc.WithTransportCredentials(test.as))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = (&running{conn: conn}).ask(t, parseRequest(t, "d | k=v"))
			if got := status.Code(err); got != test.want {
				t.Errorf("got %v (%v), want %v", got, err, test.want)
			}
		})
	}
}

func TestTracesGoWhereTheEnvironmentSays(t *testing.T) {
	bodies := make(chan string, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case bodies <- r.URL.Path + " " + string(body):
		default:
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	r := start(t, scripted, "TRACING_ENABLED=true", "TRACING_SERVICE_NAME=rls-1", "TRACING_SERVICE_NAMESPACE=edge-1", "TRACING_SERVICE_INSTANCE_ID=pod-1")
	if _, err := r.ask(t, parseRequest(t, "d | plain=a")); err != nil {
		t.Fatal(err)
	}
	select {
	case body := <-bodies:
		for _, want := range []string{"/v1/traces ", "service.name", "rls-1", "service.namespace", "edge-1", "service.instance.id", "pod-1"} {
			if !strings.Contains(body, want) {
				t.Errorf("the spans lack %q:\n%q", want, body)
			}
		}
	case <-time.After(within):
		t.Fatal("no spans came")
	}
}

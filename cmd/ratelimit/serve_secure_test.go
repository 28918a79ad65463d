package main

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	secured "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/test/parts"
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

func TestTheCertificateOfRedisMayBeForAnyNameWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	certificates, err := parts.NewCertificates(t.TempDir(), "redis.internal")
	if err != nil {
		t.Fatal(err)
	}
	others, err := parts.NewCertificates(t.TempDir(), "redis.internal")
	if err != nil {
		t.Fatal(err)
	}
	redis := startRedis(t, parts.RedisOptions{TLS: certificates})
	for name, test := range map[string]struct {
		ca, skip string
		code     int
		logged   string
	}{
		"the name is asked for":             {certificates.CA, "false", http.StatusServiceUnavailable, "cannot validate certificate for 127.0.0.1"},
		"the name is not asked for":         {certificates.CA, "true", http.StatusOK, "redis connected"},
		"the authority is always asked for": {others.CA, "true", http.StatusServiceUnavailable, "signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, scripted, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Address(), "REDIS_TLS=true", "REDIS_TLS_CACERT="+test.ca,
				"REDIS_TLS_CLIENT_CERT="+certificates.ClientCert, "REDIS_TLS_CLIENT_KEY="+certificates.ClientKey,
				"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION="+test.skip, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true",
				"LOG_LEVEL=debug") // on a busy machine the warning may name a timeout; the line at DEBUG has the reason
			r.log.Await(t, 0, logtest.Has(test.logged))
			r.awaitPage(t, "http", "/healthcheck", test.code, "")
		})
	}
}

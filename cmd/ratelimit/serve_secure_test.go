package main

import (
	"net/http"
	"testing"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func TestTheCertificateOfRedisMayBeForAnyNameWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	certificates := must.Get(parts.NewCertificates(t.TempDir(), "redis.internal"))(t)
	others := must.Get(parts.NewCertificates(t.TempDir(), "redis.internal"))(t)
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

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestAnEnvironmentThatMeansSomethingElseIsLogged(t *testing.T) {
	const inMemory = "REDIS_URL is not set, so counts are in memory: each replica has its own. Set BACKEND_TYPE=memory if that is meant"
	pod := []string{
		"PATH=/bin", "HOME=/", "HOSTNAME=ratelimit-1", "KUBERNETES_PORT=tcp://10.0.0.1:443", "KUBERNETES_SERVICE_HOST=10.0.0.1",
		"REDIS_PORT=tcp://10.0.0.2:6379", "REDIS_PORT_6379_TCP_ADDR=10.0.0.2", "REDIS_SERVICE_PORT=6379", "GRPC_PORTS_SERVICE_HOST=10.0.0.3",
		"WEIR_PORT=tcp://10.0.0.4:8081", "WEIR_SERVICE_PORT_GRPC=8081", "GOMEMLIMIT=200MiB", "SSL_CERT_FILE=/ca.pem", "OTEL_SERVICE_NAME=x",
		"POD_NAMESPACE=n", "POD_IP=10.0.0.5", "NODE_NAME=a", "TZ=UTC", "LANG=C", "PWD=/", "SHLVL=1",
	}
	for name, test := range map[string]struct {
		environ []string
		want    []string
	}{
		"nothing":       {nil, []string{inMemory}},
		"memory":        {[]string{"BACKEND_TYPE=memory"}, nil},
		"redis":         {[]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379"}, nil},
		"a socket":      {[]string{"BACKEND_TYPE=redis"}, nil},
		"an empty URL":  {[]string{"REDIS_URL="}, []string{inMemory}},
		"a wrong URL":   {[]string{"REDIS_URI=redis:6379"}, []string{inMemory, "REDIS_URI REDIS_URL"}},
		"lower case":    {[]string{"redis_url=redis:6379"}, []string{inMemory, "redis_url REDIS_URL"}},
		"two letters":   {[]string{"REDIS_ULR=redis:6379", "REDIS_TPYE=CLUSTER"}, []string{inMemory, "REDIS_TPYE REDIS_TYPE", "REDIS_ULR REDIS_URL"}},
		"ours":          {[]string{"BACKEND_TYPE=memory", "WEIR_FLEETSIZE=4", "WEIR_COLOR=blue"}, []string{"WEIR_COLOR", "WEIR_FLEETSIZE WEIR_FLEET_SIZE"}},
		"of a platform": {append([]string{"BACKEND_TYPE=memory"}, pod...), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			must.Get(configure(append(test.environ, "LOG_FORMAT=json"), &log))(t)
			var got []string
			for line := range strings.Lines(log.String()) {
				var is struct {
					Level, Variable, Meant string
					Message                string `json:"@message"`
				}
				must.Do(t, json.Unmarshal([]byte(line), &is))
				if is.Level != "warning" {
					t.Errorf("level of %q: want warning", line)
				}
				if is.Variable != "" {
					is.Message = strings.TrimSpace(is.Variable + " " + is.Meant)
				}
				got = append(got, is.Message)
			}
			must.Match(t, "lines", test.want, got)
		})
	}
}

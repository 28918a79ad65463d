package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// Envoy Gateway's environment: the variables that are always there, and the variables of a Redis
// over TLS and of a collector.
const (
	gatewayAlways = `RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false LOG_LEVEL=info
		USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001
		CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/certs/tls.crt
		GRPC_SERVER_TLS_KEY=/certs/tls.key GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt CONFIG_GRPC_XDS_SERVER_USE_TLS=true
		CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key
		CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp
		USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001 PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml `
	gatewayMore = `REDIS_URL=redis.redis-system.svc.cluster.local:6379 REDIS_TLS=true REDIS_TLS_CLIENT_CERT=/redis-certs/tls.crt
		REDIS_TLS_CLIENT_KEY=/redis-certs/tls.key
		TRACING_ENABLED=true TRACING_SERVICE_NAME=envoy-ratelimit TRACING_SERVICE_NAMESPACE=envoy-gateway-system
		TRACING_SERVICE_INSTANCE_ID=pod-1 TRACING_SAMPLING_RATE=0.6 OTEL_EXPORTER_OTLP_ENDPOINT=http://trace-collector:4318`
)

// platforms is the environments that platforms start the original with, word for word.
func platforms() map[string]string {
	return map[string]string{
		"Envoy Gateway":                       gatewayAlways,
		"Envoy Gateway with Redis and traces": gatewayAlways + gatewayMore,
		"AI Gateway": `RUNTIME_ROOT=/data CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=ai-gateway-controller:18002
			CONFIG_GRPC_XDS_NODE_ID=envoy-ai-gateway-ratelimit USE_STATSD=false GRPC_PORT=8081`,
		"Istio": `LOG_LEVEL=debug REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 USE_STATSD=false RUNTIME_ROOT=/data
			RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true HOST=:: GRPC_HOST=::`,
		"Contour": `LOG_LEVEL=debug REDIS_SOCKET_TYPE=tcp REDIS_URL=localhost:6379 USE_STATSD=false RUNTIME_ROOT=/data
			RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true`,
		"Contour on IPv6": `LOG_LEVEL=debug REDIS_SOCKET_TYPE=tcp REDIS_URL=localhost:6379 USE_STATSD=false RUNTIME_ROOT=/data
			RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true HOST=:: GRPC_HOST=:: DEBUG_HOST=::`,
	}
}

func TestPlatformsEnvironmentsAreReadUnchanged(t *testing.T) {
	changes := map[string]func(want *config){ // of the defaults
		"Envoy Gateway": envoyGateway,
		"Envoy Gateway with Redis and traces": func(want *config) {
			envoyGateway(want)
			want.Backend = backendRedis
			want.Redis.Target = redisstore.Target{
				URLs: []string{"rediss://redis.redis-system.svc.cluster.local:6379"},
				Cert: "/redis-certs/tls.crt", Key: "/redis-certs/tls.key",
			}
			want.Traced, want.Namespace, want.InstanceID = true, "envoy-gateway-system", "pod-1"
			want.Spans.Service, want.Spans.Ratio = "envoy-ratelimit", 0.6
		},
		"AI Gateway": func(want *config) {
			want.ConfigType = configXDS
			want.XDS.Address, want.XDS.Node.ID = "ai-gateway-controller:18002", "envoy-ai-gateway-ratelimit"
			want.Rules.Paths = []string{"/data/config"}
			want.Statistics.StatsD.Address, want.Statistics.StatsD.TCP = "", false
		},
		"Istio": func(want *config) {
			files(want, slog.LevelDebug)
			redis(want, "redis://redis:6379")
			want.HTTP.Address, want.GRPC.Address = "[::]:8080", "[::]:8081"
		},
		"Contour": func(want *config) {
			files(want, slog.LevelDebug)
			redis(want, "redis://localhost:6379")
		},
		"Contour on IPv6": func(want *config) {
			files(want, slog.LevelDebug)
			redis(want, "redis://localhost:6379")
			want.HTTP.Address, want.GRPC.Address, want.Debug.Address = "[::]:8080", "[::]:8081", "[::]:6070"
		},
	}
	for name, environment := range platforms() {
		t.Run(name, func(t *testing.T) {
			want := read(t)
			changes[name](&want)
			got := read(t, strings.Fields(environment)...)

			must.Match(t, "result", want, got, cmpopts.IgnoreUnexported(config{}))
		})
	}
}

func envoyGateway(want *config) {
	files(want, slog.LevelInfo)
	want.ConfigType, want.StartWithoutRules = configXDS, true
	want.XDS.Address, want.XDS.Node.ID = "envoy-gateway:18001", "envoy-ratelimit"
	want.XDSUsesTLS = true
	pem := &want.XDSTLS.Files
	pem.Certificate.Path, pem.Key.Path, pem.Authorities.Path = "/certs/tls.crt", "/certs/tls.key", "/certs/ca.crt"
	want.UseTLS, want.TLS.Certificate.Path, want.TLS.Key.Path = true, "/certs/tls.crt", "/certs/tls.key"
	want.Statistics.Prometheus, want.Metrics.Address = true, ":19001"
}

func files(want *config, level slog.Level) {
	want.Rules.Paths, want.DotFiles = []string{"/data/ratelimit/config"}, false
	want.LogLevel = level
	want.Statistics.StatsD.Address, want.Statistics.StatsD.TCP = "", false
}

func redis(want *config, url string) {
	want.Backend = backendRedis
	want.Redis.Target.URLs = []string{url}
}

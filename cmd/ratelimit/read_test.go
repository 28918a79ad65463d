package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryMistakeIsToldAtOnceAndWithoutPasswords(t *testing.T) {
	_, err := readConfig(environ(
		"PORT=http", "GRPC_PORT=70000", "DEBUG_PORT=", "LOG_LEVEL=loud", "CONFIG_TYPE=file", "USE_STATSD=yes",
		"GRPC_MAX_CONNECTION_AGE=5", "NEAR_LIMIT_RATIO=most", "EXTRA_TAGS=a,b:c:d", "BACKEND_TYPE=memcache",
		"LIMIT_LIMIT_HEADER=no header", "REDIS_TYPE=ring", "REDIS_SOCKET_TYPE=pipe", "MEMCACHE_MAX_IDLE_CONNS=few",
		"USE_DOG_STATSD_MOGRIFIERS=a", "DOG_STATSD_MOGRIFIER_A_PATTERN=(", "REDIS_KEY_FORMAT=theirs", "REDIS_OP_TIMEOUT=-1s",
		"TRACING_EXPORTER_PROTOCOL=smoke", "PROMETHEUS_ADDR=9090", "PROMETHEUS_PATH=metrics", "CONFIG_GRPC_XDS_NODE_METADATA=a",
	))
	if err == nil {
		t.Fatal("no error")
	}
	got := make(map[string]int)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, _, _ := strings.Cut(line, ": ")
		got[name]++
	}
	want := map[string]int{
		"PORT": 1, "GRPC_PORT": 1, "DEBUG_PORT": 1, "LOG_LEVEL": 1, "CONFIG_TYPE": 1, "USE_STATSD": 1, "GRPC_MAX_CONNECTION_AGE": 1,
		"NEAR_LIMIT_RATIO": 1, "EXTRA_TAGS": 2, "BACKEND_TYPE": 1, "LIMIT_LIMIT_HEADER": 1, "REDIS_TYPE": 1, "REDIS_SOCKET_TYPE": 1,
		"MEMCACHE_MAX_IDLE_CONNS": 1, "DOG_STATSD_MOGRIFIER_A": 2, "REDIS_KEY_FORMAT": 1, "REDIS_OP_TIMEOUT": 1,
		"TRACING_EXPORTER_PROTOCOL": 1, "PROMETHEUS_ADDR": 1, "PROMETHEUS_PATH": 1, "CONFIG_GRPC_XDS_NODE_METADATA": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mistakes by variable (-want +got):\n%s\n%v", diff, err)
	}

	for name, pairs := range map[string][]string{
		"a socket with TLS":              {"REDIS_URL=/run/hunter2", "REDIS_TLS=true"},
		"Sentinel without sentinels":     {"REDIS_URL=hunter2", "REDIS_TYPE=sentinel"},
		"seconds without sentinels":      {"REDIS_URL=x", "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=hunter2", "REDIS_PERSECOND_TYPE=sentinel"},
		"a name that no authority signs": {"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=c", "GRPC_SERVER_TLS_KEY=k", "GRPC_CLIENT_TLS_SAN=envoy"},
		"TLS without a certificate":      {"GRPC_SERVER_USE_TLS=true"},
		"half a certificate for xDS":     {"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readConfig(pairs)
			if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v; want one line without the password", err)
			}
		})
	}
}

func TestUnknownVariablesAndArgumentsAreIgnored(t *testing.T) {
	c := read(t, "PATH=/bin", "KUBERNETES_SERVICE_HOST=10.0.0.1", "RATELIMIT_PORT=tcp://10.0.0.2:8081", "GOSTATS_LOGGING_SINK_DISABLED=true", "nonsense", "=C:=x")
	if diff := nothing(c); diff != "" {
		t.Error(diff)
	}
}

func TestReportWritesOneReasonPerLine(t *testing.T) {
	var out strings.Builder
	code := report(&out, errors.Join(errors.New("A: wrong"), errors.New("B: wrong")))
	if want := "ratelimit: A: wrong\nratelimit: B: wrong\n"; code != 1 || out.String() != want {
		t.Errorf("exit code %d, output %q; want 1, %q", code, out.String(), want)
	}
	if code := report(&out, nil); code != 0 {
		t.Errorf("exit code %d without an error", code)
	}
}

package main

import (
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/statistics"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
)

func environ(pairs ...string) []string { return pairs }

func read(t *testing.T, pairs ...string) config {
	t.Helper()
	c := must.Get(readConfig(pairs))(t)
	return c
}

func variables(c *config) map[string]variable {
	all := make(map[string]variable)
	for _, g := range table(c) {
		for _, v := range g.variables {
			all[v.name] = v
		}
	}
	return all
}

// originals is the variables of the original with their defaults there, as ../shared/reference
// lists them.
const originals = `
HOST=0.0.0.0 PORT=8080 DEBUG_HOST=0.0.0.0 DEBUG_PORT=6070 GRPC_HOST=0.0.0.0 GRPC_PORT=8081 GRPC_UDS= GRPC_MAX_CONNECTION_AGE=24h
GRPC_MAX_CONNECTION_AGE_GRACE=1h GRPC_SERVER_USE_TLS=false GRPC_SERVER_TLS_CERT= GRPC_SERVER_TLS_KEY= GRPC_CLIENT_TLS_CACERT=
GRPC_CLIENT_TLS_SAN= LOG_LEVEL=WARN LOG_FORMAT=text

CONFIG_TYPE=FILE FORCE_START_WITHOUT_INITIAL_CONFIG=false RUNTIME_ROOT=/srv/runtime_data/current RUNTIME_SUBDIRECTORY=
RUNTIME_APPDIRECTORY=config RUNTIME_IGNOREDOTFILES=false RUNTIME_WATCH_ROOT=true MERGE_DOMAIN_CONFIG=false
CONFIG_GRPC_XDS_NODE_ID=default CONFIG_GRPC_XDS_NODE_METADATA= CONFIG_GRPC_XDS_SERVER_URL=localhost:18000
CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=3s CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS= CONFIG_GRPC_XDS_SERVER_USE_TLS=false
CONFIG_GRPC_XDS_CLIENT_TLS_CERT= CONFIG_GRPC_XDS_CLIENT_TLS_KEY= CONFIG_GRPC_XDS_SERVER_TLS_CACERT= CONFIG_GRPC_XDS_SERVER_TLS_SAN=
XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=10s XDS_CLIENT_BACKOFF_MAX_INTERVAL=60s XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.5
XDS_CLIENT_BACKOFF_JITTER=true XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=0

USE_STATSD=true STATSD_HOST=localhost STATSD_PORT=8125 USE_DOG_STATSD=false USE_DOG_STATSD_MOGRIFIERS= USE_PROMETHEUS=false
PROMETHEUS_ADDR=:9090 PROMETHEUS_PATH=/metrics PROMETHEUS_MAPPER_YAML= PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=false EXTRA_TAGS=
STATS_FLUSH_INTERVAL=10s DISABLE_STATS=false

BACKEND_TYPE= EXPIRATION_JITTER_MAX_SECONDS=300 LOCAL_CACHE_SIZE_IN_BYTES=0 NEAR_LIMIT_RATIO=0.8 CACHE_KEY_PREFIX=
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false USE_CALENDAR_MONTH_RATE_LIMIT=false SHADOW_MODE=false QUOTA_MODE=false RESPONSE_DYNAMIC_METADATA=false
LIMIT_RESPONSE_HEADERS_ENABLED=false LIMIT_LIMIT_HEADER=RateLimit-Limit LIMIT_REMAINING_HEADER=RateLimit-Remaining
LIMIT_RESET_HEADER=RateLimit-Reset HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=false

REDIS_SOCKET_TYPE=unix REDIS_TYPE=SINGLE REDIS_URL= REDIS_POOL_SIZE=10 REDIS_AUTH= REDIS_TLS=false REDIS_TLS_CLIENT_CERT=
REDIS_TLS_CLIENT_KEY= REDIS_TLS_CACERT= REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=false REDIS_SENTINEL_AUTH= REDIS_PIPELINE_WINDOW=0
REDIS_PIPELINE_LIMIT=0 REDIS_CLUSTER_PIPELINE_PARALLELISM=1 REDIS_TIMEOUT=10s REDIS_POOL_ON_EMPTY_BEHAVIOR=WAIT
REDIS_STARTUP_INITIAL_INTERVAL=1s REDIS_STARTUP_MAX_INTERVAL=30s REDIS_STARTUP_MAX_ELAPSED_TIME=0
REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=false

REDIS_PERSECOND=false REDIS_PERSECOND_SOCKET_TYPE=unix REDIS_PERSECOND_TYPE=SINGLE
REDIS_PERSECOND_URL=/var/run/nutcracker/ratelimitpersecond.sock REDIS_PERSECOND_POOL_SIZE=10 REDIS_PERSECOND_AUTH=
REDIS_PERSECOND_TLS=false REDIS_PERSECOND_SENTINEL_AUTH= REDIS_PERSECOND_PIPELINE_WINDOW=0 REDIS_PERSECOND_PIPELINE_LIMIT=0
REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM=1 REDIS_PERSECOND_TIMEOUT=10s REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR=WAIT

MEMCACHE_HOST_PORT= MEMCACHE_SRV= MEMCACHE_SRV_REFRESH=0 MEMCACHE_MAX_IDLE_CONNS=2 MEMCACHE_TLS=false MEMCACHE_TLS_CLIENT_CERT=
MEMCACHE_TLS_CLIENT_KEY= MEMCACHE_TLS_CACERT= MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=false

TRACING_ENABLED=false TRACING_SERVICE_NAME=RateLimit TRACING_SERVICE_NAMESPACE= TRACING_SERVICE_INSTANCE_ID=
TRACING_EXPORTER_PROTOCOL=http TRACING_SAMPLING_RATE=1
`

// BACKEND_TYPE (redis) and REDIS_URL (a socket) are the two whose absence means something else
// here: memory.
func TestEveryVariableOfTheOriginalIsInTheTableWithItsDefault(t *testing.T) {
	known := variables(new(config))
	all := strings.Fields(originals)
	if len(all) != 115 {
		t.Fatalf("the list has %d variables, the original 115", len(all))
	}
	for _, pair := range all {
		name, usual, _ := strings.Cut(pair, "=")
		v, found := known[name]
		if !found || v.usual != usual {
			t.Errorf("%s: in the table %t, default %q, want %q", name, found, v.usual, usual)
		}
		delete(known, name)
	}
	more := slices.Sorted(maps.Keys(known))
	want := []string{
		"GRPC_SERVER_TLS_CA_CERT", "REDIS_KEY_FORMAT", "REDIS_OP_TIMEOUT", "REDIS_PERSECOND_OP_TIMEOUT",
		"REDIS_POOL_ON_EMPTY_WAIT_DURATION", "RULES_OVERLAY", "STATSD_PROTOCOL", "WEIR_ADMIN_ADDRESS", "WEIR_ADMIN_TLS_CERT", "WEIR_ADMIN_TLS_CLIENT_CA",
		"WEIR_ADMIN_TLS_KEY", "WEIR_ADMIN_TOKEN_FILE", "WEIR_FLEET_SIZE", "WEIR_GRPC_SERVER", "WEIR_HASH_SALT_FILE", "WEIR_HASH_VALUES",
		"WEIR_HOSTS", "WEIR_HTTP_JSON", "WEIR_HTTP_JSON_ALLOW", "WEIR_LOG_DENIALS", "WEIR_MAX_BYTES_IN_FLIGHT", "WEIR_MAX_CONNECTIONS",
		"WEIR_MAX_REQUEST_BYTES", "WEIR_MAX_RULES_BYTES", "WEIR_PPROF", "WEIR_RECORD", "WEIR_RECORD_MAX_BYTES", "WEIR_SHARING", "WEIR_STATE_DIR",
		"WEIR_TOP_KEYS",
	}
	must.Match(t, "variables beyond those of the original", want, more)
}

func TestNoEnvironmentIsTheOriginalsDefaultsAndMemory(t *testing.T) {
	want := config{
		Config: app.Config{
			Listeners: app.Listeners{
				HTTP:           app.Endpoint{Address: "0.0.0.0:8080"},
				Debug:          app.Endpoint{Address: "0.0.0.0:6070"},
				GRPC:           app.Endpoint{Address: "0.0.0.0:8081"},
				Admin:          app.Endpoint{Address: "127.0.0.1:8082"},
				MetricsPath:    "/metrics",
				MaxConnections: 1000,
			},
			Rules: reload.Options{
				Paths: []string{"/srv/runtime_data/current/config"}, Options: descriptors.Options{MaxBytes: 20 << 20},
			},
			XDS: xds.Options{
				Address: "localhost:18000", Node: xds.Node{ID: "default"}, MinBackoff: 10 * time.Second, MaxBackoff: time.Minute,
			},
			Record:  app.Record{MaxBytes: 1 << 30},
			Limiter: limiter.Options{TopKeys: 1000, NearLimit: float64(float32(0.8))},
			Server: server.Options{
				MaxRequestBytes: 64 << 10, MaxBytesInFlight: 32 << 20,
				JSON:             server.JSON{From: server.JSONFromAnywhere, Refunds: true, Overrides: true, AnyClient: true},
				MaxConnectionAge: 24 * time.Hour, MaxConnectionAgeGrace: time.Hour,
				Headers: server.Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"},
			},
			Statistics: app.Statistics{
				StatsD: statistics.ReporterOptions{Address: "localhost:8125", TCP: true, Interval: 10 * time.Second},
			},
		},
		LogLevel: slog.LevelWarn, ConfigType: configFile, DotFiles: true, Backend: backendMemory,
		Redis: redisstore.Options{Timeout: 10 * time.Second}, OriginalKeys: true, JitterSeconds: 300,
		Spans: tracing.Options{Service: "RateLimit", Protocol: tracing.ProtocolProtobuf, Ratio: 1},
	}
	got := read(t)
	must.Match(t, "result", want, got, cmpopts.IgnoreUnexported(config{}))
}

// idle has each variable without an effect, with a value that is not its default.
const idle = `
REDIS_PERSECOND_OP_TIMEOUT=50ms REDIS_POOL_ON_EMPTY_BEHAVIOR=CREATE REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR=ERROR
REDIS_PIPELINE_LIMIT=100 REDIS_PERSECOND_PIPELINE_LIMIT=100 REDIS_PIPELINE_WINDOW=150us REDIS_PERSECOND_PIPELINE_WINDOW=150us
REDIS_CLUSTER_PIPELINE_PARALLELISM=0 REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM=4 REDIS_POOL_SIZE=100 REDIS_PERSECOND_POOL_SIZE=100
REDIS_TIMEOUT=1s REDIS_PERSECOND_TIMEOUT=1s REDIS_STARTUP_INITIAL_INTERVAL=5s REDIS_STARTUP_MAX_INTERVAL=5s
REDIS_STARTUP_MAX_ELAPSED_TIME=5s REDIS_POOL_ON_EMPTY_WAIT_DURATION=1s GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt RUNTIME_WATCH_ROOT=false
PROMETHEUS_MAPPER_YAML=/etc/conf.yaml CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=1s XDS_CLIENT_BACKOFF_RANDOM_FACTOR=2
MEMCACHE_HOST_PORT=a:1,b:2 MEMCACHE_SRV=_m._tcp.x MEMCACHE_SRV_REFRESH=1s MEMCACHE_MAX_IDLE_CONNS=-1 MEMCACHE_TLS=true
MEMCACHE_TLS_CLIENT_CERT=c MEMCACHE_TLS_CLIENT_KEY=k MEMCACHE_TLS_CACERT=ca MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true
`

// Each row of the table is set to something that is not its default, and the part of config it is
// for must say so. Idle variables must change nothing.
func TestEveryVariableDoesWhatItSays(t *testing.T) {
	const redisOn, secondsOn = "REDIS_URL=redis:6379", "REDIS_PERSECOND_URL=seconds:6379"
	tests := map[string]struct {
		with []string // what else is set
		got  func(c config) any
		want any
	}{
		"HOST=::":                             {got: func(c config) any { return c.HTTP.Address }, want: "[::]:8080"},
		"PORT=0x1F91":                         {got: func(c config) any { return c.HTTP.Address }, want: "0.0.0.0:8081"},
		"DEBUG_HOST=[::1]":                    {got: func(c config) any { return c.Debug.Address }, want: "[::1]:6070"},
		"DEBUG_PORT=0":                        {got: func(c config) any { return c.Debug.Address }, want: "0.0.0.0:0"},
		"GRPC_HOST=::":                        {got: func(c config) any { return c.GRPC.Address }, want: "[::]:8081"},
		"GRPC_PORT=9000":                      {got: func(c config) any { return c.GRPC.Address }, want: "0.0.0.0:9000"},
		"GRPC_UDS=/run/rl.sock":               {got: func(c config) any { return c.Socket.Address + c.GRPC.Address }, want: "/run/rl.sock"},
		"GRPC_MAX_CONNECTION_AGE=5m":          {got: func(c config) any { return c.Server.MaxConnectionAge }, want: 5 * time.Minute},
		"GRPC_MAX_CONNECTION_AGE_GRACE=1m30s": {got: func(c config) any { return c.Server.MaxConnectionAgeGrace }, want: 90 * time.Second},
		"GRPC_SERVER_USE_TLS=true":            {with: []string{"GRPC_SERVER_TLS_CERT=c", "GRPC_SERVER_TLS_KEY=k"}, got: func(c config) any { return []any{c.UseTLS, c.TLS.Certificate.Path, c.TLS.Key.Path} }, want: []any{true, "c", "k"}},
		"GRPC_SERVER_TLS_CERT=/c.crt":         {got: func(c config) any { return c.TLS.Certificate.Path }, want: "/c.crt"},
		"GRPC_SERVER_TLS_KEY=/c.key":          {got: func(c config) any { return c.TLS.Key.Path }, want: "/c.key"},
		"GRPC_CLIENT_TLS_CACERT=/ca.crt":      {got: func(c config) any { return c.TLS.Authorities.Path }, want: "/ca.crt"},
		"GRPC_CLIENT_TLS_SAN=envoy.local":     {got: func(c config) any { return c.ClientName }, want: "envoy.local"},
		"LOG_LEVEL=Trace":                     {got: func(c config) any { return c.LogLevel }, want: slog.LevelDebug},
		"LOG_FORMAT=JSON":                     {got: func(c config) any { return c.LogJSON }, want: true},

		"CONFIG_TYPE=GRPC_XDS_SOTW":                     {got: func(c config) any { return c.ConfigType }, want: configXDS},
		"CONFIG_TYPE=GRPC_XDS_DELTA":                    {got: func(c config) any { return c.ConfigType }, want: configXDSDelta},
		"FORCE_START_WITHOUT_INITIAL_CONFIG=1":          {got: func(c config) any { return c.StartWithoutRules }, want: true},
		"RUNTIME_ROOT=/data":                            {got: func(c config) any { return c.Rules.Paths[0] }, want: "/data/config"},
		"RUNTIME_SUBDIRECTORY=ratelimit":                {got: func(c config) any { return c.Rules.Paths[0] }, want: "/srv/runtime_data/current/ratelimit/config"},
		"RUNTIME_APPDIRECTORY=":                         {got: func(c config) any { return c.Rules.Paths[0] }, want: "/srv/runtime_data/current"},
		"RUNTIME_IGNOREDOTFILES=true":                   {got: func(c config) any { return c.DotFiles }, want: false},
		"MERGE_DOMAIN_CONFIG=true":                      {got: func(c config) any { return c.Rules.MergeDomains }, want: true},
		"CONFIG_GRPC_XDS_NODE_ID=n":                     {got: func(c config) any { return c.XDS.Node.ID }, want: "n"},
		"CONFIG_GRPC_XDS_NODE_METADATA=a=b,c=d=e":       {got: func(c config) any { return c.XDS.Node.Metadata }, want: map[string]any{"a": "b", "c": "d=e"}},
		"CONFIG_GRPC_XDS_SERVER_URL=x:1":                {got: func(c config) any { return c.XDS.Address }, want: "x:1"},
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:b": {got: func(c config) any { return c.XDSHeaders }, want: map[string]string{"a": "b"}},
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true":           {got: func(c config) any { return c.XDSUsesTLS }, want: true},
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c":             {got: func(c config) any { return c.XDSTLS.Certificate.Path }, want: "c"},
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k":              {got: func(c config) any { return c.XDSTLS.Key.Path }, want: "k"},
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=ca":          {got: func(c config) any { return c.XDSTLS.Authorities.Path }, want: "ca"},
		"CONFIG_GRPC_XDS_SERVER_TLS_SAN=s":              {got: func(c config) any { return c.XDSTLS.ServerName }, want: "s"},
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s":        {got: func(c config) any { return c.XDS.MinBackoff }, want: time.Second},
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=2m":            {got: func(c config) any { return c.XDS.MaxBackoff }, want: 2 * time.Minute},
		"XDS_CLIENT_BACKOFF_JITTER=false":               {got: func(c config) any { return c.XDS.Steady }, want: true},
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=10485760":     {got: func(c config) any { return c.XDS.MaxMessageBytes }, want: 10 << 20},
		"USE_STATSD=false":                              {got: func(c config) any { return c.Statistics.StatsD.Address }, want: ""},
		"STATSD_HOST=statsd":                            {got: func(c config) any { return c.Statistics.StatsD.Address }, want: "statsd:8125"},
		"STATSD_PORT=9125":                              {got: func(c config) any { return c.Statistics.StatsD.Address }, want: "localhost:9125"},
		"STATSD_PROTOCOL=udp":                           {got: func(c config) any { return c.Statistics.StatsD.TCP }, want: false},
		"USE_DOG_STATSD=true": {got: func(c config) any {
			return c.Statistics.StatsD.Dog && !c.Statistics.StatsD.TCP && c.Statistics.StatsD.Address != ""
		}, want: true},
		"USE_PROMETHEUS=true":    {got: func(c config) any { return c.Metrics.Address + c.Statistics.StatsD.Address }, want: ":9090"},
		"PROMETHEUS_ADDR=:19001": {with: []string{"USE_PROMETHEUS=true", "USE_STATSD=true"}, got: func(c config) any { return c.Metrics.Address + c.Statistics.StatsD.Address }, want: ":19001localhost:8125"},
		"WEIR_HTTP_JSON=loopback": {
			got:  func(c config) any { return c.Server.JSON },
			want: server.JSON{From: server.JSONFromLoopback, Refunds: true, Overrides: true},
		},
		"WEIR_HTTP_JSON_ALLOW=refund": {
			got:  func(c config) any { return [2]bool{c.Server.JSON.Refunds, c.Server.JSON.Overrides} },
			want: [2]bool{true, false},
		},
		"WEIR_GRPC_SERVER=grpc":                         {got: func(c config) any { return c.Server.GRPCGo }, want: true},
		"WEIR_MAX_REQUEST_BYTES=1000":                   {got: func(c config) any { return c.Server.MaxRequestBytes }, want: 1000},
		"WEIR_MAX_CONNECTIONS=7":                        {got: func(c config) any { return c.MaxConnections }, want: 7},
		"WEIR_MAX_BYTES_IN_FLIGHT=2000000":              {got: func(c config) any { return c.Server.MaxBytesInFlight }, want: 2000000},
		"WEIR_MAX_RULES_BYTES=1000":                     {got: func(c config) any { return c.Rules.MaxBytes }, want: 1000},
		"RULES_OVERLAY=/etc/weir/overlay.yaml":          {got: func(c config) any { return c.Rules.Paths[1] }, want: "/etc/weir/overlay.yaml"},
		"WEIR_PPROF=on":                                 {got: func(c config) any { return c.Pages.Pprof }, want: true},
		"WEIR_STATE_DIR=/var/lib/weir":                  {got: func(c config) any { return c.State.Dir }, want: "/var/lib/weir"},
		"WEIR_LOG_DENIALS=30/m":                         {got: func(c config) any { return c.Pages.LogDenials }, want: 0.5},
		"WEIR_RECORD=/var/lib/weir":                     {got: func(c config) any { return c.Record.Dir }, want: "/var/lib/weir"},
		"WEIR_RECORD_MAX_BYTES=10000000":                {got: func(c config) any { return c.Record.MaxBytes }, want: 10_000_000},
		"WEIR_HASH_VALUES=client,user":                  {with: []string{"WEIR_RECORD=r"}, got: func(c config) any { return c.Record.Hash }, want: []string{"client", "user"}},
		"WEIR_HASH_SALT_FILE=/salt":                     {with: []string{"WEIR_RECORD=r", "WEIR_HASH_VALUES=client"}, got: func(c config) any { return c.Record.SaltFile }, want: "/salt"},
		"WEIR_TOP_KEYS=7":                               {got: func(c config) any { return c.Limiter.TopKeys }, want: 7},
		"WEIR_ADMIN_ADDRESS=":                           {got: func(c config) any { return c.Admin }, want: app.Endpoint{}},
		"WEIR_ADMIN_TOKEN_FILE=/t":                      {got: func(c config) any { return c.AdminAccess.TokenFile.Path }, want: "/t"},
		"WEIR_HOSTS=weir.example":                       {got: func(c config) any { return c.Hosts }, want: []string{"weir.example"}},
		"WEIR_ADMIN_TLS_CERT=/c":                        {got: func(c config) any { return c.AdminAccess.TLS.Certificate.Path }, want: "/c"},
		"WEIR_ADMIN_TLS_KEY=/k":                         {got: func(c config) any { return c.AdminAccess.TLS.Key.Path }, want: "/k"},
		"WEIR_ADMIN_TLS_CLIENT_CA=/ca":                  {got: func(c config) any { return c.AdminAccess.TLS.Authorities.Path }, want: "/ca"},
		"PROMETHEUS_PATH=/m":                            {got: func(c config) any { return c.MetricsPath }, want: "/m"},
		"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true": {got: func(c config) any { return c.Statistics.Collector.Milliseconds }, want: true},
		"EXTRA_TAGS=a:b,c:d":                            {got: func(c config) any { return c.Statistics.Collector.Tags }, want: map[string]string{"a": "b", "c": "d"}},
		"STATS_FLUSH_INTERVAL=1s":                       {got: func(c config) any { return c.Statistics.StatsD.Interval }, want: time.Second},
		"DISABLE_STATS=true":                            {with: []string{"USE_PROMETHEUS=true"}, got: func(c config) any { return c.Statistics.StatsD.Address + c.Metrics.Address }, want: ""},
		"USE_DOG_STATSD_MOGRIFIERS=tag": {with: []string{"DOG_STATSD_MOGRIFIER_TAG_PATTERN=^(a)$", "DOG_STATSD_MOGRIFIER_TAG_NAME=b", "DOG_STATSD_MOGRIFIER_TAG_TAGS=x:$1"}, got: func(c config) any {
			return reflect.DeepEqual(c.Statistics.StatsD.Mogrifiers, []statistics.Mogrifier{wantMogrifier(t)})
		}, want: true},
		"BACKEND_TYPE=redis":                           {got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"unix:///var/run/nutcracker/ratelimit.sock"}},
		"BACKEND_TYPE=":                                {with: []string{redisOn}, got: func(c config) any { return c.Backend }, want: backendRedis},
		"BACKEND_TYPE=memory":                          {with: []string{redisOn}, got: func(c config) any { return c.Backend }, want: backendMemory},
		"EXPIRATION_JITTER_MAX_SECONDS=2147483647":     {got: func(c config) any { return time.Duration(c.JitterSeconds) * time.Second }, want: redisstore.MaxJitter},
		"EXPIRATION_JITTER_MAX_SECONDS=0":              {got: func(c config) any { return c.JitterSeconds }, want: 0},
		"LOCAL_CACHE_SIZE_IN_BYTES=1000":               {got: func(c config) any { return c.Store.DenyCache }, want: shared.DefaultDenials},
		"NEAR_LIMIT_RATIO=0.5":                         {got: func(c config) any { return c.Limiter.NearLimit }, want: 0.5},
		"CACHE_KEY_PREFIX=p:":                          {got: func(c config) any { return c.Redis.Prefix }, want: "p:"},
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true": {got: func(c config) any { return c.Limiter.DropRejected }, want: true},
		"USE_CALENDAR_MONTH_RATE_LIMIT=true":           {got: func(c config) any { return c.Rules.CalendarMonths }, want: true},
		"SHADOW_MODE=true":                             {got: func(c config) any { return c.Limiter.Shadow }, want: true},
		"QUOTA_MODE=true":                              {got: func(c config) any { return c.Limiter.Quota }, want: true},
		"RESPONSE_DYNAMIC_METADATA=true":               {got: func(c config) any { return c.Server.DynamicMetadata }, want: true},
		"LIMIT_RESPONSE_HEADERS_ENABLED=true":          {got: func(c config) any { return c.Server.Headers.RateLimit }, want: true},
		"LIMIT_LIMIT_HEADER=x-l":                       {got: func(c config) any { return c.Server.Headers.Limit }, want: "x-l"},
		"LIMIT_REMAINING_HEADER=x-r":                   {got: func(c config) any { return c.Server.Headers.Remaining }, want: "x-r"},
		"LIMIT_RESET_HEADER=x-t":                       {got: func(c config) any { return c.Server.Headers.Reset }, want: "x-t"},
		"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true": {got: func(c config) any { return c.ReadyRequiresRules }, want: true},
		"REDIS_SOCKET_TYPE=tcp":                        {with: []string{redisOn}, got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"redis://redis:6379"}},
		"REDIS_TYPE=cluster":                           {with: []string{"REDIS_URL=a:1,b:2"}, got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"redis-cluster://a:1,b:2"}},
		"REDIS_TYPE=Sentinel":                          {with: []string{"REDIS_URL=main, a:1, b:2"}, got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"redis-sentinel://a:1,b:2/main"}},
		"REDIS_URL=/run/a b.sock":                      {got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"unix:///run/a%20b.sock"}},
		"REDIS_AUTH=user:p:w":                          {with: []string{redisOn}, got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"unix://user:p:w@redis:6379"}},
		"REDIS_TLS=true":                               {with: []string{redisOn, "REDIS_SOCKET_TYPE=tcp"}, got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"rediss://redis:6379"}},
		"REDIS_TLS_CLIENT_CERT=c":                      {with: []string{redisOn, "REDIS_SOCKET_TYPE=tcp", "REDIS_TLS=true"}, got: func(c config) any { return c.Redis.Target.Cert }, want: "c"},
		"REDIS_TLS_CLIENT_KEY=k":                       {with: []string{redisOn, "REDIS_SOCKET_TYPE=tcp", "REDIS_TLS=true"}, got: func(c config) any { return c.Redis.Target.Key }, want: "k"},
		"REDIS_TLS_CACERT=ca":                          {with: []string{redisOn, "REDIS_SOCKET_TYPE=tcp", "REDIS_TLS=true"}, got: func(c config) any { return c.Redis.Target.CA }, want: "ca"},
		"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true":    {with: []string{redisOn, "REDIS_SOCKET_TYPE=tcp", "REDIS_TLS=true"}, got: func(c config) any { return c.Redis.Target.ServerName }, want: redisstore.AnyServerName},
		"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=1":       {with: []string{redisOn, "REDIS_SOCKET_TYPE=tcp"}, got: func(c config) any { return c.Redis.Target }, want: redisstore.Target{URLs: []string{"redis://redis:6379"}}},
		"REDIS_SENTINEL_AUTH=pw":                       {with: []string{"REDIS_URL=main,a:1", "REDIS_TYPE=sentinel"}, got: func(c config) any { return c.Redis.Target.URLs }, want: []string{"redis-sentinel://a:1/main?sentinel_password=pw&sentinel_username="}},
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true":    {got: func(c config) any { return c.ReadyRequiresStore }, want: true},
		"WEIR_FLEET_SIZE=7":                            {got: func(c config) any { return c.Store.FleetSize }, want: 7},
		"WEIR_SHARING=leased":                          {got: func(c config) any { return c.Limiter.Leased }, want: true},
		"REDIS_OP_TIMEOUT=0":                           {got: func(c config) any { return c.Redis.Timeout }, want: 10 * time.Second},
		"REDIS_OP_TIMEOUT=50ms":                        {got: func(c config) any { return c.Redis.Timeout }, want: 50 * time.Millisecond},
		"REDIS_KEY_FORMAT=WEIR":                        {got: func(c config) any { return c.OriginalKeys }, want: false},
		"REDIS_PERSECOND=false":                        {with: []string{redisOn, "REDIS_PERSECOND_URL=/run/s"}, got: func(c config) any { return c.Redis.Seconds == nil }, want: true},
		"REDIS_PERSECOND=true":                         {with: []string{redisOn}, got: func(c config) any { return c.Redis.Seconds.URLs }, want: []string{"unix:///var/run/nutcracker/ratelimitpersecond.sock"}},
		"REDIS_PERSECOND=1":                            {got: func(c config) any { return c.Backend }, want: backendMemory},
		"REDIS_PERSECOND_SOCKET_TYPE=tcp":              {with: []string{redisOn, secondsOn, "REDIS_PERSECOND=true"}, got: func(c config) any { return c.Redis.Seconds.URLs }, want: []string{"redis://seconds:6379"}},
		"REDIS_PERSECOND_TYPE=CLUSTER":                 {with: []string{redisOn, "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=a:1,b:2"}, got: func(c config) any { return c.Redis.Seconds.URLs }, want: []string{"redis-cluster://a:1,b:2"}},
		"REDIS_PERSECOND_URL=/run/s":                   {with: []string{redisOn, "REDIS_PERSECOND=true"}, got: func(c config) any { return c.Redis.Seconds.URLs }, want: []string{"unix:///run/s"}},
		"REDIS_PERSECOND_AUTH=u:pw": {with: []string{redisOn, secondsOn, "REDIS_PERSECOND=true"}, got: func(c config) any {
			return slices.Concat(c.Redis.Seconds.URLs, c.Redis.Target.URLs)
		}, want: []string{"unix://u:pw@seconds:6379", "unix://redis:6379"}},
		"REDIS_PERSECOND_TLS=true": {with: []string{redisOn, secondsOn, "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_TLS_CACERT=ca"}, got: func(c config) any { return []any{c.Redis.Seconds.URLs[0], c.Redis.Seconds.CA, c.Redis.Target.CA} }, want: []any{"rediss://seconds:6379", "ca", ""}},
		"REDIS_PERSECOND_SENTINEL_AUTH=u:pw": {with: []string{redisOn, "REDIS_PERSECOND=true", "REDIS_PERSECOND_TYPE=sentinel", "REDIS_PERSECOND_URL=main,a:1"}, got: func(c config) any {
			return c.Redis.Seconds.URLs
		}, want: []string{"redis-sentinel://a:1/main?sentinel_password=pw&sentinel_username=u"}},
		"TRACING_ENABLED=true":           {got: func(c config) any { return c.Traced }, want: true},
		"TRACING_SERVICE_NAME=s":         {got: func(c config) any { return c.Spans.Service }, want: "s"},
		"TRACING_SERVICE_NAMESPACE=n":    {got: func(c config) any { return c.Namespace }, want: "n"},
		"TRACING_SERVICE_INSTANCE_ID=i":  {got: func(c config) any { return c.InstanceID }, want: "i"},
		"TRACING_EXPORTER_PROTOCOL=gRPC": {got: func(c config) any { return c.Spans.Protocol }, want: tracing.ProtocolGRPC},
		"TRACING_SAMPLING_RATE=0.25":     {got: func(c config) any { return c.Spans.Ratio }, want: 0.25},
	}
	for pair := range strings.FieldsSeq(idle) {
		row := tests[pair]
		row.got, row.want = nothing, ""
		tests[pair] = row
	}
	untested := variables(new(config))
	for pair, test := range tests {
		name, _, _ := strings.Cut(pair, "=")
		if _, found := variables(new(config))[name]; !found {
			t.Errorf("%s is in no table", name)
		}
		delete(untested, name)
		t.Run(name, func(t *testing.T) {
			c := read(t, append(test.with, pair)...)
			must.Match(t, pair, test.want, test.got(c))
		})
	}
	for name := range untested {
		t.Errorf("%s is in no row of this test", name)
	}
}

func wantMogrifier(t *testing.T) statistics.Mogrifier {
	t.Helper()
	m := must.Get(statistics.NewMogrifier("^(a)$", "b", map[string]string{"x": "$1"}))(t)
	return m
}

// nothing returns "" for settings that are as without any variable.
func nothing(c config) any {
	usual, err := readConfig(nil)
	if err != nil {
		return err.Error()
	}
	return cmp.Diff(usual, c, cmpopts.IgnoreUnexported(config{}))
}

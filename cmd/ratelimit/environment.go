package main

import (
	_ "embed"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// texts has the effect of each variable, on a line of its own.
//
//go:embed variables.txt
var texts string

// variable is one line of the table that the environment is read by and docs/migrating-variables.md
// is made of. A variable without an effect is read too: a value that the original would not start
// with is a mistake all the same.
type variable struct {
	name  string
	value settings.Value
	usual string // read when the variable is not there; "" reads nothing
}

// effects returns the effect of each variable, or of an idle one the reason why it has none.
func effects() (does map[string]string, idle map[string]bool) {
	does, idle = make(map[string]string), make(map[string]bool)
	for line := range strings.Lines(texts) {
		if name, text, found := strings.Cut(strings.TrimSpace(line), ": "); found {
			name, without := strings.CutSuffix(name, " (no effect)")
			does[name], idle[name] = text, without
		}
	}
	return does, idle
}

func text(to *string, check func(string) error) settings.Value {
	return settings.Text(to, "text", check)
}

func duration(to *time.Duration) settings.Value { return settings.Duration(to, 0, math.MaxInt64) }

// port is a port number; 0 is any free port.
func port(to *int) settings.Value { return settings.Integer(to, 0, math.MaxUint16) }

func powers() []string { return []string{"refund", "override"} }

// group is variables that the document shows together.
type group struct {
	title     string
	variables []variable
}

// table returns every variable of the original, and then ours, all of which are stored in c.
func table(c *config) []group {
	return []group{
		{"Server", serverVariables(c)},
		{"Rules", ruleVariables(c)},
		{"Figures", statsVariables(c)},
		{"Limits", limitVariables(c)},
		{"Redis", redisVariables(c)},
		{"Redis for limits per second", perSecondVariables(c)},
		{"Memcached", memcacheVariables(c)},
		{"Traces", tracingVariables(c)},
		{"Beyond the original's own", moreVariables(c)},
	}
}

func serverVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		{"HOST", text(&r.http.host, hostName), "0.0.0.0"},
		{"PORT", port(&r.http.port), "8080"},
		{"DEBUG_HOST", text(&r.debug.host, hostName), "0.0.0.0"},
		{"DEBUG_PORT", port(&r.debug.port), "6070"},
		{"GRPC_HOST", text(&r.grpc.host, hostName), "0.0.0.0"},
		{"GRPC_PORT", port(&r.grpc.port), "8081"},
		{"GRPC_UDS", text(&c.Socket.Address, nil), ""},
		{"GRPC_MAX_CONNECTION_AGE", duration(&c.Server.MaxConnectionAge), "24h"},
		{"GRPC_MAX_CONNECTION_AGE_GRACE", duration(&c.Server.MaxConnectionAgeGrace), "1h"},
		{"GRPC_SERVER_USE_TLS", settings.Bool(&c.UseTLS), "false"},
		{"GRPC_SERVER_TLS_CERT", text(&c.TLS.Certificate.Path, nil), ""},
		{"GRPC_SERVER_TLS_KEY", text(&c.TLS.Key.Path, nil), ""},
		{"GRPC_CLIENT_TLS_CACERT", text(&c.TLS.Authorities.Path, nil), ""},
		{"GRPC_CLIENT_TLS_SAN", text(&c.ClientName, nil), ""},
		{"LOG_LEVEL", logLevel(&c.LogLevel), "WARN"},
		{"LOG_FORMAT", text(&r.logFormat, nil), "text"},
	}
}

func ruleVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		{"CONFIG_TYPE", settings.Choice(&c.ConfigType, configFile, configXDS, configXDSDelta), "FILE"},
		{"FORCE_START_WITHOUT_INITIAL_CONFIG", settings.Bool(&c.StartWithoutRules), "false"},
		{"RUNTIME_ROOT", text(&r.root, nil), "/srv/runtime_data/current"},
		{"RUNTIME_SUBDIRECTORY", text(&r.sub, nil), ""},
		{"RUNTIME_APPDIRECTORY", text(&r.app, nil), "config"},
		{"RUNTIME_IGNOREDOTFILES", settings.Not(&c.DotFiles), "false"},
		{"RUNTIME_WATCH_ROOT", settings.Bool(new(bool)), "true"},
		{"MERGE_DOMAIN_CONFIG", settings.Bool(&c.Rules.MergeDomains), "false"},
		{"CONFIG_GRPC_XDS_NODE_ID", text(&c.XDS.Node.ID, nil), "default"},
		{"CONFIG_GRPC_XDS_NODE_METADATA", settings.Equations(&c.XDS.Node.Metadata), ""},
		{"CONFIG_GRPC_XDS_SERVER_URL", text(&c.XDS.Address, nil), "localhost:18000"},
		{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", duration(new(time.Duration)), "3s"},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", settings.SecretPairs(&c.XDSHeaders), ""},
		{"CONFIG_GRPC_XDS_SERVER_USE_TLS", settings.Bool(&c.XDSUsesTLS), "false"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", text(&c.XDSTLS.Certificate.Path, nil), ""},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", text(&c.XDSTLS.Key.Path, nil), ""},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", text(&c.XDSTLS.Authorities.Path, nil), ""},
		{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", text(&c.XDSTLS.ServerName, nil), ""},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", duration(&c.XDS.MinBackoff), "10s"},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", duration(&c.XDS.MaxBackoff), "60s"},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", settings.Fraction(new(float64), 64), "0.5"},
		{"XDS_CLIENT_BACKOFF_JITTER", settings.Not(&c.XDS.Steady), "true"},
		{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", settings.Integer(&c.XDS.MaxMessageBytes, 0, math.MaxInt32), "0"},
	}
}

func statsVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		{"USE_STATSD", settings.Bool(&r.stats.statsd), "true"},
		{"STATSD_HOST", text(&r.stats.at.host, hostName), "localhost"},
		{"STATSD_PORT", port(&r.stats.at.port), "8125"},
		{"USE_DOG_STATSD", settings.Bool(&r.stats.dog), "false"},
		{"USE_DOG_STATSD_MOGRIFIERS", settings.Words(&r.stats.mogrifiers), ""},
		{"USE_PROMETHEUS", settings.Bool(&r.stats.prometheus), "false"},
		{"PROMETHEUS_ADDR", text(&r.stats.address, listenAddress), ":9090"},
		{"PROMETHEUS_PATH", text(&c.MetricsPath, rooted), "/metrics"},
		{"PROMETHEUS_MAPPER_YAML", text(new(string), nil), ""},
		{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", settings.Bool(&c.Statistics.Collector.Milliseconds), "false"},
		{"EXTRA_TAGS", settings.Pairs(&c.Statistics.Collector.Tags), ""},
		{"STATS_FLUSH_INTERVAL", duration(&c.Statistics.StatsD.Interval), "10s"},
		{"DISABLE_STATS", settings.Bool(&r.stats.off), "false"},
	}
}

func limitVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		{"BACKEND_TYPE", backend(&c.Backend), ""},
		{"EXPIRATION_JITTER_MAX_SECONDS", settings.Integer(&c.JitterSeconds, 0, int(redisstore.MaxJitter/time.Second)), "300"},
		{"LOCAL_CACHE_SIZE_IN_BYTES", settings.Integer(&r.cacheBytes, 0, math.MaxInt), "0"},
		{"NEAR_LIMIT_RATIO", settings.Fraction(&c.Limiter.NearLimit, 32), "0.8"},
		{"CACHE_KEY_PREFIX", text(&c.Redis.Prefix, nil), ""},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", settings.Bool(&c.Limiter.DropRejected), "false"},
		{"USE_CALENDAR_MONTH_RATE_LIMIT", settings.Bool(&c.Rules.CalendarMonths), "false"},
		{"SHADOW_MODE", settings.Bool(&c.Limiter.Shadow), "false"},
		{"QUOTA_MODE", settings.Bool(&c.Limiter.Quota), "false"},
		{"RESPONSE_DYNAMIC_METADATA", settings.Bool(&c.Server.DynamicMetadata), "false"},
		{"LIMIT_RESPONSE_HEADERS_ENABLED", settings.Bool(&c.Server.Headers.RateLimit), "false"},
		{"LIMIT_LIMIT_HEADER", text(&c.Server.Headers.Limit, settings.HeaderName), "RateLimit-Limit"},
		{"LIMIT_REMAINING_HEADER", text(&c.Server.Headers.Remaining, settings.HeaderName), "RateLimit-Remaining"},
		{"LIMIT_RESET_HEADER", text(&c.Server.Headers.Reset, settings.HeaderName), "RateLimit-Reset"},
		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", settings.Bool(&c.ReadyRequiresRules), "false"},
	}
}

// moreVariables are variables that the original does not have, or reads by other means, and
// variables that platforms set.
func moreVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		{"REDIS_KEY_FORMAT", settings.OneOfAnyCase(&c.OriginalKeys, []string{"ratelimit", "weir"}, true, false), "ratelimit"},
		{"REDIS_OP_TIMEOUT", duration(&c.Redis.Timeout), opTimeout.String()},
		{"WEIR_SHARING", settings.OneOf(&c.Limiter.Leased, []string{"exact", "leased"}, false, true), "exact"},
		{"REDIS_PERSECOND_OP_TIMEOUT", duration(new(time.Duration)), opTimeout.String()},
		{"WEIR_MAX_RULES_BYTES", settings.Integer(&c.Rules.MaxBytes, 1, math.MaxInt32), strconv.Itoa(descriptors.DefaultMaxBytes)},
		{"RULES_OVERLAY", settings.List(&r.overlays, "path", nil), ""},
		{"WEIR_ADMIN_ADDRESS", text(&c.Admin.Address, listenAddress), "127.0.0.1:8082"},
		{"WEIR_ADMIN_TOKEN_FILE", text(&c.AdminAccess.TokenFile.Path, nil), ""},
		{"WEIR_HOSTS", settings.List(&c.Hosts, "name", nil), ""},
		{"WEIR_ADMIN_TLS_CERT", text(&c.AdminAccess.TLS.Certificate.Path, nil), ""},
		{"WEIR_ADMIN_TLS_KEY", text(&c.AdminAccess.TLS.Key.Path, nil), ""},
		{"WEIR_ADMIN_TLS_CLIENT_CA", text(&c.AdminAccess.TLS.Authorities.Path, nil), ""},
		{"WEIR_HTTP_JSON", settings.OneOf(
			&c.Server.JSON.From, []string{"off", "loopback", "on"}, server.JSONOff, server.JSONFromLoopback, server.JSONFromAnywhere,
		), "on"},
		{"WEIR_HTTP_JSON_ALLOW", settings.List(&r.allowedJSON, "power", settings.Among(powers())), strings.Join(powers(), ",")},
		{"WEIR_PPROF", settings.OneOf(&c.Pages.Pprof, []string{"loopback", "on"}, false, true), "loopback"},
		{"WEIR_STATE_DIR", text(&c.State.Dir, nil), ""},
		{"WEIR_LOG_DENIALS", settings.Rate(&c.Pages.LogDenials, admin.MaxLogDenials), "0"},
		{"WEIR_RECORD", text(&c.Record.Dir, nil), ""},
		{"WEIR_RECORD_MAX_BYTES", settings.Number(
			&c.Record.MaxBytes, records.MinMaxBytes, math.MaxInt,
		), strconv.Itoa(records.DefaultMaxBytes)},
		{"WEIR_HASH_VALUES", settings.List(&c.Record.Hash, "key", nil), ""},
		{"WEIR_HASH_SALT_FILE", text(&c.Record.SaltFile, nil), ""},
		{"STATSD_PROTOCOL", settings.OneOfAnyCase(&r.stats.tcp, []string{"tcp", "udp"}, true, false), "tcp"},
		{"WEIR_FLEET_SIZE", settings.Number(&c.Store.FleetSize, 0, app.MaxFleetSize), "0"},
		{"WEIR_TOP_KEYS", settings.Number(&c.Limiter.TopKeys, 0, limiter.MaxTopKeys), strconv.Itoa(limiter.DefaultTopKeys)},
		{"WEIR_GRPC_SERVER", settings.OneOf(&c.Server.GRPCGo, []string{"lane", "grpc"}, false, true), "lane"},
		{"WEIR_MAX_REQUEST_BYTES", settings.Number(
			&c.Server.MaxRequestBytes, 1, math.MaxInt32,
		), strconv.Itoa(server.DefaultMaxRequestBytes)},
		{"WEIR_MAX_CONNECTIONS", settings.Number(&c.MaxConnections, 1, math.MaxInt32), strconv.Itoa(app.DefaultMaxConnections)},
		{"WEIR_MAX_BYTES_IN_FLIGHT", settings.Number(
			&c.Server.MaxBytesInFlight, 1<<20, math.MaxInt,
		), strconv.Itoa(server.DefaultMaxBytesInFlight)},
		{"GRPC_SERVER_TLS_CA_CERT", text(new(string), nil), ""},
		{"REDIS_POOL_ON_EMPTY_WAIT_DURATION", text(new(string), nil), ""},
	}
}

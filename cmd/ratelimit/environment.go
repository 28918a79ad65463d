package main

import (
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

// variable is one line of the table that the environment is read by and docs/migrating-variables.md
// is made of.
type variable struct {
	name  string
	value settings.Value
	usual string // read when the variable is not there; "" reads nothing
	does  string // the effect; of an idle variable, the reason. Starts in lower case, one line
	idle  bool   // accepted without effect
}

func used(name string, v settings.Value, usual, does string) variable {
	return variable{name: name, value: v, usual: usual, does: does}
}

// idle is a variable that has none, and why. A value that the original would not start with is a
// mistake all the same.
func idle(name string, v settings.Value, usual, why string) variable {
	return variable{name: name, value: v, usual: usual, does: why, idle: true}
}

func text(to *string, check func(string) error) settings.Value {
	return settings.Text(to, "text", check)
}

func duration(to *time.Duration) settings.Value { return settings.Duration(to, 0, math.MaxInt64) }

// port is a port number; 0 is any free port.
func port(to *int) settings.Value { return settings.Integer(to, 0, math.MaxUint16) }

func powers() []string { return []string{"refund", "override"} }

// power accepts one of them.
func power(s string) error { return settings.Choice(new(string), powers()...).Set(s) }

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
		used("HOST", text(&r.host, hostName), "0.0.0.0", "listens on this host for HTTP: `/json`, `/healthcheck`"),
		used("PORT", port(&r.port), "8080", "and on this port"),
		used("DEBUG_HOST", text(&r.debugHost, hostName), "0.0.0.0", "listens on this host for the debug pages"),
		used("DEBUG_PORT", port(&r.debugPort), "6070", "and on this port"),
		used("GRPC_HOST", text(&r.grpcHost, hostName), "0.0.0.0", "listens on this host for the rate limit service"),
		used("GRPC_PORT", port(&r.grpcPort), "8081", "and on this port"),
		used("GRPC_UDS", text(&c.Socket.Address, nil), "", "listens on this Unix socket instead"),
		used("GRPC_MAX_CONNECTION_AGE", duration(&c.Server.MaxConnectionAge), "24h", "asks connections of that age, give or take a tenth, to go"),
		used("GRPC_MAX_CONNECTION_AGE_GRACE", duration(&c.Server.MaxConnectionAgeGrace), "1h", "breaks them so much later"),
		used("GRPC_SERVER_USE_TLS", settings.Bool(&c.UseTLS), "false", "serves gRPC over TLS"),
		used("GRPC_SERVER_TLS_CERT", text(&c.TLS.Certificate.Path, nil), "", "file of the certificate, read again when it changes; it and the key may be in different directories"),
		used("GRPC_SERVER_TLS_KEY", text(&c.TLS.Key.Path, nil), "", "file of its key"),
		used("GRPC_CLIENT_TLS_CACERT", text(&c.TLS.Authorities.Path, nil), "", "clients must show a certificate that this authority signed; the system's authorities do not count"),
		used("GRPC_CLIENT_TLS_SAN", text(&c.ClientName, nil), "", "DNS name that their certificates must have"),
		used("LOG_LEVEL", logLevel(&c.LogLevel), "WARN", "lowest level in the log; `panic` and `fatal` log nothing, `trace` is `debug`"),
		used("LOG_FORMAT", text(&r.logFormat, nil), "text", "`json` gives fields `@timestamp`, `level` and `@message`; anything else is text"),
	}
}

func ruleVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("CONFIG_TYPE", settings.Choice(&c.ConfigType, configFile, configXDS, configXDSDelta), "FILE", "source of the rules: `FILE`, `GRPC_XDS_SOTW`, or `GRPC_XDS_DELTA` (not in the original), which asks for changes only"),
		used("FORCE_START_WITHOUT_INITIAL_CONFIG", settings.Bool(&c.StartWithoutRules), "false", "listens before there are rules"),
		used("RUNTIME_ROOT", text(&r.root, nil), "/srv/runtime_data/current", "rules are the files in `RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY`, and in directories below it"),
		used("RUNTIME_SUBDIRECTORY", text(&r.sub, nil), "", "see RUNTIME_ROOT"),
		used("RUNTIME_APPDIRECTORY", text(&r.app, nil), "config", "see RUNTIME_ROOT"),
		used("RUNTIME_IGNOREDOTFILES", settings.Not(&c.DotFiles), "false", "`false` also reads files whose names start with one dot. Weir never reads names with two dots, which Kubernetes makes"),
		idle("RUNTIME_WATCH_ROOT", settings.Bool(new(bool)), "true", "both are watched: the files, and every symbolic link on the way to them"),
		used("MERGE_DOMAIN_CONFIG", settings.Bool(&c.Rules.MergeDomains), "false", "files of one domain are one, in the order of their names"),
		used("CONFIG_GRPC_XDS_NODE_ID", text(&c.XDS.Node.ID, nil), "default", "with xDS: the node's id"),
		used("CONFIG_GRPC_XDS_NODE_METADATA", settings.Equations(&c.XDS.Node.Metadata), "", "with xDS: the node's metadata"),
		used("CONFIG_GRPC_XDS_SERVER_URL", text(&c.XDS.Address, nil), "localhost:18000", "with xDS: the server, host:port"),
		idle("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", duration(new(time.Duration)), "3s", "attempts to connect wait as those after a broken stream do: see XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
		used("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", settings.SecretPairs(&c.XDSHeaders), "", "with xDS: metadata of the call"),
		used("CONFIG_GRPC_XDS_SERVER_USE_TLS", settings.Bool(&c.XDSUsesTLS), "false", "with xDS: over TLS"),
		used("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", text(&c.XDSTLS.Cert, nil), "", "file of the certificate to show"),
		used("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", text(&c.XDSTLS.Key, nil), "", "file of its key"),
		used("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", text(&c.XDSTLS.CA, nil), "", "file of the authorities that sign the server's"),
		used("CONFIG_GRPC_XDS_SERVER_TLS_SAN", text(&c.XDSTLS.ServerName, nil), "", "name that the server's certificate must have"),
		used("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", duration(&c.XDS.MinBackoff), "10s", "with xDS: the wait after the first failure"),
		used("XDS_CLIENT_BACKOFF_MAX_INTERVAL", duration(&c.XDS.MaxBackoff), "60s", "and the longest one"),
		idle("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", settings.Fraction(new(float64), 64), "0.5", "each wait is longer than the one before; the original multiplies by this number, so that 0.5 never grows"),
		used("XDS_CLIENT_BACKOFF_JITTER", settings.Not(&c.XDS.Steady), "true", "waits are spread at random"),
		used("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", settings.Integer(&c.XDS.MaxMessageBytes, 0, math.MaxInt32), "0", "with xDS: the largest message in bytes; 0 is 64 MiB"),
	}
}

func statsVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("USE_STATSD", settings.Bool(&r.statsd), "true", "tells StatsD; the default gives way to USE_PROMETHEUS and USE_DOG_STATSD, and `true` beside them is no mistake"),
		used("STATSD_HOST", text(&r.statsdHost, hostName), "localhost", "host of StatsD or DogStatsD"),
		used("STATSD_PORT", port(&r.statsdPort), "8125", "its port"),
		used("USE_DOG_STATSD", settings.Bool(&r.dog), "false", "tells DogStatsD, over UDP, instead of StatsD"),
		used("USE_DOG_STATSD_MOGRIFIERS", settings.Words(&r.mogrifiers), "", "turns names into tags for DogStatsD, by `DOG_STATSD_MOGRIFIER_<NAME>_PATTERN`, `_NAME` and `_TAGS`; the first of the list that matches counts"),
		used("USE_PROMETHEUS", settings.Bool(&r.prometheus), "false", "serves metrics for Prometheus"),
		used("PROMETHEUS_ADDR", text(&r.prometheusAddress, listenAddress), ":9090", "on this address"),
		used("PROMETHEUS_PATH", text(&c.MetricsPath, rooted), "/metrics", "under this path"),
		idle("PROMETHEUS_MAPPER_YAML", text(new(string), nil), "", "names and labels always follow the original's own mapping, which this file would replace"),
		used("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", settings.Bool(&c.Statistics.Collector.Milliseconds), "false", "response times are in milliseconds, though their name says seconds"),
		used("EXTRA_TAGS", settings.Pairs(&c.Statistics.Collector.Tags), "", "labels of all metrics of the original's names; with StatsD `.__key=value` behind the name, with DogStatsD tags"),
		used("STATS_FLUSH_INTERVAL", duration(&c.Statistics.StatsD.Interval), "10s", "how often StatsD and DogStatsD are told; Prometheus always reads the figures of now"),
		used("DISABLE_STATS", settings.Bool(&r.off), "false", "tells nobody"),
	}
}

func limitVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("BACKEND_TYPE", backend(&c.Backend), "", "store of the counts. Unset or empty means `redis` with a REDIS_URL, and otherwise `memory`, which is ours. `memcache` is refused: counts there are not atomic, and failures stay unseen"),
		used("EXPIRATION_JITTER_MAX_SECONDS", settings.Integer(&c.JitterSeconds, 0, int(redisstore.MaxJitter/time.Second)), "300", "with Redis and the original's keys: largest random number of seconds that a key outlives its window. Our keys expire when they are idle"),
		used("LOCAL_CACHE_SIZE_IN_BYTES", settings.Integer(&r.cacheBytes, 0, math.MaxInt), "0", "with Redis: more than 0 denies a key that is over its limit from memory, until the limit has room or rules change. Weir bounds the size"),
		used("NEAR_LIMIT_RATIO", settings.Fraction(&c.Limiter.NearLimit, 32), "0.8", "from which part of a limit on hits count as near_limit"),
		used("CACHE_KEY_PREFIX", text(&c.Redis.Prefix, nil), "", "with Redis: prefix of keys; in our keys `weir:` follows"),
		used("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", settings.Bool(&c.Limiter.DropRejected), "false", "a request that is over limit counts nowhere, in one atomic step; for limits whose rules have no count_rejected"),
		used("SHADOW_MODE", settings.Bool(&c.Limiter.Shadow), "false", "every request passes; the statuses show the verdicts"),
		used("QUOTA_MODE", settings.Bool(&c.Limiter.Quota), "false", "requests are over limit only when all their limits are"),
		used("RESPONSE_DYNAMIC_METADATA", settings.Bool(&c.Server.DynamicMetadata), "false", "answers with dynamic metadata"),
		used("LIMIT_RESPONSE_HEADERS_ENABLED", settings.Bool(&c.Server.Headers.RateLimit), "false", "answers with the three headers that follow"),
		used("LIMIT_LIMIT_HEADER", text(&c.Server.Headers.Limit, settings.HeaderName), "RateLimit-Limit", "name of the header with the limit"),
		used("LIMIT_REMAINING_HEADER", text(&c.Server.Headers.Remaining, settings.HeaderName), "RateLimit-Remaining", "name of the header with the remaining hits"),
		used("LIMIT_RESET_HEADER", text(&c.Server.Headers.Reset, settings.HeaderName), "RateLimit-Reset", "name of the header with the seconds until reset"),
		used("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", settings.Bool(&c.ReadyRequiresRules), "false", "health is bad until there are rules"),
	}
}

// moreVariables are variables that the original does not have, or reads by other means, and
// variables that platforms set.
func moreVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("REDIS_KEY_FORMAT", settings.OneOfAnyCase(&c.OriginalKeys, []string{"ratelimit", "weir"}, true, false), "ratelimit", "with Redis: `ratelimit` counts the original's limits under its keys, together with pods of it; `weir` counts all under keys of ours, which never collide"),
		used("REDIS_OP_TIMEOUT", duration(&c.Redis.Timeout), "10ms", "with Redis: longest wait of a request without a deadline; a request with one waits three quarters of the time to it. After that `on_store_error` decides, by default in memory. 0 is the default"),
		used("WEIR_SHARING", settings.OneOf(&c.Limiter.Leased, []string{"exact", "leased"}, false, true), "exact", "with Redis, for limits without `sharing`: `exact` asks Redis about each request. `leased` takes hits of hot keys in advance, and so decides most requests here ([redis-leases.md](redis-leases.md))"),
		idle("REDIS_PERSECOND_OP_TIMEOUT", duration(new(time.Duration)), "10ms", "REDIS_OP_TIMEOUT is for both"),
		used("WEIR_MAX_RULES_BYTES", settings.Integer(&c.Rules.MaxBytes, 1, math.MaxInt32), strconv.Itoa(descriptors.DefaultMaxBytes), "largest size of all rules together, also by xDS; a value counts at least 12 bytes; loading takes up to 35 times that memory"),
		used("WEIR_ADMIN_ADDRESS", text(&c.Admin.Address, listenAddress), "127.0.0.1:8082", "listens on this address for the admin service, which `sidecar match --server` and `sidecar reset` ask, and for its page. Not on loopback clients must show a token or a certificate. Set to nothing it is off. When the default address is taken, the service logs a warning and starts without it"),
		used("WEIR_ADMIN_TOKEN_FILE", text(&c.AdminAccess.TokenFile.Path, nil), "", "file that holds the token that clients of WEIR_ADMIN_ADDRESS must show, 16 to 4096 characters; read again when it changes"),
		used("WEIR_HOSTS", settings.List(&c.Hosts, "name", nil), "", "names by which browsers may reach the admin page, and clients `/json` with `loopback`, beside localhost and IP addresses"),
		used("WEIR_ADMIN_TLS_CERT", text(&c.AdminAccess.TLS.Certificate.Path, nil), "", "certificate of WEIR_ADMIN_ADDRESS, PEM; without it there is no TLS"),
		used("WEIR_ADMIN_TLS_KEY", text(&c.AdminAccess.TLS.Key.Path, nil), "", "key of WEIR_ADMIN_TLS_CERT, PEM"),
		used("WEIR_ADMIN_TLS_CLIENT_CA", text(&c.AdminAccess.TLS.Authorities.Path, nil), "", "authorities of client certificates, PEM; without it clients need no certificate"),
		used("WEIR_HTTP_JSON", settings.OneOf(&c.Server.JSON.From, []string{"off", "loopback", "on"}, server.JSONOff, server.JSONFromLoopback, server.JSONFromAnywhere), "on", "clients of `/json`: `on` takes any request that reaches HOST and PORT, as the original does. `loopback` takes requests of programs on this machine, and keeps web pages out ([operations.md](admin.md#json))"),
		used("WEIR_HTTP_JSON_ALLOW", settings.List(&r.allowedJSON, "power", power), strings.Join(powers(), ","), "allows refunds (`is_negative_hits`) and overrides (`limit`) by `/json`, beside charges"),
		used("WEIR_STATE_DIR", text(&c.State.Dir, nil), "", "with BACKEND_TYPE `memory`: directory in which counts outlive a restart, and a crash but for 10 seconds. One process at a time may use it"),
		used("WEIR_LOG_DENIALS", settings.Rate(&c.Pages.LogDenials, admin.MaxLogDenials), "0", "denied requests to log at `warn`, such as `1/s` or `10/m`; 0 logs none. Keys and values of clients are in these lines"),
		used("WEIR_RECORD", text(&c.Record.Dir, nil), "", "directory in which all requests are recorded, for `sidecar simulate` and `sidecar suggest` ([records.md](records.md)). One process at a time may use it"),
		used("WEIR_RECORD_MAX_BYTES", settings.Number(&c.Record.MaxBytes, records.MinMaxBytes, math.MaxInt), strconv.Itoa(records.DefaultMaxBytes), "most bytes of all recorded files together; at the bound the oldest is removed"),
		used("WEIR_HASH_VALUES", settings.List(&c.Record.Hash, "key", nil), "", "with WEIR_RECORD: keys, separated by commas. The record has hashes in place of their values"),
		used("WEIR_HASH_SALT_FILE", text(&c.Record.SaltFile, nil), "", "with WEIR_HASH_VALUES: file with a salt of at least 16 bytes. Without it the salt is random, and the process forgets it at its end"),
		used("STATSD_PROTOCOL", settings.OneOfAnyCase(&r.statsdTCP, []string{"tcp", "udp"}, true, false), "tcp", "how StatsD is told"),
		used("WEIR_FLEET_SIZE", settings.Number(&c.Store.FleetSize, 0, app.MaxFleetSize), "0", "with Redis: number of pods that share it. While Redis does not answer, each pod admits its part of the hits that are left. With 0, Redis counts the pods of Weir; it does not see pods of the original"),
		used("WEIR_TOP_KEYS", settings.Number(&c.Limiter.TopKeys, 0, limiter.MaxTopKeys), strconv.Itoa(limiter.DefaultTopKeys), "number of keys with the most hits that are tracked, for `sidecar top` and metrics, up to 1000 bytes each; 0 tracks none"),
		used("WEIR_GRPC_SERVER", settings.OneOf(&c.Server.GRPCGo, []string{"lane", "grpc"}, false, true), "lane", "server of Envoy's calls: `lane` is Weir's own. `grpc` is grpc-go, which takes five times the processor time with counts in memory"),
		used("WEIR_MAX_REQUEST_BYTES", settings.Number(&c.Server.MaxRequestBytes, 1, math.MaxInt32), strconv.Itoa(server.DefaultMaxRequestBytes), "largest request in bytes, by gRPC or `/json`. The original's is 4194304"),
		used("WEIR_MAX_CONNECTIONS", settings.Number(&c.MaxConnections, 1, math.MaxInt32), strconv.Itoa(app.DefaultMaxConnections), "largest number of open gRPC connections; at the bound a new one takes the place of an idle one. The original has no bound"),
		used("WEIR_MAX_BYTES_IN_FLIGHT", settings.Number(&c.Server.MaxBytesInFlight, 1<<20, math.MaxInt), strconv.Itoa(server.DefaultMaxBytesInFlight), "memory of all gRPC requests under way together in bytes, about 16000 each; beyond it requests are refused and connections end. The original has no bound"),
		idle("GRPC_SERVER_TLS_CA_CERT", text(new(string), nil), "", "Envoy Gateway sets it and the original does not know it: clients that show no certificate would be refused; GRPC_CLIENT_TLS_CACERT asks for that"),
		idle("REDIS_POOL_ON_EMPTY_WAIT_DURATION", text(new(string), nil), "", "of the original's README only; there is no pool"),
	}
}

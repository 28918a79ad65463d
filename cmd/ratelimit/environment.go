package main

import (
	"math"
	"time"

	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// variable is one line of the table that the environment is read by and docs/migrating-variables.md is made of.
type variable struct {
	name  string
	value value
	usual string // read when the variable is not there; "" reads nothing
	does  string // what it does; of an idle one, why it does nothing. Starts in lower case, one line
	idle  bool   // accepted without effect
}

// used is a variable that has an effect.
func used(name string, v value, usual, does string) variable {
	return variable{name: name, value: v, usual: usual, does: does}
}

// idle is a variable that has none, and why. A value that the original would not start with is a mistake all the same.
func idle(name string, v value, usual, why string) variable {
	return variable{name: name, value: v, usual: usual, does: why, idle: true}
}

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
		used("GRPC_UDS", text(&c.GRPCSocket, nil), "", "listens on this Unix socket instead"),
		used("GRPC_MAX_CONNECTION_AGE", duration(&c.GRPCAge), "24h", "asks connections of that age, give or take a tenth, to go"),
		used("GRPC_MAX_CONNECTION_AGE_GRACE", duration(&c.GRPCGrace), "1h", "breaks them so much later"),
		used("GRPC_SERVER_USE_TLS", boolean(&c.GRPCTLS.On), "false", "serves gRPC over TLS"),
		used("GRPC_SERVER_TLS_CERT", text(&c.GRPCTLS.Cert, nil), "", "file of the certificate, read again when it changes; it and the key may be in different directories"),
		used("GRPC_SERVER_TLS_KEY", text(&c.GRPCTLS.Key, nil), "", "file of its key"),
		used("GRPC_CLIENT_TLS_CACERT", text(&c.GRPCTLS.ClientCA, nil), "", "clients must show a certificate that this authority signed; those of the system do not count"),
		used("GRPC_CLIENT_TLS_SAN", text(&c.GRPCTLS.ClientSAN, nil), "", "DNS name that their certificates must have"),
		used("LOG_LEVEL", logLevel(&r.logLevel), "WARN", "least level that is logged; `panic` and `fatal` log nothing, `trace` is `debug`"),
		used("LOG_FORMAT", text(&r.logFormat, nil), "text", "`json` gives fields `@timestamp`, `level` and `@message`; anything else is text"),
	}
}

func ruleVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("CONFIG_TYPE", configType(&c.ConfigType), "FILE", "where rules come from: `FILE`, `GRPC_XDS_SOTW`, and, which the original does not have, `GRPC_XDS_DELTA`: by xDS, what changes alone"),
		used("FORCE_START_WITHOUT_INITIAL_CONFIG", boolean(&c.ForceStart), "false", "listens before there are rules"),
		used("RUNTIME_ROOT", text(&r.root, nil), "/srv/runtime_data/current", "rules are the files in `RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY`, and in directories below it"),
		used("RUNTIME_SUBDIRECTORY", text(&r.sub, nil), "", "see RUNTIME_ROOT"),
		used("RUNTIME_APPDIRECTORY", text(&r.app, nil), "config", "see RUNTIME_ROOT"),
		used("RUNTIME_IGNOREDOTFILES", not(&c.Files.DotFiles), "false", "`false` reads files whose names start with one dot too; those that start with two, which Kubernetes makes, never"),
		idle("RUNTIME_WATCH_ROOT", boolean(new(bool)), "true", "both are watched: the files, and every symbolic link on the way to them"),
		used("MERGE_DOMAIN_CONFIG", boolean(&c.Merge), "false", "files of one domain are one, in the order of their names"),
		used("CONFIG_GRPC_XDS_NODE_ID", text(&c.XDS.NodeID, nil), "default", "with xDS: the node's id"),
		used("CONFIG_GRPC_XDS_NODE_METADATA", equations(&c.XDS.Metadata), "", "with xDS: the node's metadata"),
		used("CONFIG_GRPC_XDS_SERVER_URL", text(&c.XDS.Server, nil), "localhost:18000", "with xDS: the server, host:port"),
		idle("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", duration(new(time.Duration)), "3s", "attempts to connect wait as those after a broken stream do: see XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
		used("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", secretPairs(&c.XDS.Headers), "", "with xDS: metadata of the call"),
		used("CONFIG_GRPC_XDS_SERVER_USE_TLS", boolean(&c.XDS.TLS), "false", "with xDS: over TLS"),
		used("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", text(&c.XDS.Cert, nil), "", "file of the certificate to show"),
		used("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", text(&c.XDS.Key, nil), "", "file of its key"),
		used("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", text(&c.XDS.CA, nil), "", "file of the authorities that sign the server's"),
		used("CONFIG_GRPC_XDS_SERVER_TLS_SAN", text(&c.XDS.ServerName, nil), "", "name that the server's certificate must have"),
		used("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", duration(&c.XDS.MinBackoff), "10s", "with xDS: the wait after the first failure"),
		used("XDS_CLIENT_BACKOFF_MAX_INTERVAL", duration(&c.XDS.MaxBackoff), "60s", "and the longest one"),
		idle("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", fraction(new(float64), 64), "0.5", "each wait is longer than the one before; the original multiplies by this number, so that 0.5 never grows"),
		used("XDS_CLIENT_BACKOFF_JITTER", boolean(&c.XDS.Jitter), "true", "waits are spread at random"),
		used("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", number(&c.XDS.MaxMessage, 0, math.MaxInt32), "0", "with xDS: the largest message in bytes; 0 is 64 MiB"),
	}
}

func statsVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("USE_STATSD", boolean(&r.statsd), "true", "tells StatsD; the default gives way to USE_PROMETHEUS and USE_DOG_STATSD, and `true` beside them is no mistake"),
		used("STATSD_HOST", text(&r.statsdHost, hostName), "localhost", "host of StatsD or DogStatsD"),
		used("STATSD_PORT", port(&r.statsdPort), "8125", "its port"),
		used("USE_DOG_STATSD", boolean(&r.dog), "false", "tells DogStatsD, over UDP, instead of StatsD"),
		used("USE_DOG_STATSD_MOGRIFIERS", list(&r.mogrifiers), "", "turns names into tags for DogStatsD, by `DOG_STATSD_MOGRIFIER_<NAME>_PATTERN`, `_NAME` and `_TAGS`; the first of the list that matches counts"),
		used("USE_PROMETHEUS", boolean(&r.prometheus), "false", "serves metrics for Prometheus"),
		used("PROMETHEUS_ADDR", text(&r.prometheusAddress, listenAddress), ":9090", "on this address"),
		used("PROMETHEUS_PATH", text(&c.Stats.Path, rooted), "/metrics", "under this path"),
		idle("PROMETHEUS_MAPPER_YAML", text(new(string), nil), "", "names and labels are always those of the original's own mapping, which this file would replace"),
		used("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", boolean(&c.Stats.Milliseconds), "false", "response times are in milliseconds, though their name says seconds"),
		used("EXTRA_TAGS", pairs(&c.Stats.Tags), "", "labels of all metrics of the original's names; with StatsD `.__key=value` behind the name, with DogStatsD tags"),
		used("STATS_FLUSH_INTERVAL", duration(&c.Stats.Flush), "10s", "how often StatsD and DogStatsD are told; Prometheus always reads the figures of now"),
		used("DISABLE_STATS", boolean(&r.off), "false", "tells nobody"),
	}
}

func limitVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("BACKEND_TYPE", backend(&r.backend), "", "where counts are: `redis`; unset or empty it is Redis when there is a REDIS_URL and memory without; `memory` is ours; `memcache` is refused, as counts in it are not atomic and its failures pass unseen"),
		used("EXPIRATION_JITTER_MAX_SECONDS", number(&c.Keys.Jitter, 0, int(redisstore.MaxJitter/time.Second)), "300", "with Redis and the original's keys: how many seconds longer than a window they live at most, at random; keys of ours go when they are as if never used"),
		used("LOCAL_CACHE_SIZE_IN_BYTES", number(&r.cacheBytes, 0, math.MaxInt), "0", "with Redis: more than 0 denies a key that is over its limit from memory, until the limit has room again or rules change; the size is ours to bound"),
		used("NEAR_LIMIT_RATIO", fraction(&c.NearLimit, 32), "0.8", "from which part of a limit on hits count as near_limit"),
		used("CACHE_KEY_PREFIX", text(&c.Keys.Prefix, nil), "", "with Redis: what keys begin with; in those of ours `weir:` follows"),
		used("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", boolean(&c.StopCounting), "false", "a request that is over limit counts nowhere, in one atomic step; for limits whose rules have no count_rejected"),
		used("SHADOW_MODE", boolean(&c.Shadow), "false", "requests pass whatever is found; the statuses say what was"),
		used("QUOTA_MODE", boolean(&c.Quota), "false", "requests are over limit only when all their limits are"),
		used("RESPONSE_DYNAMIC_METADATA", boolean(&c.DynamicMetadata), "false", "answers with dynamic metadata"),
		used("LIMIT_RESPONSE_HEADERS_ENABLED", boolean(&c.Headers), "false", "answers with the three headers that follow"),
		used("LIMIT_LIMIT_HEADER", text(&c.LimitHeader, headerName), "RateLimit-Limit", "name of the header with the limit"),
		used("LIMIT_REMAINING_HEADER", text(&c.RemainingHeader, headerName), "RateLimit-Remaining", "name of the header with what is left"),
		used("LIMIT_RESET_HEADER", text(&c.ResetHeader, headerName), "RateLimit-Reset", "name of the header with the seconds until reset"),
		used("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", boolean(&c.HealthyWithRules), "false", "health is bad until there are rules"),
	}
}

// moreVariables is what the original does not have, reads by other means, or is given by platforms all the same.
func moreVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("REDIS_KEY_FORMAT", word(&c.Keys.Format, keysOriginal, keysWeir), keysOriginal, "with Redis: `ratelimit` counts the original's limits under its keys, together with pods of it; `weir` counts all under keys of ours, which never collide"),
		used("REDIS_OP_TIMEOUT", duration(&c.RedisPatience), "10ms", "with Redis: longest time that a request waits for it; more than that is decided as `on_store_error` says, by default in memory. 0 is the default"),
		idle("REDIS_PERSECOND_OP_TIMEOUT", duration(new(time.Duration)), "10ms", "REDIS_OP_TIMEOUT is for both"),
		used("STATSD_PROTOCOL", word(&r.statsdProtocol, "tcp", "udp"), "tcp", "how StatsD is told"),
		idle("GRPC_SERVER_TLS_CA_CERT", text(new(string), nil), "", "Envoy Gateway sets it and the original does not know it: clients that show no certificate would be refused; GRPC_CLIENT_TLS_CACERT asks for that"),
		idle("REDIS_POOL_ON_EMPTY_WAIT_DURATION", text(new(string), nil), "", "of the original's README only; there is no pool"),
	}
}

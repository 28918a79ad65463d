package main

import (
	"math"
	"time"

	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/tracing"
)

func redisVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("REDIS_SOCKET_TYPE", settings.Choice(&r.redis.socket, "unix", "tcp", "tcp4", "tcp6"), "unix", "how Redis is reached"),
		used("REDIS_TYPE", redisType(&r.redis.kind), "SINGLE", "the topology of REDIS_URL, in any case"),
		used("REDIS_URL", settings.Secret(&r.redis.url), "", "`host:port` or the path of a socket; of a cluster several, with commas between; of Sentinel the primary's name and then the sentinels. With BACKEND_TYPE=redis and without this it is `/var/run/nutcracker/ratelimit.sock`, as in the original"),
		idle("REDIS_POOL_SIZE", settings.Integer(new(int), 1, math.MaxInt32), "10", "requests of many callers share few connections"),
		used("REDIS_AUTH", settings.Secret(&r.redis.auth), "", "`password` or `user:password`"),
		used("REDIS_TLS", settings.Bool(&r.redis.tls), "false", "over TLS"),
		used("REDIS_TLS_CLIENT_CERT", text(&r.cert, nil), "", "file of the certificate to show"),
		used("REDIS_TLS_CLIENT_KEY", text(&r.key, nil), "", "file of its key"),
		used("REDIS_TLS_CACERT", text(&r.ca, nil), "", "file of the authorities that sign the server's"),
		used("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", settings.Bool(&r.anyName), "false", "the server's certificate may be for any name; that one of the authorities signed it is still asked for"),
		used("REDIS_SENTINEL_AUTH", settings.Secret(&r.redis.sentinelAuth), "", "`password` or `user:password` of the sentinels"),
		idle("REDIS_PIPELINE_WINDOW", duration(new(time.Duration)), "0", "requests that wait together always travel together, and none waits for others"),
		idle("REDIS_PIPELINE_LIMIT", settings.Integer(new(int), math.MinInt, math.MaxInt), "0", "the original ignores it too"),
		idle("REDIS_CLUSTER_PIPELINE_PARALLELISM", settings.Integer(new(int), 0, math.MaxInt32), "1", "nodes of a cluster are always asked at once"),
		idle("REDIS_TIMEOUT", duration(new(time.Duration)), "10s", "in the original a bound for connecting; here no request waits for a connection"),
		idle("REDIS_POOL_ON_EMPTY_BEHAVIOR", text(new(string), nil), "WAIT", "there is no pool that could be empty; any value is accepted, also those at which the original panics"),
		idle("REDIS_STARTUP_INITIAL_INTERVAL", duration(new(time.Duration)), "1s", "nothing waits for Redis at the start"),
		idle("REDIS_STARTUP_MAX_INTERVAL", duration(new(time.Duration)), "30s", "nothing waits for Redis at the start"),
		idle("REDIS_STARTUP_MAX_ELAPSED_TIME", duration(new(time.Duration)), "0", "nothing gives Redis up"),
		used("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", settings.Bool(&c.ReadyRequiresStore), "false", "health is bad while Redis cannot be asked"),
	}
}

func perSecondVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("REDIS_PERSECOND", settings.Bool(&r.perSecond), "false", "with Redis: limits whose period is a second are kept in a Redis of their own"),
		used("REDIS_PERSECOND_SOCKET_TYPE", settings.Choice(&r.seconds.socket, "unix", "tcp", "tcp4", "tcp6"), "unix", "as REDIS_SOCKET_TYPE"),
		used("REDIS_PERSECOND_TYPE", redisType(&r.seconds.kind), "SINGLE", "as REDIS_TYPE"),
		used("REDIS_PERSECOND_URL", settings.Secret(&r.seconds.url), originalSecondsSocket, "as REDIS_URL"),
		idle("REDIS_PERSECOND_POOL_SIZE", settings.Integer(new(int), 1, math.MaxInt32), "10", "as REDIS_POOL_SIZE"),
		used("REDIS_PERSECOND_AUTH", settings.Secret(&r.seconds.auth), "", "as REDIS_AUTH"),
		used("REDIS_PERSECOND_TLS", settings.Bool(&r.seconds.tls), "false", "as REDIS_TLS, with the same certificates"),
		used("REDIS_PERSECOND_SENTINEL_AUTH", settings.Secret(&r.seconds.sentinelAuth), "", "as REDIS_SENTINEL_AUTH"),
		idle("REDIS_PERSECOND_PIPELINE_WINDOW", duration(new(time.Duration)), "0", "as REDIS_PIPELINE_WINDOW"),
		idle("REDIS_PERSECOND_PIPELINE_LIMIT", settings.Integer(new(int), math.MinInt, math.MaxInt), "0", "as REDIS_PIPELINE_LIMIT"),
		idle("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", settings.Integer(new(int), 0, math.MaxInt32), "1", "as REDIS_CLUSTER_PIPELINE_PARALLELISM"),
		idle("REDIS_PERSECOND_TIMEOUT", duration(new(time.Duration)), "10s", "as REDIS_TIMEOUT"),
		idle("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", text(new(string), nil), "WAIT", "as REDIS_POOL_ON_EMPTY_BEHAVIOR"),
	}
}

func memcacheVariables(_ *config) []variable {
	return []variable{
		idle("MEMCACHE_HOST_PORT", settings.Words(new([]string)), "", "see BACKEND_TYPE"),
		idle("MEMCACHE_SRV", text(new(string), nil), "", "see BACKEND_TYPE"),
		idle("MEMCACHE_SRV_REFRESH", duration(new(time.Duration)), "0", "see BACKEND_TYPE"),
		idle("MEMCACHE_MAX_IDLE_CONNS", settings.Integer(new(int), math.MinInt, math.MaxInt), "2", "see BACKEND_TYPE"),
		idle("MEMCACHE_TLS", settings.Bool(new(bool)), "false", "see BACKEND_TYPE"),
		idle("MEMCACHE_TLS_CLIENT_CERT", text(new(string), nil), "", "see BACKEND_TYPE"),
		idle("MEMCACHE_TLS_CLIENT_KEY", text(new(string), nil), "", "see BACKEND_TYPE"),
		idle("MEMCACHE_TLS_CACERT", text(new(string), nil), "", "see BACKEND_TYPE"),
		idle("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", settings.Bool(new(bool)), "false", "see BACKEND_TYPE"),
	}
}

func tracingVariables(c *config) []variable {
	return []variable{
		used("TRACING_ENABLED", settings.Bool(&c.Traced), "false", "tells a collector about requests; where it is say `OTEL_EXPORTER_OTLP_*`"),
		used("TRACING_SERVICE_NAME", text(&c.Spans.Service, nil), "RateLimit", "name of the service"),
		used("TRACING_SERVICE_NAMESPACE", text(&c.Namespace, nil), "", "its namespace"),
		used("TRACING_SERVICE_INSTANCE_ID", text(&c.InstanceID, nil), "", "name of the instance; unset, Weir makes one up"),
		used("TRACING_EXPORTER_PROTOCOL", settings.OneOfAnyCase(&c.Spans.Protocol, []string{"http", "gRPC"}, tracing.ProtocolProtobuf, tracing.ProtocolGRPC), "http", "how the collector is told"),
		used("TRACING_SAMPLING_RATE", settings.Fraction(&c.Spans.Ratio, 64), "1", "which part of the requests, 0 to 1, where the caller has not decided"),
	}
}

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
		{"REDIS_SOCKET_TYPE", settings.Choice(&r.redis.socket, "unix", "tcp", "tcp4", "tcp6"), "unix"},
		{"REDIS_TYPE", redisType(&r.redis.kind), "SINGLE"},
		{"REDIS_URL", settings.Secret(&r.redis.url), ""},
		{"REDIS_POOL_SIZE", settings.Integer(new(int), 1, math.MaxInt32), "10"},
		{"REDIS_AUTH", settings.Secret(&r.redis.auth), ""},
		{"REDIS_TLS", settings.Bool(&r.redis.tls), "false"},
		{"REDIS_TLS_CLIENT_CERT", text(&r.redisTLS.Cert, nil), ""},
		{"REDIS_TLS_CLIENT_KEY", text(&r.redisTLS.Key, nil), ""},
		{"REDIS_TLS_CACERT", text(&r.redisTLS.CA, nil), ""},
		{"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", settings.Bool(&r.anyName), "false"},
		{"REDIS_SENTINEL_AUTH", settings.Secret(&r.redis.sentinelAuth), ""},
		{"REDIS_PIPELINE_WINDOW", duration(new(time.Duration)), "0"},
		{"REDIS_PIPELINE_LIMIT", settings.Integer(new(int), math.MinInt, math.MaxInt), "0"},
		{"REDIS_CLUSTER_PIPELINE_PARALLELISM", settings.Integer(new(int), 0, math.MaxInt32), "1"},
		{"REDIS_TIMEOUT", duration(new(time.Duration)), "10s"},
		{"REDIS_POOL_ON_EMPTY_BEHAVIOR", text(new(string), nil), "WAIT"},
		{"REDIS_STARTUP_INITIAL_INTERVAL", duration(new(time.Duration)), "1s"},
		{"REDIS_STARTUP_MAX_INTERVAL", duration(new(time.Duration)), "30s"},
		{"REDIS_STARTUP_MAX_ELAPSED_TIME", duration(new(time.Duration)), "0"},
		{"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", settings.Bool(&c.ReadyRequiresStore), "false"},
	}
}

func perSecondVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		{"REDIS_PERSECOND", settings.Bool(&r.perSecond), "false"},
		{"REDIS_PERSECOND_SOCKET_TYPE", settings.Choice(&r.seconds.socket, "unix", "tcp", "tcp4", "tcp6"), "unix"},
		{"REDIS_PERSECOND_TYPE", redisType(&r.seconds.kind), "SINGLE"},
		{"REDIS_PERSECOND_URL", settings.Secret(&r.seconds.url), originalSecondsSocket},
		{"REDIS_PERSECOND_POOL_SIZE", settings.Integer(new(int), 1, math.MaxInt32), "10"},
		{"REDIS_PERSECOND_AUTH", settings.Secret(&r.seconds.auth), ""},
		{"REDIS_PERSECOND_TLS", settings.Bool(&r.seconds.tls), "false"},
		{"REDIS_PERSECOND_SENTINEL_AUTH", settings.Secret(&r.seconds.sentinelAuth), ""},
		{"REDIS_PERSECOND_PIPELINE_WINDOW", duration(new(time.Duration)), "0"},
		{"REDIS_PERSECOND_PIPELINE_LIMIT", settings.Integer(new(int), math.MinInt, math.MaxInt), "0"},
		{"REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", settings.Integer(new(int), 0, math.MaxInt32), "1"},
		{"REDIS_PERSECOND_TIMEOUT", duration(new(time.Duration)), "10s"},
		{"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", text(new(string), nil), "WAIT"},
	}
}

func memcacheVariables(_ *config) []variable {
	return []variable{
		{"MEMCACHE_HOST_PORT", settings.Words(new([]string)), ""},
		{"MEMCACHE_SRV", text(new(string), nil), ""},
		{"MEMCACHE_SRV_REFRESH", duration(new(time.Duration)), "0"},
		{"MEMCACHE_MAX_IDLE_CONNS", settings.Integer(new(int), math.MinInt, math.MaxInt), "2"},
		{"MEMCACHE_TLS", settings.Bool(new(bool)), "false"},
		{"MEMCACHE_TLS_CLIENT_CERT", text(new(string), nil), ""},
		{"MEMCACHE_TLS_CLIENT_KEY", text(new(string), nil), ""},
		{"MEMCACHE_TLS_CACERT", text(new(string), nil), ""},
		{"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", settings.Bool(new(bool)), "false"},
	}
}

func tracingVariables(c *config) []variable {
	return []variable{
		{"TRACING_ENABLED", settings.Bool(&c.Traced), "false"},
		{"TRACING_SERVICE_NAME", text(&c.Spans.Service, nil), "RateLimit"},
		{"TRACING_SERVICE_NAMESPACE", text(&c.Namespace, nil), ""},
		{"TRACING_SERVICE_INSTANCE_ID", text(&c.InstanceID, nil), ""},
		{"TRACING_EXPORTER_PROTOCOL", settings.OneOfAnyCase(
			&c.Spans.Protocol, []string{"http", "gRPC"}, tracing.ProtocolProtobuf, tracing.ProtocolGRPC,
		), "http"},
		{"TRACING_SAMPLING_RATE", settings.Fraction(&c.Spans.Ratio, 64), "1"},
	}
}

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/certificates"
	"github.com/weirproxy/weir/internal/serving"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/statistics"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/tracing"
	"github.com/weirproxy/weir/pkg/xds"
)

// newStores makes the store that the variables ask for. It waits for nothing.
func newStores(c *config, logger *slog.Logger, traces *tracing.Tracing) (*serving.Stores, error) {
	o := serving.StoreOptions{Logger: logger, Traces: traces}
	if c.Backend == backendRedis {
		target, seconds, err := c.redisTargets()
		if err != nil {
			return nil, err
		}
		o.Redis = &redisstore.Options{
			Target:   target,
			Seconds:  seconds,
			Prefix:   c.Keys.Prefix + redisstore.DefaultPrefix,
			Counters: c.Keys.counters(),
			Timeout:  c.RedisPatience,
		}
		if c.DenyCache {
			o.Redis.DenyCache = redisstore.DefaultDenyCache
		}
	}
	return serving.NewStores(o)
}

// redisTargets returns where Redis is, and that of limits of a second; nil where there is none of their own.
func (c *config) redisTargets() (target redisstore.Target, seconds *redisstore.Target, err error) {
	target, err = c.Redis.parse()
	errs := lines("REDIS_URL", err)
	if c.Seconds != nil {
		seconds = new(redisstore.Target)
		*seconds, err = c.Seconds.parse()
		errs = append(errs, lines("REDIS_PERSECOND_URL", err)...)
	}
	return target, seconds, errors.Join(errs...)
}

// parse finds out where Redis is, and that the files of its certificates can be read.
func (r *redisTarget) parse() (redisstore.Target, error) {
	return redisstore.ParseTarget(redisstore.TargetOptions{
		URLs:             r.URLs,
		Username:         r.Username,
		Password:         r.Password,
		SentinelUsername: r.SentinelUsername,
		SentinelPassword: r.SentinelPassword,
		CA:               r.CA,
		Cert:             r.Cert,
		Key:              r.Key,
		AnyServerName:    r.AnyServerName,
	})
}

// counters returns what is counted under the original's keys.
func (k *redisKeys) counters() redisstore.Counters {
	if !k.original() {
		return redisstore.Counters{}
	}
	prefix := k.Prefix
	return redisstore.Counters{
		Name: func(dst, key []byte) ([]byte, bool) {
			return descriptors.AppendOriginalKey(append(dst, prefix...), key)
		},
		Jitter: time.Duration(k.Jitter) * time.Second,
	}
}

// keep reads the files of TLS again when they change, until end is called, and returns what the server needs of them; nil
// without TLS.
func (t *serverTLS) keep(logger *slog.Logger) (config *tls.Config, end func(), err error) {
	if !t.On {
		return nil, func() {}, nil
	}
	keeper, err := certificates.Open(certificates.Options{Files: t.files(), Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	var names []string
	if t.ClientSAN != "" {
		names = []string{t.ClientSAN}
	}
	return keeper.Server(names), keeper.Close, nil
}

// files names the files of TLS.
func (t *serverTLS) files() certificates.Files {
	return certificates.Files{
		Certificate: certificates.File{Name: "GRPC_SERVER_TLS_CERT", Path: t.Cert},
		Key:         certificates.File{Name: "GRPC_SERVER_TLS_KEY", Path: t.Key},
		Authorities: certificates.File{Name: "GRPC_CLIENT_TLS_CACERT", Path: t.ClientCA},
	}
}

// start begins to send spans; nil when nobody asked for any.
func (t *spans) start(ctx context.Context, logger *slog.Logger) (*tracing.Tracing, error) {
	if !t.On {
		return nil, nil //nolint:nilnil // a nil Tracing is one that makes no spans
	}
	o := tracing.Options{Service: t.Service, Attributes: make(map[string]string), Protocol: tracing.ProtocolProtobuf, Ratio: t.Rate, Logger: logger}
	if t.Protocol == protocolGRPC {
		o.Protocol = tracing.ProtocolGRPC
	}
	if t.Namespace != "" {
		o.Attributes["service.namespace"] = t.Namespace
	}
	o.Attributes["service.instance.id"] = cmp.Or(t.InstanceID, rand.Text())
	return tracing.New(ctx, o)
}

// source names the xDS server among the sources of rules.
func (x *xdsSource) source() string { return xds.Prefix + x.Server }

// feed returns what brings rules by xDS, nil where they come from files. They are required unless FORCE_START_WITHOUT_INITIAL_CONFIG
// says otherwise.
func (x *xdsSource) feed(
	c *config, r *reload.Reloader, l *limiter.Limiter, registry prometheus.Registerer, logger *slog.Logger,
) (*serving.Feed, error) {
	if !c.overXDS() {
		return nil, nil //nolint:nilnil // a nil Feed is one that brings no rules
	}
	o := x.options()
	o.Delta, o.Push, o.Logger = c.ConfigType == configXDSDelta, r.Push, logger
	return serving.NewFeed(o, !c.ForceStart, l, registry)
}

// options returns what the variables say of xDS.
func (x *xdsSource) options() xds.Options {
	o := xds.Options{
		Address:           x.Server,
		Node:              xds.Node{ID: x.NodeID},
		MaxMessageBytes:   x.MaxMessage,
		MaxMessageSetting: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
		MinBackoff:        x.MinBackoff,
		MaxBackoff:        x.MaxBackoff,
		Steady:            !x.Jitter,
	}
	if len(x.Metadata) > 0 {
		o.Node.Metadata = make(map[string]any, len(x.Metadata))
		for name, text := range x.Metadata {
			o.Node.Metadata[name] = text
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.Headers)) {
		o.Headers = append(o.Headers, xds.Header{Name: name, Value: x.Headers[name]})
	}
	if x.TLS {
		o.TLS = &xds.TLS{CA: x.CA, Cert: x.Cert, Key: x.Key, ServerName: x.ServerName}
	}
	return o
}

// start registers the original's metrics where Prometheus was asked for, and returns what reads the figures, and what tells them to
// StatsD until its context ends.
func (o *statsConfig) start(
	s *server.Server, l *limiter.Limiter, counts *serving.Stores, registry prometheus.Registerer, logger *slog.Logger,
) (*statistics.Reader, func(context.Context) error, error) {
	nobody := func(context.Context) error { return nil }
	figures, err := statistics.New(statistics.Options{
		Limiter: l, Spent: s.Spent, Lost: s.Lost, DeniedLocally: counts.DeniedLocally, DecidedWithout: counts.DecidedWithout,
	})
	if err != nil {
		return nil, nil, err
	}
	if o.Prometheus != "" {
		c, err := figures.NewCollector(statistics.CollectorOptions{Tags: o.Tags, Milliseconds: o.Milliseconds})
		if err == nil {
			err = registry.Register(c)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("EXTRA_TAGS: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	if o.Statsd == "" {
		return figures, nobody, nil
	}
	r := statistics.ReporterOptions{
		Address: o.Statsd, TCP: o.StatsdTCP, Dog: o.Dog, Tags: o.Tags, Interval: o.Flush, Logger: logger,
	}
	for _, m := range o.Mogrifiers {
		made, err := statistics.NewMogrifier(m.Pattern, m.Name, m.Tags)
		if err != nil {
			return nil, nil, err
		}
		r.Mogrifiers = append(r.Mogrifiers, made)
	}
	reporter, err := figures.NewReporter(r)
	if err != nil {
		return nil, nil, fmt.Errorf("StatsD: %w", err)
	}
	return figures, func(ctx context.Context) error { reporter.Run(ctx); return nil }, nil
}

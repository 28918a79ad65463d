package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
)

// config is the environment: an app.Config, and settings that finish makes a part of it.
type config struct {
	app.Config
	LogLevel slog.Level
	LogJSON  bool

	UseTLS     bool   // serve gRPC over TLS
	ClientName string // DNS name that a client's certificate must have; "" for any

	ConfigType string // configFile, configXDS or configXDSDelta
	DotFiles   bool   // read rule files whose names start with one dot
	XDSHeaders map[string]string
	XDSUsesTLS bool
	XDSTLS     xds.TLS

	Backend       string // backendMemory or backendRedis
	Redis         redisstore.Options
	OriginalKeys  bool // count the original's limits under its keys
	JitterSeconds int  // longest extra life of those keys

	Traced     bool
	Spans      tracing.Options
	Namespace  string
	InstanceID string

	raw raw
}

// The values of CONFIG_TYPE and BACKEND_TYPE.
const (
	configFile     = "FILE"
	configXDS      = "GRPC_XDS_SOTW"
	configXDSDelta = "GRPC_XDS_DELTA" // not in the original

	backendRedis    = "redis"
	backendMemory   = "memory"
	backendMemcache = "memcache"
)

// raw is variables that mean something only together with others.
type raw struct {
	http, debug, grpc endpoint
	spareAdmin        bool // go on without the admin address where another program has it
	logFormat         string
	allowedJSON       []string // of powers

	root, sub, app string
	overlays       []string // files and directories

	stats      rawStats
	cacheBytes int

	redis     rawRedis
	perSecond bool
	seconds   rawRedis
	redisTLS  redisstore.Target // the files
	anyName   bool              // in the certificate of Redis
}

// rawStats is the variables of the sinks of metrics.
type rawStats struct {
	prometheus, statsd, dog, off bool
	address                      string   // of Prometheus
	at                           endpoint // of StatsD
	tcp                          bool
	mogrifiers                   []string
}

type endpoint struct {
	host string
	port int
}

func (e endpoint) address() string { return address(e.host, e.port) }

func (c *config) overXDS() bool { return c.ConfigType != configFile }

// complete combines variables. set reports whether a variable is in the environment. The result is
// every mistake.
func (c *config) complete(set func(name string) bool) []error {
	r := &c.raw
	c.HTTP.Address = r.http.address()
	c.Debug.Address = r.debug.address()
	if c.Socket.Address == "" {
		c.GRPC.Address = r.grpc.address()
	}
	r.spareAdmin = !set("WEIR_ADMIN_ADDRESS") // the original would start
	c.LogJSON = strings.EqualFold(r.logFormat, "json")
	c.Rules.Paths = append([]string{filepath.Join(r.root, r.sub, r.app)}, r.overlays...)
	if r.cacheBytes > 0 {
		c.Store.DenyCache, c.Limiter.Remembered = shared.DefaultDenials, true
	}
	j := &c.Server.JSON
	j.Refunds, j.Overrides = slices.Contains(r.allowedJSON, "refund"), slices.Contains(r.allowedJSON, "override")
	j.AnyClient = j.From == server.JSONFromAnywhere
	c.completeStatistics(set)
	errs := append(c.completeTLS(), c.completeRedis()...)
	return append(errs, c.Record.Check("WEIR_RECORD", "WEIR_HASH_VALUES", "WEIR_HASH_SALT_FILE")...)
}

// completeStatistics chooses the sinks of the metrics. The original's default, StatsD, gives way to
// a sink that the environment names.
func (c *config) completeStatistics(set func(name string) bool) {
	r, s := &c.raw.stats, &c.Statistics
	s.StatsD.Tags = s.Collector.Tags
	if r.off {
		return
	}
	if s.Prometheus = r.prometheus; r.prometheus {
		c.Metrics.Address = cmp.Or(r.address, ":9090")
	}
	named := set("USE_STATSD") || !r.prometheus && !r.dog
	if s.StatsD.Dog = r.dog; r.dog || r.statsd && named {
		s.StatsD.Address = r.at.address()
		s.StatsD.TCP = !r.dog && r.tcp
	}
}

func (c *config) completeTLS() []error {
	var errs []error
	if c.UseTLS && (c.TLS.Certificate.Path == "" || c.TLS.Key.Path == "") {
		errs = append(errs, errors.New("GRPC_SERVER_USE_TLS: a certificate and its key are needed: GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY"))
	}
	if c.UseTLS && c.ClientName != "" && c.TLS.Authorities.Path == "" {
		errs = append(errs, errors.New("GRPC_CLIENT_TLS_SAN: no authority signs the name: GRPC_CLIENT_TLS_CACERT is needed"))
	}
	if c.overXDS() && c.XDSUsesTLS && (c.XDSTLS.Certificate.Path == "") != (c.XDSTLS.Key.Path == "") {
		errs = append(errs, errors.New("CONFIG_GRPC_XDS_CLIENT_TLS_CERT, CONFIG_GRPC_XDS_CLIENT_TLS_KEY: must both be given, or neither"))
	}
	return errs
}

// finish completes app.Config, and reads the certificates. The error joins every mistake. The parts
// that a variable has switched off become zero.
func (c *config) finish() error {
	c.DrainTimeout, c.Legacy, c.Server.Original, c.Server.Reflection = drainTimeout, true, true, true
	c.GRPC.Shared, c.HTTP.Shared, c.Socket.Mode = true, true, 0o660 // as the original
	c.Rules.Hint = c.Rules.Paths[0] + ": " + rulesHint
	c.finishRules()
	a := &c.AdminAccess
	a.TokenFile.Name = "WEIR_ADMIN_TOKEN_FILE"
	a.TLS.Certificate.Name, a.TLS.Key.Name, a.TLS.Authorities.Name = "WEIR_ADMIN_TLS_CERT", "WEIR_ADMIN_TLS_KEY", "WEIR_ADMIN_TLS_CLIENT_CA"
	errs := append(c.finishTLS(), a.Check())
	if c.Backend == backendRedis {
		c.finishRedis()
		errs = append(errs, settings.Mistakes("REDIS_URL", c.Redis.Target.Check())...)
		if c.Redis.Seconds != nil {
			errs = append(errs, settings.Mistakes("REDIS_PERSECOND_URL", c.Redis.Seconds.Check())...)
		}
	}
	errs = append(errs, c.finishXDS()...)
	if c.Statistics.Prometheus {
		errs = append(errs, settings.Mistakes("EXTRA_TAGS", c.Statistics.Collector.Check())...)
	}
	if c.Traced {
		c.Tracing = &c.Spans
		c.Spans.Attributes = map[string]string{"service.instance.id": cmp.Or(c.InstanceID, rand.Text())}
		if c.Namespace != "" {
			c.Spans.Attributes["service.namespace"] = c.Namespace
		}
	}
	return errors.Join(errs...)
}

// rulesHint is for somebody whose rules are not found.
const rulesHint = "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY say where their files are"

// finishRules completes the options that decide which rules are right.
func (c *config) finishRules() {
	c.Rules.Files = reload.All(c.DotFiles)
	c.Rules.DropRejected = c.Limiter.DropRejected
	c.Limiter.CalendarMonths = c.Rules.CalendarMonths
	c.Rules.OriginalKeys = c.Backend == backendRedis && c.OriginalKeys
}

// partVariables returns the variables of the parts that app.Run finds mistakes in.
func partVariables() map[app.Part]string {
	return map[app.Part]string{
		app.PartGRPC: "GRPC_HOST, GRPC_PORT", app.PartSocket: "GRPC_UDS", app.PartHTTP: "HOST, PORT", app.PartDebug: "DEBUG_HOST, DEBUG_PORT",
		app.PartMetrics: "PROMETHEUS_ADDR", app.PartAdmin: "WEIR_ADMIN_ADDRESS", app.PartState: "WEIR_STATE_DIR", app.PartRecord: "WEIR_RECORD",
	}
}

func (c *config) finishTLS() []error {
	if !c.UseTLS {
		c.TLS = app.TLS{}
		return nil
	}
	t := &c.TLS
	t.Certificate.Name, t.Key.Name, t.Authorities.Name = "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"
	if c.ClientName != "" {
		t.ClientNames = []string{c.ClientName}
	}
	return []error{t.Check()}
}

func (c *config) finishRedis() {
	c.Store.Redis = &c.Redis
	prefix := c.Redis.Prefix
	c.Redis.Prefix += redisstore.DefaultPrefix
	c.Redis.HashTag = descriptors.KeyBase
	if !c.OriginalKeys {
		return
	}
	c.Redis.Counters = redisstore.Counters{
		Name: func(dst, key []byte) ([]byte, bool) {
			return descriptors.AppendOriginalKey(append(dst, prefix...), key)
		},
		Jitter: time.Duration(c.JitterSeconds) * time.Second,
	}
}

// finishXDS leaves one source of rules, files or xDS, as in the original.
func (c *config) finishXDS() []error {
	if !c.overXDS() {
		c.XDS = xds.Options{}
		return nil
	}
	c.Rules.Paths, c.Rules.Files = c.raw.overlays, reload.Files{}
	c.Limiter.NeedRules = true // until then requests fail, and Envoy decides
	c.XDSRequired = !c.StartWithoutRules
	c.XDS.Delta = c.ConfigType == configXDSDelta
	c.XDS.MaxMessageSetting = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"
	if c.XDSUsesTLS {
		c.XDS.TLS = &c.XDSTLS
	}
	for _, name := range slices.Sorted(maps.Keys(c.XDSHeaders)) {
		c.XDS.Headers = append(c.XDS.Headers, xds.Header{Name: name, Value: c.XDSHeaders[name]})
	}
	return settings.Mistakes("xds", c.XDS.Check())
}

// address joins host and port. A host may be an IPv6 address with or without brackets.
func address(host string, port int) string {
	if inner, found := strings.CutPrefix(host, "["); found {
		host = strings.TrimSuffix(inner, "]")
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

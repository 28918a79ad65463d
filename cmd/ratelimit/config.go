package main

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// config is what the environment means. It is plain: nothing in it has been opened or read.
type config struct {
	HTTPAddress  string // of /json and /healthcheck
	DebugAddress string
	GRPCAddress  string // "" with a socket
	GRPCSocket   string // Unix socket instead of the address
	GRPCAge      time.Duration
	GRPCGrace    time.Duration
	GRPCTLS      serverTLS

	LogLevel slog.Level
	LogJSON  bool

	ConfigType string // configFile, configXDS or configXDSDelta
	ForceStart bool   // listen and be healthy before there are rules
	Files      fileSource
	XDS        xdsSource
	Merge      bool // documents of one domain are one

	Stats statsConfig

	Backend string // backendMemory or backendRedis
	Redis   redisTarget
	Seconds *redisTarget // where limits of a second are; nil: where the others are
	Keys    redisKeys

	RedisPatience time.Duration // longest time that a request waits for Redis; 0 is the store's default

	StopCounting bool // what is denied does not count, in fixed windows whose rules do not say otherwise
	DenyCache    bool // a key that is over its limit is denied from memory
	NearLimit    float64
	Shadow       bool // requests pass, whatever the verdict
	Quota        bool // every limit is a quota

	Headers         bool
	LimitHeader     string
	RemainingHeader string
	ResetHeader     string
	DynamicMetadata bool

	HealthyWithRules bool // health is bad until there are rules
	HealthyWithRedis bool // health is bad while Redis is away

	Tracing spans

	raw raw
}

// What the variables CONFIG_TYPE and BACKEND_TYPE may name, and what the store is without the latter.
const (
	configFile     = "FILE"
	configXDS      = "GRPC_XDS_SOTW"
	configXDSDelta = "GRPC_XDS_DELTA" // which the original does not have

	backendRedis    = "redis"
	backendMemory   = "memory"
	backendMemcache = "memcache"

	keysOriginal = "ratelimit"
	keysWeir     = "weir"

	kindSingle   = "SINGLE"
	kindCluster  = "CLUSTER"
	kindSentinel = "SENTINEL"
)

// serverTLS is what the gRPC server shows and asks for. Off, nothing else in it means anything.
type serverTLS struct {
	On        bool
	Cert, Key string // files, PEM
	ClientCA  string // file, PEM; "" asks for no certificate
	ClientSAN string // DNS name that the client's certificate must have; "" for any
}

// fileSource is where rule files are.
type fileSource struct {
	Dir      string // RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY
	DotFiles bool   // names that start with one dot are read too
}

// xdsSource is where rules come from by xDS.
type xdsSource struct {
	Server     string // host:port
	NodeID     string
	Metadata   map[string]string
	Headers    map[string]string
	MinBackoff time.Duration
	MaxBackoff time.Duration
	Jitter     bool
	MaxMessage int // bytes; 0 is ours to say

	TLS        bool
	Cert, Key  string // files, PEM
	CA         string // file, PEM; "" trusts those of the system
	ServerName string // that the server's certificate must have; "" is the host of Server
}

// statsConfig is who is told the figures.
type statsConfig struct {
	Prometheus   string // address; "" for nobody
	Path         string
	Milliseconds bool // response times are in milliseconds

	Statsd     string // address; "" for nobody
	StatsdTCP  bool
	Dog        bool // in the form of DogStatsD
	Mogrifiers []mogrifier
	Tags       map[string]string
	Flush      time.Duration
}

// mogrifier is what statistics.NewMogrifier makes one of.
type mogrifier struct {
	Pattern, Name string
	Tags          map[string]string
}

// protocolGRPC is the other value of TRACING_EXPORTER_PROTOCOL than http, in lower case.
const protocolGRPC = "grpc"

// spans is what is told about requests to a collector. The variables OTEL_* say where that is.
type spans struct {
	On         bool
	Service    string
	Namespace  string
	InstanceID string
	Protocol   string // http or grpc
	Rate       float64
}

// raw is variables that mean something only together with others.
type raw struct {
	host, debugHost, grpcHost string
	port, debugPort, grpcPort int
	logLevel, logFormat       string

	root, sub, app string

	prometheus, statsd, dog, off bool
	prometheusAddress            string
	statsdHost                   string
	statsdPort                   int
	statsdProtocol               string
	mogrifiers                   []string

	backend    string
	cacheBytes int
	redis      rawRedis
	perSecond  bool
	seconds    rawRedis
	anyName    bool // of Redis, in its certificate
	cert, key  string
	ca         string
}

// overXDS reports whether rules come by xDS, not from files.
func (c *config) overXDS() bool { return c.ConfigType != configFile }

// complete finds out what variables mean together. set tells those that are there. Its error is everything that is wrong.
func (c *config) complete(set func(name string) bool) []error {
	r := &c.raw
	c.HTTPAddress = address(r.host, r.port)
	c.DebugAddress = address(r.debugHost, r.debugPort)
	if c.GRPCSocket == "" {
		c.GRPCAddress = address(r.grpcHost, r.grpcPort)
	}
	c.LogLevel, _ = parseLevel(r.logLevel)
	c.LogJSON = strings.EqualFold(r.logFormat, "json")
	c.Files.Dir = filepath.Join(r.root, r.sub, r.app)
	c.DenyCache = r.cacheBytes > 0
	c.Tracing.Protocol = strings.ToLower(c.Tracing.Protocol)
	c.completeStats(set)
	errs := c.completeTLS()
	return append(errs, c.completeRedis()...)
}

// completeStats finds out who is told the figures. What was asked for by name goes before what the original does unless it is
// told otherwise, which is StatsD.
func (c *config) completeStats(set func(name string) bool) {
	r := &c.raw
	if r.off {
		return
	}
	if r.prometheus {
		c.Stats.Prometheus = cmp.Or(r.prometheusAddress, ":9090")
	}
	c.Stats.Path = cmp.Or(c.Stats.Path, "/metrics")
	asked := set("USE_STATSD") || !r.prometheus && !r.dog
	if c.Stats.Dog = r.dog; r.dog || r.statsd && asked {
		c.Stats.Statsd = address(r.statsdHost, r.statsdPort)
		c.Stats.StatsdTCP = !r.dog && r.statsdProtocol != "udp"
	}
}

func (c *config) completeTLS() []error {
	var errs []error
	if t := c.GRPCTLS; t.On && (t.Cert == "" || t.Key == "") {
		errs = append(errs, errors.New("GRPC_SERVER_USE_TLS: a certificate and its key are needed: GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY"))
	}
	if t := c.GRPCTLS; t.On && t.ClientSAN != "" && t.ClientCA == "" {
		errs = append(errs, errors.New("GRPC_CLIENT_TLS_SAN: nobody vouches for the name: GRPC_CLIENT_TLS_CACERT is needed"))
	}
	if x := c.XDS; c.overXDS() && x.TLS && (x.Cert == "") != (x.Key == "") {
		errs = append(errs, errors.New("CONFIG_GRPC_XDS_CLIENT_TLS_CERT, CONFIG_GRPC_XDS_CLIENT_TLS_KEY: must both be given, or none"))
	}
	return errs
}

// address joins host and port. A host may be an IPv6 address with or without brackets.
func address(host string, port int) string {
	if inner, found := strings.CutPrefix(host, "["); found {
		host = strings.TrimSuffix(inner, "]")
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

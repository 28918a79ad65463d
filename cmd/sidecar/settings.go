package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// config is the settings of `serve`, as they are meant after flags, environment, settings file and defaults.
type config struct {
	File  string   // the settings file, which may hold rules; "" for none
	Rules []string // files and directories
	XDS   xdsConfig

	GRPCAddress    string // "" for off, as the others
	GRPCSocket     string
	GRPCSocketMode fs.FileMode
	GRPCReusePort  bool
	GRPCTLS        tlsConfig
	HTTPAddress    string
	AdminAddress   string

	Store              string // memory or redis
	Redis              redisConfig
	OnStoreError       string // local, allow or deny
	ReadyRequiresStore bool

	MaxKeys              int
	OnFull               string // allow or deny
	MaxLogEntries        int
	MaxDescriptors       int
	MaxRequestBytes      int
	DetailedMetricValues int

	ResponseHeaders []string // of headerStyles
	LimitHeader     string
	RemainingHeader string
	ResetHeader     string
	DynamicMetadata bool

	LogLevel  string
	LogFormat string // text or json

	DrainTimeout   time.Duration
	ReloadDebounce time.Duration
	ReloadPoll     time.Duration
	Pprof          bool
	Reflection     bool
	Tracing        bool

	given map[string]string // settings that are no defaults, and how the operator wrote their names
}

// redisConfig is the settings of --store redis.
type redisConfig struct {
	URLs             []string
	Username         string
	Password         string
	PasswordFile     string
	SentinelUsername string
	SentinelPassword string
	SentinelFile     string // with its password
	CAFile           string
	CertFile         string
	KeyFile          string
	ServerName       string
	AnyServerName    bool
	Timeout          time.Duration
	Prefix           string
	HashTag          string // none or domain
	DenyCache        time.Duration

	target redisstore.Target // what most of the others mean together, with --store redis
}

// setting is one line of the table that flags, environment names, keys of the settings file and docs/settings.md are made of.
type setting struct {
	name  string // of the flag; with '-' or '_' the key in the settings file
	value value
	usual string // the default, as a flag would give it
	help  string // what it does, units and bounds; one line, starting in lower case
	local bool   // not a key of the settings file
}

// variable returns the name of the environment variable.
func (s setting) variable() string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// environmentPrefix begins the names of our environment variables.
const environmentPrefix = "WEIR_"

// headerStyles is what --response-headers may name.
func headerStyles() []string { return []string{"ratelimit", "ietf", "retry-after"} }

// table returns all settings, which are stored in c.
func table(c *config) []setting {
	off := ` ("" = off)`
	return slices.Concat([]setting{
		{"config", text(&c.File, "file", settingsFormat), "", "settings file: .yaml, .yml, .toml or .json; may hold rules under domains", true},
		{"rules", list(&c.Rules, "path", nil), "", "rule file or directory of *.yaml, *.yml and *.json; repeatable", false},
	}, c.XDS.table(), []setting{
		{"grpc-address", text(&c.GRPCAddress, "address", address), ":8081", "host:port of Envoy's rate limit service" + off, false},
		{"grpc-socket", text(&c.GRPCSocket, "path", nil), "", "Unix socket of the same service" + off + `; "@name" is an abstract one`, false},
		{"grpc-socket-mode", mode(&c.GRPCSocketMode), "0660", "permissions of the Unix socket, octal; in quotes in a file", false},
		{"grpc-reuseport", boolean(&c.GRPCReusePort), "false", "share --grpc-address with other processes (SO_REUSEPORT); all must", false},
		{"grpc-tls-cert", text(&c.GRPCTLS.CertFile, "file", nil), "", `certificate of --grpc-address, PEM ("" = no TLS); it, its key and the CA are read again when they change`, false},
		{"grpc-tls-key", text(&c.GRPCTLS.KeyFile, "file", nil), "", "its key, PEM", false},
		{"grpc-tls-client-ca", text(&c.GRPCTLS.ClientCAFile, "file", nil), "", `certificates one of which must have signed a client's, PEM ("" = clients need none); those of the system count for nothing`, false},
		{"grpc-tls-client-san", list(&c.GRPCTLS.ClientNames, "name", nil), "", `name that a client's certificate must have, DNS, URI, IP or email; one of several ("" = any); repeatable`, false},
		{"http-address", text(&c.HTTPAddress, "address", address), ":8080", "host:port of health, metrics, /json and /rules" + off, false},
		{"admin-address", text(&c.AdminAddress, "address", address), "127.0.0.1:8082", "host:port of the admin gRPC service" + off + "; it asks nobody who they are", false},

		{"store", storeOf(&c.Store), storeMemory, "where counts are kept: in this process, or in Redis or Valkey, where several sidecars share them", false},
		{"redis-url", urls(&c.Redis.URLs), "", "where Redis or Valkey is: redis://host:6379/0, rediss:// for TLS, unix:///path, redis-sentinel://host,host/primary, redis-cluster://host,host; repeatable", false},
		{"redis-username", text(&c.Redis.Username, "name", nil), "", "ACL user", false},
		{"redis-password", secret(&c.Redis.Password), "", "its password; in a file or the environment, a list of processes does not show it", false},
		{"redis-password-file", text(&c.Redis.PasswordFile, "file", nil), "", "file that holds the password, read once", false},
		{"redis-sentinel-username", text(&c.Redis.SentinelUsername, "name", nil), "", "ACL user of the sentinels", false},
		{"redis-sentinel-password", secret(&c.Redis.SentinelPassword), "", "password of the sentinels", false},
		{"redis-sentinel-password-file", text(&c.Redis.SentinelFile, "file", nil), "", "file that holds the password of the sentinels, read once", false},
		{"redis-tls-ca", text(&c.Redis.CAFile, "file", nil), "", `certificates that sign the server's, PEM ("" = those of the system)`, false},
		{"redis-tls-cert", text(&c.Redis.CertFile, "file", nil), "", "certificate to show to the server, PEM", false},
		{"redis-tls-key", text(&c.Redis.KeyFile, "file", nil), "", "its key, PEM", false},
		{"redis-tls-server-name", text(&c.Redis.ServerName, "name", nil), "", `name that the server's certificate must have ("" = the host of the URL)`, false},
		{"redis-tls-any-server-name", boolean(&c.Redis.AnyServerName), "false", "take a certificate for any name, as long as one of redis-tls-ca signed it; without that, one of the system's, from whom nearly anybody can have one", false},
		{"redis-timeout", duration(&c.Redis.Timeout, time.Millisecond, 10*time.Second), redisstore.DefaultTimeout.String(), "most time that a request waits for Redis, less when its caller does not wait so long", false},
		{"redis-prefix", text(&c.Redis.Prefix, "text", keyPrefix), redisstore.DefaultPrefix, "what all keys in Redis begin with", false},
		{"redis-hash-tag", choice(&c.Redis.HashTag, hashTagNone, hashTagDomain), hashTagNone, "what keeps keys in one slot of a cluster: domain makes each request atomic, and loads one node per domain", false},
		{"redis-deny-cache", duration(&c.Redis.DenyCache, 0, time.Minute), redisstore.DefaultDenyCache.String(), "how long a denied key is denied from memory at most, without asking Redis; 0 = not at all", false},
		{"on-store-error", choice(&c.OnStoreError, onErrorLocal, onErrorAllow, onErrorDeny), onErrorLocal, "while Redis cannot be asked: limit by this process's memory, allow or deny, where the rule has no on_store_error", false},
		{"ready-requires-store", boolean(&c.ReadyRequiresStore), "false", "say not ready while Redis cannot be asked", false},

		{"max-keys", number(&c.MaxKeys, math.MaxInt32), decimal(memstore.DefaultMaxKeys), "most keys in memory at once, a little over 50 bytes each; with Redis, of what is limited while it cannot be asked", false},
		{"on-full", choice(&c.OnFull, "allow", "deny"), "allow", "what happens to a new key when all that are remembered are denied now", false},
		{"max-log-entries", number(&c.MaxLogEntries, math.MaxInt32), decimal(limiter.DefaultMaxLogEntries), "largest requests_per_unit of a sliding_window_log, which remembers every hit", false},
		{"max-descriptors", number(&c.MaxDescriptors, server.MaxItems), decimal(limiter.DefaultMaxDescriptors), "most descriptors of one request", false},
		{"max-request-bytes", number(&c.MaxRequestBytes, math.MaxInt32), decimal(server.DefaultMaxRequestBytes), "largest request", false},
		{"detailed-metric-values", number(&c.DetailedMetricValues, math.MaxInt32), decimal(limiter.DefaultDetailedValues), "most values of a rule that metrics tell apart; the others are _other", false},

		{"response-headers", list(&c.ResponseHeaders, "style", headerStyle), "", "headers for Envoy to add to responses: " + strings.Join(headerStyles(), ", "), false},
		{"limit-header", text(&c.LimitHeader, "name", header), "RateLimit-Limit", "with ratelimit: name of the header with the hits per period", false},
		{"remaining-header", text(&c.RemainingHeader, "name", header), "RateLimit-Remaining", "with ratelimit: name of the header with the hits that are left", false},
		{"reset-header", text(&c.ResetHeader, "name", header), "RateLimit-Reset", "with ratelimit: name of the header with the seconds until reset", false},
		{"dynamic-metadata", boolean(&c.DynamicMetadata), "false", "answer with dynamic metadata, as envoyproxy/ratelimit does", false},

		{"log-level", choice(&c.LogLevel, "debug", "info", "warn", "error"), "info", "least level that is logged", false},
		{"log-format", choice(&c.LogFormat, "text", "json"), "text", "form of the log, which goes to standard error", false},

		{"drain-timeout", duration(&c.DrainTimeout, 0, time.Hour), "10s", "most time between SIGTERM and the end; 0 breaks what is in flight", false},
		{"reload-debounce", duration(&c.ReloadDebounce, time.Millisecond, time.Minute), reload.DefaultDebounce.String(), "how long rule files must rest after a change before they are read", false},
		{"reload-poll", duration(&c.ReloadPoll, 10*time.Millisecond, 24*time.Hour), reload.DefaultPoll.String(), "how often rule files are looked at where the file system tells of no change", false},
		{"pprof", boolean(&c.Pprof), "false", "serve /debug/pprof/ on the HTTP address", false},
		{"reflection", boolean(&c.Reflection), "true", "gRPC reflection on both gRPC services", false},
		{"tracing", boolean(&c.Tracing), "false", "send a span of each request by OTLP, to where the OTEL_* variables say", false},
	})
}

// check returns what is wrong with settings that are right one by one, and reads the files that some of them name.
func (c *config) check() []error {
	var errs []error
	if len(c.Rules) == 0 && c.File == "" && c.XDS.Address == "" {
		errs = append(errs, fmt.Errorf("rules: there are none: name a file or directory with --rules or %sRULES, a settings file that holds some under domains with --config, or an xDS server with --xds-address", environmentPrefix))
	}
	if c.GRPCAddress == "" && c.GRPCSocket == "" && c.HTTPAddress == "" {
		errs = append(errs, errors.New("grpc-address, grpc-socket, http-address: all are off, so nobody could ask"))
	}
	errs = append(errs, c.XDS.check(c.given)...)
	errs = append(errs, c.GRPCTLS.check(c.GRPCAddress)...)
	return append(errs, c.completeStore()...)
}

// settingsFormat accepts the name of a settings file.
func settingsFormat(path string) error {
	if path == "" || formatOf(path) != "" {
		return nil
	}
	return errors.New("must be a file whose name ends in .yaml, .yml, .toml or .json")
}

// headerStyle accepts a style of response headers.
func headerStyle(s string) error {
	return choice(new(string), headerStyles()...).store(s)
}

// decimal writes a number as a flag would give it.
func decimal(n int) string { return fmt.Sprint(n) }

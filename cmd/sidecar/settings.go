package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/admin/grants"
	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/internal/version"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/denycache"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// config is the settings of serve after flags, environment, settings file and defaults. Most are
// part of app.Config already; complete adds the others to it.
type config struct {
	app.Config
	LogLevel slog.Level
	LogJSON  bool

	InRedis bool // the counts
	Redis   redisstore.Options

	MaxLogEntries   int
	XDSUsesTLS      bool // also when XDSTLS has a file or a name
	XDSTLS          xds.TLS
	ResponseHeaders []string // of headerStyles
	AllowedJSON     []string // of powers
	Traced          bool

	given map[string]string // settings that are not defaults, and how the operator wrote their names
}

// setting is one row of the table from which flags, environment names, keys of the settings file
// and docs/settings.md are made.
type setting struct {
	name  string // of the flag; with '-' or '_' the key in the settings file
	value settings.Value
	usual string // the default, as a flag would give it
	help  string // effect, units and bounds; one line, starting in lower case
}

// onlyOutside reports whether the setting cannot be in the settings file.
func (s setting) onlyOutside() bool { return s.name == "config" }

// variable returns the name of the environment variable.
func (s setting) variable() string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// environmentPrefix begins the names of our environment variables.
const environmentPrefix = "WEIR_"

// headerStyles are the values of --response-headers.
func headerStyles() []string { return []string{"ratelimit", "ietf", "retry-after"} }

// powers are the values of --http-json-allow.
func powers() []string { return []string{"refund", "override"} }

// group is settings that help shows together.
type group struct {
	title    string
	settings []setting
}

// table returns all settings, which are stored in c.
func table(c *config) []setting {
	var all []setting
	for _, g := range groups(c) {
		all = append(all, g.settings...)
	}
	return all
}

// groups returns all settings, which are stored in c.
func groups(c *config) []group {
	off := ` ("" = off)`
	return []group{{"Rules", []setting{
		{"config", settings.Text(&c.Rules.Settings, "file", settingsFormat), "", "settings file: .yaml, .yml, .toml or .json; may hold rules under domains"},
		{"rules", settings.List(&c.Rules.Paths, "path", nil), "", "rule file or directory of *.yaml, *.yml and *.json; repeatable"},
		{"strict", settings.Bool(&c.Rules.Strict), "false", "refuse rules with warnings, as check --strict does"},
	}}, {"Rules by xDS", xdsTable(c)}, {"Listeners", []setting{
		{"grpc-address", settings.Text(&c.GRPC.Address, "address", address), ":8081", "host:port of Envoy's rate limit service" + off},
		{"grpc-socket", settings.Text(&c.Socket.Address, "path", nil), "", "Unix socket of the same service" + off + `; "@name" is an abstract one`},
		{"grpc-socket-mode", settings.Mode(&c.Socket.Mode), "0660", "permissions of the Unix socket, octal; in quotes in a file"},
		{"grpc-server", settings.OneOf(&c.Server.GRPCGo, []string{"lane", "grpc"}, false, true), "lane", "server of Envoy's calls: lane is Weir's own; grpc is grpc-go, which takes five times the processor time with counts in memory"},
		{"grpc-reuseport", settings.Bool(&c.GRPC.Shared), "false", "share --grpc-address with other processes (SO_REUSEPORT); all must"},
		{"grpc-tls-cert", settings.Text(&c.TLS.Certificate.Path, "file", nil), "", `certificate of --grpc-address, PEM ("" = no TLS); it, its key and the CA are read again when they change`},
		{"grpc-tls-key", settings.Text(&c.TLS.Key.Path, "file", nil), "", "its key, PEM"},
		{"grpc-tls-client-ca", settings.Text(&c.TLS.Authorities.Path, "file", nil), "", `authorities of client certificates, PEM ("" = clients need no certificate); the system's authorities do not count`},
		{"grpc-tls-client-san", settings.List(&c.TLS.ClientNames, "name", nil), "", `name that a client's certificate must have, DNS, URI, IP or email; one of several ("" = any); repeatable`},
		{"http-address", settings.Text(&c.HTTP.Address, "address", address), ":8080", "host:port of health, metrics, /json and /rules" + off},
		{"http-json", settings.OneOf(&c.Server.JSON.From, []string{"off", "loopback", "on"}, server.JSONOff, server.JSONFromLoopback, server.JSONFromAnywhere), "loopback", "clients of /json, which can charge every key: none, programs on this machine, or all that reach --http-address"},
		{"http-json-allow", settings.List(&c.AllowedJSON, "power", power), "", "allow to /json, beside charges: " + strings.Join(powers(), ", ")},
		{"http-json-hosts", settings.List(&c.Server.JSON.Hosts, "name", hostName), "", "names by which clients may reach /json, beside localhost and IP addresses; repeatable"},
		{"admin-address", settings.Text(&c.Admin.Address, "address", address), "127.0.0.1:8082", "host:port of the admin gRPC service and its page" + off + "; not on loopback clients must show a token or a certificate"},
		{"admin-token-file", settings.Text(&c.AdminAccess.TokenFile.Path, "file", nil), "", `file that holds the token that clients of --admin-address must show ("" = no token), 16 to 4096 characters; read again when it changes`},
		{"admin-hosts", settings.List(&c.AdminAccess.Hosts, "name", hostName), "", "names by which browsers may reach the admin page, beside localhost and IP addresses; repeatable"},
		{"admin-tls-cert", settings.Text(&c.AdminAccess.TLS.Certificate.Path, "file", nil), "", `certificate of --admin-address, PEM ("" = no TLS); it, its key and the CA are read again when they change`},
		{"admin-tls-key", settings.Text(&c.AdminAccess.TLS.Key.Path, "file", nil), "", "key of --admin-tls-cert, PEM"},
		{"admin-tls-client-ca", settings.Text(&c.AdminAccess.TLS.Authorities.Path, "file", nil), "", `authorities of client certificates, PEM ("" = clients need no certificate)`},
		{"admin-tls-client-san", settings.List(&c.AdminAccess.TLS.ClientNames, "name", nil), "", `name that a client's certificate must have, DNS, URI, IP or email; one of several ("" = any); repeatable`},
	}}, {"Counts", []setting{
		{"store", settings.OneOf(&c.InRedis, stores(), false, true), storeMemory, "where counts are kept: in this process, or in Redis or Valkey, where several sidecars share them"},
		{"redis-url", urls(&c.Redis.Target.URLs), "", "where Redis or Valkey is: redis://host:6379/0, rediss:// for TLS, unix:///path, redis-sentinel://host,host/primary, redis-cluster://host,host; repeatable"},
		{"redis-password-file", settings.Text(&c.Redis.Target.PasswordFile, "file", nil), "", "file that holds password or user:password, read for every connection"},
		{"redis-sentinel-password-file", settings.Text(&c.Redis.Target.SentinelPasswordFile, "file", nil), "", "file that holds password or user:password of the sentinels, read for every connection"},
		{"redis-tls-ca", settings.Text(&c.Redis.Target.CA, "file", nil), "", `authorities of the server's certificate, PEM ("" = the system's)`},
		{"redis-tls-cert", settings.Text(&c.Redis.Target.Cert, "file", nil), "", "certificate to show to the server, PEM"},
		{"redis-tls-key", settings.Text(&c.Redis.Target.Key, "file", nil), "", "its key, PEM"},
		{"redis-tls-server-name", settings.Text(&c.Redis.Target.ServerName, "name", nil), "", `name that the server's certificate must have ("" = the host of the URL; * = any name from an authority of redis-tls-ca)`},
		{"redis-timeout", settings.Duration(&c.Redis.Timeout, time.Millisecond, 10*time.Second), redisstore.DefaultTimeout.String(), "longest wait for Redis of a request without a deadline; a request with one waits three quarters of the time to it"},
		{"redis-prefix", settings.Text(&c.Redis.Prefix, "text", keyPrefix), redisstore.DefaultPrefix, "prefix of every key in Redis"},
		{"redis-hash-tag", settings.OneOf(&c.Redis.HashTag, []string{"none", "domain"}, nil, descriptors.KeyDomain), "none", "part of a key that decides its slot in a cluster: domain makes each request atomic, and loads one node per domain"},
		{"redis-deny-cache", settings.Duration(&c.Store.DenyCache, 0, time.Minute), denycache.DefaultMaxAge.String(), "how long a denied key is denied from memory at most, without asking Redis; 0 = not at all"},
		{"sharing", settings.OneOf(&c.Limiter.Leased, []string{"exact", "leased"}, false, true), "exact", "with Redis, for limits without sharing: exact asks Redis about each request, leased takes hits of hot keys in advance and decides here"},
		{"on-store-error", settings.OneOf(&c.Limiter.OnStoreError, []string{"local", "allow", "deny"}, store.Local, store.Allow, store.Deny), "local", "while Redis does not answer: limit by this process's memory, allow or deny, where the rule has no on_store_error"},
		{"fleet-size", settings.Number(&c.Store.FleetSize, 0, app.MaxFleetSize), "0", "sidecars that share Redis. While Redis does not answer, each admits its part of the hits that are left; 0 = Redis counts them"},
		{"ready-requires-store", settings.Bool(&c.ReadyRequiresStore), "false", "not ready while Redis does not answer"},
		{"state-dir", settings.Text(&c.State.Dir, "directory", nil), "", `directory in which counts in memory outlive a restart; made if it is missing, for one process at a time ("" = off)`},
		{"state-interval", settings.Duration(&c.State.Interval, 0, 24*time.Hour), "0s", "with state-dir: time between snapshots, at least 1s; 0 = only at the end, so that a crash loses all since the start"},
	}}, {"Records", []setting{
		{"record", settings.Text(&c.Record.Dir, "directory", nil), "", `directory in which all requests are recorded, for simulate and suggest; made if it is missing, for one process at a time ("" = off)`},
		{"record-max-bytes", settings.Number(&c.Record.MaxBytes, records.MinMaxBytes, math.MaxInt), decimal(records.DefaultMaxBytes), "most bytes of all recorded files together; at the bound the oldest is removed"},
		{"hash-values", settings.List(&c.Record.Hash, "key", nil), "", "key of entries; a record has hashes in place of its values, under a random salt that the process forgets at its end; repeatable"},
		{"hash-salt-file", settings.Text(&c.Record.SaltFile, "file", nil), "", "file with a salt of at least 16 bytes for hash-values, so that equal values have equal hashes in the records of several sidecars"},
	}}, {"Bounds", []setting{
		{"max-keys", settings.Number(&c.Store.MaxKeys, 1, math.MaxInt32), decimal(memstore.DefaultMaxKeys), "most places for keys in memory, of 52 bytes. A key takes one, or three and more for sliding_window_log. With Redis: while Redis does not answer"},
		{"max-holds", settings.Number(&c.Store.MaxHolds, 1, math.MaxInt32), decimal(memstore.DefaultMaxHolds), "most requests in memory that hold hits of a limit with hold, of at most 64 bytes. With Redis: while Redis does not answer"},
		{"on-full", settings.OneOf(&c.Store.OnFull, []string{"allow", "deny"}, memstore.Allow, memstore.Deny), "allow", "decision about a new key when memory is full of keys that are denied now, and about a request beyond max-holds"},
		{"max-log-entries", settings.Number(&c.MaxLogEntries, 1, math.MaxInt32), decimal(limiter.DefaultMaxLogEntries), "largest requests_per_unit of a sliding_window_log, which remembers every hit"},
		{"max-rules-bytes", settings.Number(&c.Rules.MaxBytes, 1, math.MaxInt32), decimal(descriptors.DefaultMaxBytes), "largest size of all rules together, also by xDS; a value counts at least 12 bytes; loading takes up to 35 times that memory"},
		{"max-table-bytes", settings.Number(&c.Rules.MaxTableBytes, 1, math.MaxInt32), decimal(descriptors.DefaultMaxTableBytes), "largest size of all tables of rules together; a line takes 26 bytes of memory and its value"},
		{"max-descriptors", settings.Number(&c.Limiter.MaxDescriptors, 1, server.MaxItems), decimal(limiter.DefaultMaxDescriptors), "largest number of descriptors in a request"},
		{"max-request-bytes", settings.Number(&c.Server.MaxRequestBytes, 1, math.MaxInt32), decimal(server.DefaultMaxRequestBytes), "largest request, in bytes, by gRPC or /json"},
		{"max-connections", settings.Number(&c.MaxConnections, 1, math.MaxInt32), decimal(app.DefaultMaxConnections), "largest number of open gRPC connections; at the bound a new one takes the place of an idle one"},
		{"max-concurrent-streams", settings.Number(&c.Server.MaxConcurrentStreams, 1, 1<<20), decimal(server.DefaultMaxConcurrentStreams), "largest number of requests under way on a gRPC connection"},
		{"max-bytes-in-flight", settings.Number(&c.Server.MaxBytesInFlight, 1<<20, math.MaxInt), decimal(server.DefaultMaxBytesInFlight), "memory of all gRPC requests under way together, in bytes, about 16000 each; beyond it requests are refused and connections end"},
		{"max-grants", settings.Number(&c.Grants, 1, math.MaxInt32), decimal(grants.DefaultMax), "most grants, in all sidecars that share Redis; each takes about 1 KB of memory, and 4 KB at most"},
		{"detailed-metric-values", settings.Number(&c.Limiter.DetailedValues, 1, math.MaxInt32), decimal(limiter.DefaultDetailedValues), "largest number of values of a rule with metrics of their own; the others are _other"},
		{"top-keys", settings.Number(&c.Limiter.TopKeys, 0, limiter.MaxTopKeys), decimal(limiter.DefaultTopKeys), "number of keys with the most hits that are tracked, for sidecar top and metrics, up to 1000 bytes each; 0 = off"},
	}}, {"Answers", []setting{
		{"response-headers", settings.List(&c.ResponseHeaders, "style", headerStyle), "", "headers for Envoy to add to responses: " + strings.Join(headerStyles(), ", ")},
		{"limit-header", settings.Text(&c.Server.Headers.Limit, "name", settings.HeaderName), "RateLimit-Limit", "with ratelimit: name of the header with the hits per period"},
		{"remaining-header", settings.Text(&c.Server.Headers.Remaining, "name", settings.HeaderName), "RateLimit-Remaining", "with ratelimit: name of the header with the hits that are left"},
		{"reset-header", settings.Text(&c.Server.Headers.Reset, "name", settings.HeaderName), "RateLimit-Reset", "with ratelimit: name of the header with the seconds until reset"},
		{"dynamic-metadata", settings.Bool(&c.Server.DynamicMetadata), "false", "answer with dynamic metadata, as envoyproxy/ratelimit does"},
	}}, {"Process", []setting{
		{"log-level", settings.OneOf(&c.LogLevel, []string{"debug", "info", "warn", "error"}, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError), "info", "lowest level in the log"},
		{"log-format", settings.OneOf(&c.LogJSON, []string{"text", "json"}, false, true), "text", "form of the log, which goes to standard error"},
		{"log-denials", settings.Rate(&c.Server.LogDenials, server.MaxLogDenials), "0", "denied requests to log at warn, such as 1/s or 10/m; 0 = none. Keys and values of clients are in these lines"},

		{"drain-timeout", settings.Duration(&c.DrainTimeout, 0, time.Hour), "10s", "longest time between SIGTERM and the end; 0 cancels requests in flight"},
		{"pprof", settings.Bool(&c.Server.Pprof), "false", "serve /debug/pprof/ on the HTTP address"},
		{"reflection", settings.Bool(&c.Server.Reflection), "true", "gRPC reflection on both gRPC services"},
		{"tracing", settings.Bool(&c.Traced), "false", "send a span of each request by OTLP, to where the OTEL_* variables say"},
	}}}
}

// complete combines settings, and reads the files in them. The result is every mistake.
func (c *config) complete() []error {
	var errs []error
	if len(c.Rules.Paths) == 0 && c.Rules.Settings == "" && c.XDS.Address == "" {
		errs = append(errs, fmt.Errorf("rules: no source is set: set a file or directory with --rules or %sRULES, a settings file with a list domains with --config, or --xds-address", environmentPrefix))
	}
	if c.GRPC.Address == "" && c.Socket.Address == "" && c.HTTP.Address == "" {
		errs = append(errs, errors.New("grpc-address, grpc-socket, http-address: all are off, so nobody could ask"))
	}
	c.GRPC.Setting, c.Socket.Setting, c.HTTP.Setting, c.Admin.Setting = "grpc-address", "grpc-socket", "http-address", "admin-address"
	c.State.Setting, c.Record.Setting = "state-dir", "record"
	a := &c.AdminAccess
	a.TokenFile.Name, a.HostsSetting = "admin-token-file", "admin-hosts"
	a.TLS.Certificate.Name, a.TLS.Key.Name, a.TLS.Authorities.Name = "admin-tls-cert", "admin-tls-key", "admin-tls-client-ca"
	if len(a.TLS.ClientNames) > 0 && a.TLS.Authorities.Path == "" {
		errs = append(errs, errors.New("admin-tls-client-san: no authority signs the names: needs admin-tls-client-ca"))
	}
	errs = append(errs, a.Check())
	c.Rules.Hint = "name a file or directory with --rules, or put a list domains into the settings file"
	c.Rules.MaxBytesSetting, c.Rules.MaxTableBytesSetting = "--max-rules-bytes", "--max-table-bytes"
	c.Rules.MaxLogEntries, c.Limiter.MaxLogEntries = uint32(c.MaxLogEntries), uint32(c.MaxLogEntries)
	c.Server.Headers.RateLimit = slices.Contains(c.ResponseHeaders, "ratelimit")
	c.Server.Headers.IETF = slices.Contains(c.ResponseHeaders, "ietf")
	c.Server.Headers.RetryAfter = slices.Contains(c.ResponseHeaders, "retry-after")
	if names := c.givenWith("limit-header", "remaining-header", "reset-header"); names != "" && !c.Server.Headers.RateLimit {
		errs = append(errs, fmt.Errorf("%s: needs ratelimit among the --response-headers", names))
	}
	c.Server.JSON.Refunds = slices.Contains(c.AllowedJSON, "refund")
	c.Server.JSON.Overrides = slices.Contains(c.AllowedJSON, "override")
	if names := c.givenWith("http-json-allow", "http-json-hosts"); names != "" && c.Server.JSON.From == server.JSONOff {
		errs = append(errs, fmt.Errorf("%s: needs --http-json loopback or on", names))
	}
	if c.Traced {
		c.Tracing = &tracing.Options{Service: "weir", Attributes: map[string]string{"service.version": version.Read().Version}, Ratio: 1}
	}
	return slices.Concat(errs, c.completeXDS(), c.completeTLS(), c.completeStore(), c.State.Check("state-interval", c.InRedis), c.Record.Check("hash-values", "hash-salt-file"))
}

// completeTLS returns every mistake in the settings of TLS and their files. A connection less
// secure than the operator intended is a mistake.
func (c *config) completeTLS() []error {
	t := &c.TLS
	t.Certificate.Name, t.Key.Name, t.Authorities.Name = "grpc-tls-cert", "grpc-tls-key", "grpc-tls-client-ca"
	if t.Certificate.Path == "" && t.Key.Path == "" && t.Authorities.Path == "" && len(t.ClientNames) == 0 {
		return nil
	}
	var errs []error
	if c.GRPC.Address == "" {
		errs = append(errs, errors.New("grpc-tls-cert: there is nothing to secure: TLS is for grpc-address, which is off; the Unix socket has its permissions"))
	}
	if t.Certificate.Path == "" && t.Key.Path == "" {
		errs = append(errs, errors.New("grpc-tls-cert: is missing: clients can only show certificates to a server with grpc-tls-cert and grpc-tls-key"))
	}
	if t.Authorities.Path == "" && len(t.ClientNames) > 0 {
		errs = append(errs, errors.New("grpc-tls-client-san: no authority signs the names: needs grpc-tls-client-ca"))
	}
	return append(errs, t.Check())
}

// givenWith lists the settings with one of the prefixes that are not defaults, as the operator
// wrote them.
func (c *config) givenWith(prefixes ...string) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.given)) {
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if slices.ContainsFunc(prefixes, begins) && name != "xds-address" {
			names = append(names, c.given[name])
		}
	}
	return strings.Join(names, ", ")
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
	return settings.Choice(new(string), headerStyles()...).Set(s)
}

// power accepts a value of --http-json-allow.
func power(s string) error {
	return settings.Choice(new(string), powers()...).Set(s)
}

// hostName accepts a name that a Host header may have.
func hostName(s string) error {
	if strings.ContainsAny(s, ":/ ") {
		return fmt.Errorf("%q: must be a name without a port, such as weir.example", s)
	}
	return nil
}

// address accepts host:port with any port from 0, and the empty text for off.
func address(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return errors.New(`must be host:port, such as :8081, 127.0.0.1:8081 or [::]:8081, or "" for off`)
	}
	return nil
}

// decimal writes a number as a flag would give it.
func decimal(n int) string { return fmt.Sprint(n) }

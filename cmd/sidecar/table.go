package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
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
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// setting is one row of the table from which flags, environment names, keys of the settings file
// and docs/settings.md are made.
type setting struct {
	name  string // of the flag; with '-' or '_' the key in the settings file
	usual string // the default, as a flag would give it
	value settings.Value
	help  string // effect, units and bounds; one line, starting in lower case
}

// onlyOutside reports whether the setting cannot be in the settings file.
func (s setting) onlyOutside() bool { return s.name == "config" }

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

func groups(c *config) []group {
	return []group{
		{"Rules", ruleSettings(c)},
		{"Rules by xDS", xdsSettings(c)},
		{"Listeners", listenerSettings(c)},
		{"Counts", countSettings(c)},
		{"Records", recordSettings(c)},
		{"Bounds", boundSettings(c)},
		{"Answers", answerSettings(c)},
		{"Process", processSettings(c)},
	}
}

// off ends the help of an address that may be empty.
const off = ` ("" = off)`

func ruleSettings(c *config) []setting {
	return []setting{
		{
			"config", "", settings.Text(&c.Rules.Settings, "file", settingsFormat),
			"settings file: .yaml, .yml, .toml or .json; may hold rules under domains",
		},
		{
			"rules", "", settings.List(&c.Rules.Paths, "path", nil),
			"rule file or directory of *.yaml, *.yml and *.json; repeatable",
		},
		{
			"strict", "false", settings.Bool(&c.Rules.Strict),
			"refuse rules with warnings, as check --strict does",
		},
	}
}

func listenerSettings(c *config) []setting {
	return []setting{
		{
			"grpc-address", ":8081", settings.Text(&c.GRPC.Address, "address", address),
			"host:port of Envoy's rate limit service" + off,
		},
		{
			"grpc-socket", "", settings.Text(&c.Socket.Address, "path", nil),
			"Unix socket of the same service" + off + `; "@name" is an abstract one`,
		},
		{
			"grpc-socket-mode", "0660", settings.Mode(&c.Socket.Mode),
			"permissions of the Unix socket, octal; in quotes in a file",
		},
		{
			"grpc-server", "lane", settings.OneOf(&c.Server.GRPCGo, []string{"lane", "grpc"}, false, true),
			"server of Envoy's calls: lane is Weir's own; grpc is grpc-go, which takes five times the " +
				"processor time with counts in memory",
		},
		{
			"grpc-tls-cert", "", settings.Text(&c.TLS.Certificate.Path, "file", nil),
			`certificate of --grpc-address, PEM ("" = no TLS); it, its key and the CA are read again when ` +
				`they change`,
		},
		{
			"grpc-tls-key", "", settings.Text(&c.TLS.Key.Path, "file", nil),
			"its key, PEM",
		},
		{
			"grpc-tls-client-ca", "", settings.Text(&c.TLS.Authorities.Path, "file", nil),
			`authorities of client certificates, PEM ("" = clients need no certificate); the system's ` +
				`authorities do not count`,
		},
		{
			"grpc-tls-client-san", "", settings.List(&c.TLS.ClientNames, "name", nil),
			`name that a client's certificate must have, DNS, URI, IP or email; one of several ("" = any); ` +
				`repeatable`,
		},
		{
			"http-address", ":8080", settings.Text(&c.HTTP.Address, "address", address),
			"host:port of health, metrics, /json and /rules" + off,
		},
		{
			"http-json", "loopback", settings.OneOf(
				&c.Server.JSON.From, []string{"off", "loopback", "on"},
				server.JSONOff, server.JSONFromLoopback, server.JSONFromAnywhere),
			"clients of /json, which can charge every key: none, programs on this machine, or all that " +
				"reach --http-address",
		},
		{
			"http-json-allow", "", settings.List(&c.AllowedJSON, "power", settings.Among(powers())),
			"allow to /json, beside charges: " + strings.Join(powers(), ", "),
		},
		{
			"hosts", "", settings.List(&c.Hosts, "name", hostName),
			"names by which clients may reach /json and browsers the admin page, beside localhost and IP " +
				"addresses; repeatable",
		},
		{
			"admin-address", "127.0.0.1:8082", settings.Text(&c.Admin.Address, "address", address),
			"host:port of the admin gRPC service and its page" + off + "; not on loopback clients must show " +
				"a token or a certificate",
		},
		{
			"admin-token-file", "", settings.Text(&c.AdminAccess.TokenFile.Path, "file", nil),
			`file that holds the token that clients of --admin-address must show ("" = no token), 16 to ` +
				`4096 characters; read again when it changes`,
		},
		{
			"admin-tls-cert", "", settings.Text(&c.AdminAccess.TLS.Certificate.Path, "file", nil),
			`certificate of --admin-address, PEM ("" = no TLS); it, its key and the CA are read again when ` +
				`they change`,
		},
		{
			"admin-tls-key", "", settings.Text(&c.AdminAccess.TLS.Key.Path, "file", nil),
			"key of --admin-tls-cert, PEM",
		},
		{
			"admin-tls-client-ca", "", settings.Text(&c.AdminAccess.TLS.Authorities.Path, "file", nil),
			`authorities of client certificates, PEM ("" = clients need no certificate)`,
		},
		{
			"admin-tls-client-san", "", settings.List(&c.AdminAccess.TLS.ClientNames, "name", nil),
			`name that a client's certificate must have, DNS, URI, IP or email; one of several ("" = any); ` +
				`repeatable`,
		},
	}
}

func countSettings(c *config) []setting {
	return []setting{
		{
			"store", storeMemory, settings.OneOf(&c.InRedis, stores(), false, true),
			"where counts are kept: in this process, or in Redis or Valkey, where several sidecars share " +
				"them",
		},
		{
			"redis-url", "", urls(&c.Redis.Target.URLs),
			"where Redis or Valkey is: redis://host:6379/0, rediss:// for TLS, unix:///path, " +
				"redis-sentinel://host,host/primary, redis-cluster://host,host; repeatable",
		},
		{
			"redis-password-file", "", settings.Text(&c.Redis.Target.PasswordFile, "file", nil),
			"file that holds password or user:password, read for every connection",
		},
		{
			"redis-sentinel-password-file", "", settings.Text(&c.Redis.Target.SentinelPasswordFile, "file", nil),
			"file that holds password or user:password of the sentinels, read for every connection",
		},
		{
			"redis-tls-ca", "", settings.Text(&c.Redis.Target.CA, "file", nil),
			`authorities of the server's certificate, PEM ("" = the system's)`,
		},
		{
			"redis-tls-cert", "", settings.Text(&c.Redis.Target.Cert, "file", nil),
			"certificate to show to the server, PEM",
		},
		{
			"redis-tls-key", "", settings.Text(&c.Redis.Target.Key, "file", nil),
			"its key, PEM",
		},
		{
			"redis-tls-server-name", "", settings.Text(&c.Redis.Target.ServerName, "name", nil),
			`name that the server's certificate must have ("" = the host of the URL; * = any name from an ` +
				`authority of redis-tls-ca)`,
		},
		{
			"redis-timeout", redisstore.DefaultTimeout.String(), settings.Duration(&c.Redis.Timeout, time.Millisecond, 10*time.Second),
			"longest wait for Redis of a request without a deadline; a request with one waits three " +
				"quarters of the time to it",
		},
		{
			"redis-prefix", redisstore.DefaultPrefix, settings.Text(&c.Redis.Prefix, "text", keyPrefix),
			"prefix of every key in Redis",
		},
		{
			"redis-hash-tag", "none", settings.OneOf(&c.Redis.HashTag, []string{"none", "domain"}, descriptors.KeyBase, descriptors.KeyDomain),
			"part of a key that decides its slot in a cluster: domain makes each request atomic, and loads " +
				"one node per domain",
		},
		{
			"sharing", "exact", settings.OneOf(&c.Limiter.Leased, []string{"exact", "leased"}, false, true),
			"with Redis, for limits without sharing: exact asks Redis about each request, leased takes hits " +
				"of hot keys in advance and decides here",
		},
		{
			"on-store-error", "local", settings.OneOf(
				&c.Limiter.OnStoreError, []string{"local", "allow", "deny"},
				store.OnErrorLocal, store.OnErrorAllow, store.OnErrorDeny),
			"while Redis does not answer: limit by this process's memory, allow or deny, where the rule has " +
				"no on_store_error",
		},
		{
			"fleet-size", "0", settings.Number(&c.Store.FleetSize, 0, app.MaxFleetSize),
			"sidecars that share Redis, as long as Redis has not counted them. While Redis does not answer, " +
				"each admits its part of the hits that are left; 0 = unknown",
		},
		{
			"ready-requires-store", "false", settings.Bool(&c.ReadyRequiresStore),
			"not ready while Redis does not answer",
		},
		{
			"state-dir", "", settings.Text(&c.State.Dir, "directory", nil),
			`directory in which counts in memory outlive a restart, and a crash but for 10 seconds ("" = off). ` +
				`One process at a time may use it. ` +
				`With Redis the directory has the last counts, for a start without Redis`,
		},
	}
}

func recordSettings(c *config) []setting {
	return []setting{
		{
			"record", "", settings.Text(&c.Record.Dir, "directory", nil),
			`directory in which all requests are recorded, for simulate and suggest; made if it is missing, ` +
				`for one process at a time ("" = off)`,
		},
		{
			"record-max-bytes", decimal(records.DefaultMaxBytes), settings.Number(&c.Record.MaxBytes, records.MinMaxBytes, math.MaxInt),
			"most bytes of all recorded files together; at the bound the oldest is removed",
		},
		{
			"hash-values", "", settings.List(&c.Record.Hash, "key", nil),
			"key of entries; a record has hashes in place of its values, under a random salt that the " +
				"process forgets at its end; repeatable",
		},
		{
			"hash-salt-file", "", settings.Text(&c.Record.SaltFile, "file", nil),
			"file with a salt of at least 16 bytes for hash-values, so that equal values have equal hashes " +
				"in the records of several sidecars",
		},
	}
}

func boundSettings(c *config) []setting {
	return []setting{
		{
			"max-keys", decimal(memstore.DefaultMaxKeys), settings.Number(&c.Store.MaxKeys, 1, math.MaxInt32),
			"most places for keys in memory, of 52 bytes, and most requests that hold hits, of 64. A key takes one " +
				"place, or three and more for sliding_window_log. With Redis: while Redis does not answer",
		},
		{
			"on-full", "allow", settings.OneOf(&c.Store.OnFull, []string{"allow", "deny"}, memstore.Allow, memstore.Deny),
			"decision about a new key when memory is full of keys that are denied now, and about a request " +
				"that finds no place for its hold",
		},
		{
			"max-rules-bytes", decimal(descriptors.DefaultMaxBytes), settings.Number(&c.Rules.MaxBytes, 1, math.MaxInt32),
			"largest size of all rules together, also by xDS; a value counts at least 12 bytes; loading " +
				"takes up to 35 times that memory",
		},
		{
			"max-request-bytes", decimal(server.DefaultMaxRequestBytes), settings.Number(&c.Server.MaxRequestBytes, 1, math.MaxInt32),
			"largest request, in bytes, by gRPC or /json",
		},
		{
			"max-connections", decimal(app.DefaultMaxConnections), settings.Number(&c.MaxConnections, 1, math.MaxInt32),
			"largest number of open gRPC connections; at the bound a new one takes the place of an idle one",
		},
		{
			"max-bytes-in-flight", decimal(server.DefaultMaxBytesInFlight), settings.Number(
				&c.Server.MaxBytesInFlight, 1<<20, math.MaxInt),
			"memory of all gRPC requests under way, in bytes: about 4000 for each that waits; " +
				"beyond it Weir refuses requests and ends connections",
		},
		{
			"detailed-metric-values", decimal(limiter.DefaultDetailedValues), settings.Number(&c.Limiter.DetailedValues, 1, math.MaxInt32),
			"largest number of values of a rule with metrics of their own; the others are _other",
		},
		{
			"top-keys", decimal(limiter.DefaultTopKeys), settings.Number(&c.Limiter.TopKeys, 0, limiter.MaxTopKeys),
			"number of keys with the most hits that are tracked, for sidecar top and metrics, up to 1000 " +
				"bytes each; 0 = off",
		},
	}
}

func answerSettings(c *config) []setting {
	return []setting{
		{
			"response-headers", "", settings.List(&c.ResponseHeaders, "style", settings.Among(headerStyles())),
			"headers for Envoy to add to responses: " + strings.Join(headerStyles(), ", "),
		},
		{
			"dynamic-metadata", "false", settings.Bool(&c.Server.DynamicMetadata),
			"answer with dynamic metadata, as envoyproxy/ratelimit does",
		},
	}
}

func processSettings(c *config) []setting {
	return []setting{
		{
			"log-level", "info", settings.OneOf(
				&c.LogLevel, []string{"debug", "info", "warn", "error"},
				slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError),
			"lowest level in the log",
		},
		{
			"log-format", "text", settings.OneOf(&c.LogJSON, []string{"text", "json"}, false, true),
			"form of the log, which goes to standard error",
		},
		{
			"log-denials", "0", settings.Rate(&c.Pages.LogDenials, admin.MaxLogDenials),
			"denied requests to log at warn, such as 1/s or 10/m; 0 = none. Keys and values of clients are " +
				"in these lines",
		},
		{
			"drain-timeout", "10s", settings.Duration(&c.DrainTimeout, 0, time.Hour),
			"longest time between SIGTERM and the end; 0 cancels requests in flight",
		},
		{
			"pprof", "false", settings.Bool(&c.Pages.Pprof),
			"serve /debug/pprof/ on the HTTP address",
		},
		{
			"reflection", "true", settings.Bool(&c.Server.Reflection),
			"gRPC reflection on both gRPC services",
		},
	}
}

// settingsFormat accepts the name of a settings file.
func settingsFormat(path string) error {
	if path == "" || formatOf(path) != "" {
		return nil
	}
	return errors.New("must be a file whose name ends in .yaml, .yml, .toml or .json")
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

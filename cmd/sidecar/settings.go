package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/internal/version"
	"github.com/weirproxy/weir/pkg/server"
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

	XDSUsesTLS      bool // also when XDSTLS has a file or a name
	XDSTLS          xds.TLS
	ResponseHeaders []string // of headerStyles
	AllowedJSON     []string // of powers

	given map[string]string // settings that are not defaults, and how the operator wrote their names
}

// complete combines settings, and reads the files in them. The result is every mistake.
func (c *config) complete() []error {
	var errs []error
	if len(c.Rules.Paths) == 0 && c.Rules.Settings == "" && c.XDS.Address == "" {
		errs = append(errs, fmt.Errorf("rules: no source is set: set a file or directory with --rules or %sRULES, "+
			"a settings file with a list domains with --config, or --xds-address", environmentPrefix))
	}
	if c.GRPC.Address == "" && c.Socket.Address == "" && c.HTTP.Address == "" {
		errs = append(errs, errors.New("grpc-address, grpc-socket, http-address: all are off, so nobody could ask"))
	}
	a := &c.AdminAccess
	a.TokenFile.Name = "admin-token-file"
	a.TLS.Certificate.Name, a.TLS.Key.Name, a.TLS.Authorities.Name = "admin-tls-cert", "admin-tls-key", "admin-tls-client-ca"
	if len(a.TLS.ClientNames) > 0 && a.TLS.Authorities.Path == "" {
		errs = append(errs, errors.New("admin-tls-client-san: no authority signs the names: needs admin-tls-client-ca"))
	}
	errs = append(errs, a.Check())
	c.Rules.Hint = "name a file or directory with --rules, or put a list domains into the settings file"
	c.Server.Headers.RateLimit = slices.Contains(c.ResponseHeaders, "ratelimit")
	c.Server.Headers.IETF = slices.Contains(c.ResponseHeaders, "ietf")
	c.Server.Headers.RetryAfter = slices.Contains(c.ResponseHeaders, "retry-after")
	c.Server.JSON.Refunds = slices.Contains(c.AllowedJSON, "refund")
	c.Server.JSON.Overrides = slices.Contains(c.AllowedJSON, "override")
	if names := c.givenWith("http-json-allow"); names != "" && c.Server.JSON.From == server.JSONOff {
		errs = append(errs, fmt.Errorf("%s: needs --http-json loopback or on", names))
	}
	if tracing.Configured() {
		c.Tracing = &tracing.Options{Service: "weir", Attributes: map[string]string{"service.version": version.Read().Version}, Ratio: 1}
	}
	return slices.Concat(errs, c.completeXDS(), c.completeTLS(), c.completeStore(), c.Record.Check("record", "hash-values", "hash-salt-file"))
}

// partSettings returns the settings of the parts that app.Run finds mistakes in.
func partSettings() map[app.Part]string {
	return map[app.Part]string{
		app.PartGRPC: "grpc-address", app.PartSocket: "grpc-socket", app.PartHTTP: "http-address", app.PartAdmin: "admin-address",
		app.PartState: "state-dir", app.PartRecord: "record",
	}
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
		errs = append(errs, errors.New("grpc-tls-cert: there is nothing to secure: TLS is for grpc-address, which is off; "+
			"the Unix socket has its permissions"))
	}
	if t.Certificate.Path == "" && t.Key.Path == "" {
		errs = append(errs, errors.New("grpc-tls-cert: is missing: "+
			"clients can only show certificates to a server with grpc-tls-cert and grpc-tls-key"))
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

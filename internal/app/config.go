package app

import (
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/statistics"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/internal/wire/certificates"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
)

// Config is the service that Run serves. Logger, a source of rules and one endpoint must be set.
// Every other field may be zero.
type Config struct {
	Logger       *slog.Logger
	DrainTimeout time.Duration // longest time from a stop to the end; 0 cancels requests in flight at once

	Listeners

	Rules             reload.Options // Run sets Limiter, Granularity, Pushed and Logger
	StartWithoutRules bool           // serve when the rule files are missing
	XDS               xds.Options    // without an Address: off. Run sets Push, Bounds and Logger
	XDSRequired       bool           // not ready until rules have come by xDS

	Store   StoreOptions // Run sets Savable, Logger and Traces
	State   State
	Record  Record
	Limiter limiter.Options // Run sets Now
	Server  server.Options  // Run sets every field that is not a plain value
	Pages   admin.Options   // the same

	ReadyRequiresRules bool // not ready without rules
	ReadyRequiresStore bool // not ready while Redis does not answer

	Statistics Statistics
	Tracing    *tracing.Options // nil: off. Run sets Logger
}

// Listeners are the endpoints, and their clients.
type Listeners struct {
	GRPC    Endpoint // Envoy's rate limit service over TCP
	Socket  Endpoint // the same service on a Unix socket
	HTTP    Endpoint // health, metrics, /json and /rules; the pages of envoyproxy/ratelimit with Legacy
	Admin   Endpoint // the admin service and its page
	Debug   Endpoint // the debug pages of envoyproxy/ratelimit
	Metrics Endpoint // metrics alone

	// Hosts are names by which clients may reach /json and browsers the admin page, beside localhost
	// and IP addresses.
	Hosts []string

	Legacy      bool
	MetricsPath string // of Metrics; "" means /metrics
	TLS         TLS    // of GRPC
	AdminAccess Admin  // the clients of Admin

	MaxConnections int // bound of the open connections of GRPC and Socket together; 0 means DefaultMaxConnections
}

// Endpoint is one address to listen on. Without an Address it is off.
type Endpoint struct {
	Address string // host:port, or the path of a Unix socket
	Shared  bool   // share the port with other processes
	Mode    fs.FileMode

	// Spare is called when Address cannot be listened on: the service goes on without this endpoint.
	// Nil: that is an error.
	Spare func(error)
}

// TLS secures one endpoint. Without a certificate it is off.
type TLS struct {
	certificates.Files
	ClientNames []string // a client's certificate must have one of these names; empty: any name
}

// State is the directory in which counts in memory outlive the process. Without a Dir it is off.
// With Redis these are the last states that Redis told, for a start while Redis is away.
type State struct{ Dir string }

// Record is the directory in which all requests are recorded. Without a Dir it is off.
type Record struct {
	Dir      string
	MaxBytes int      // see records.Options
	Hash     []string // keys whose values are hashed
	SaltFile string   // with the salt of the hashes; "" means a random one
}

// Check returns every mistake. The parameters are the names of the settings with Dir, Hash and
// SaltFile.
func (r *Record) Check(dir, hash, salt string) []error {
	var errs []error
	if r.Dir == "" && len(r.Hash) > 0 {
		errs = append(errs, fmt.Errorf("%s: nothing is recorded: needs %s", hash, dir))
	}
	if r.SaltFile != "" && len(r.Hash) == 0 {
		errs = append(errs, fmt.Errorf("%s: there is nothing to hash: needs %s", salt, hash))
	}
	return errs
}

// Statistics chooses the sinks of the metrics under the names of envoyproxy/ratelimit.
type Statistics struct {
	Prometheus bool // beside the metrics of Weir
	Collector  statistics.CollectorOptions
	StatsD     statistics.ReporterOptions // without an Address: off. Run sets Logger
}

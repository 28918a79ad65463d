package redisstore

import (
	"log/slog"

	"github.com/weirproxy/weir/internal/redis"
)

// Errors of a store without Redis. An error that wraps ErrVersion or ErrTopology also wraps
// ErrUnavailable, and lasts until an operator acts.
var (
	ErrUnavailable = redis.ErrUnavailable // no connection; the wrapping error says why
	ErrVersion     = redis.ErrVersion     // a server is older than Redis 6.2 or Valkey 7.2
	ErrTopology    = redis.ErrTopology    // a server is not what the scheme of the URL says
)

// Target is where Redis is, and how to log in. All fields but URLs may be empty. Target prints as
// one URL without passwords.
type Target struct {
	// URLs say where Redis is. Each is one of
	//
	//	redis://[user:password@]host[:6379][/database]
	//	unix://[user:password@]/path/to/socket[?db=database]
	//	redis-sentinel://[user:password@]host[:26379][,host…]/primary[/database]
	//	redis-cluster://[user:password@]host[:6379][,host…]
	//
	// rediss, rediss-sentinel and rediss-cluster are the same with TLS. valkey stands for redis, and
	// ?db= for /database everywhere. Several URLs of the same scheme are one list of hosts, and one of
	// them is enough. User and password log in to the data nodes. The parameters
	// ?sentinel_username= and &sentinel_password= log in to the Sentinels. Reserved characters in
	// users and passwords are percent-encoded. A password alone is the password of the user "default".
	URLs []string

	// PasswordFile and SentinelPasswordFile are files that hold "password" or "user:password", in
	// place of the password in the URL. Line ends at the end do not count. While a file cannot be
	// read, or is empty, the last login stays in use.
	PasswordFile, SentinelPasswordFile string

	CA        string // PEM file of the authorities to trust instead of the system's
	Cert, Key string // PEM files of a client certificate; both or none

	// ServerName is the name in the servers' certificates; empty: the dialed host. AnyServerName
	// accepts certificates for any name that the authorities signed. With the system's authorities
	// nearly every server has such a certificate.
	ServerName string
}

// AnyServerName as Target.ServerName accepts certificates for any name that the authorities signed.
const AnyServerName = redis.AnyServerName

// Check returns all mistakes of t, each with its URL, and without passwords. Check reads the files
// of TLS and of passwords. Later each new connection reads the files again.
func (t Target) Check() error { return redis.Options(t).Check() }

// String returns the target as one URL, without passwords.
func (t Target) String() string { return redis.Options(t).String() }

// GoString is String.
func (t Target) GoString() string { return t.String() }

// LogValue is String.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.String()) }

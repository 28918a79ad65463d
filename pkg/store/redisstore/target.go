package redisstore

import (
	"log/slog"

	"github.com/weirproxy/weir/internal/redisconn"
)

// Errors of a store without Redis. An error that wraps ErrVersion or ErrTopology also wraps
// ErrUnavailable, and lasts until an operator acts.
var (
	ErrUnavailable = redisconn.ErrUnavailable // no connection; the wrapping error says why
	ErrVersion     = redisconn.ErrVersion     // a server is older than Redis 6.2 or Valkey 7.2
	ErrTopology    = redisconn.ErrTopology    // a server is not what the scheme of the URL says
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
	// them is enough. User and password log in to the data nodes, never to a Sentinel. Reserved
	// characters in user and password are percent-encoded.
	URLs []string

	// Username and Password log in to the data nodes. Both may also stand in the URLs. A Password
	// alone is the password of the user "default".
	Username, Password string

	// SentinelUsername and SentinelPassword log in to the Sentinels.
	SentinelUsername, SentinelPassword string

	// PasswordFile and SentinelPasswordFile are files that hold the passwords, in place of Password
	// and SentinelPassword. Line ends at the end do not count. While a file cannot be read, or is
	// empty, the last password stays in use.
	PasswordFile, SentinelPasswordFile string

	CA         string // PEM file of the authorities to trust instead of the system's
	Cert, Key  string // PEM files of a client certificate; both or none
	ServerName string // in the servers' certificates; empty: the dialed host

	// AnyServerName accepts certificates for any name that the authorities signed. With the system's
	// authorities nearly every server has such a certificate.
	AnyServerName bool
}

// Check returns all mistakes of t, each with its URL, and without passwords. Check reads the files
// of TLS and of passwords. Later each new connection reads the files again.
func (t Target) Check() error {
	_, err := t.parse()
	return err
}

func (t Target) parse() (redisconn.Target, error) {
	return redisconn.ParseTarget(redisconn.TargetOptions(t))
}

// String returns t as one URL, without passwords; "nowhere" when t has mistakes.
func (t Target) String() string {
	parsed, _ := t.parse() // the zero Target of redisconn prints as nowhere
	return parsed.String()
}

// GoString is String.
func (t Target) GoString() string { return t.String() }

// LogValue is String.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.String()) }

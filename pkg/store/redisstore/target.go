package redisstore

import "github.com/weirproxy/weir/internal/redis"

// Errors of a store without Redis. An error that wraps ErrVersion or ErrTopology also wraps
// ErrUnavailable, and lasts until an operator acts.
var (
	ErrUnavailable = redis.ErrUnavailable // no connection; the wrapping error says why
	ErrVersion     = redis.ErrVersion     // a server is older than Redis 6.2 or Valkey 7.2
	ErrTopology    = redis.ErrTopology    // a server is not what the scheme of the URL says
)

// Target is where Redis is, and how to log in. All fields but URLs may be empty. Target prints as
// one URL without passwords.
//
//   - URLs, such as redis://user:password@host:6379/0, unix:///path?db=1,
//     redis-sentinel://host,host/primary or redis-cluster://host,host; rediss:// is TLS.
//   - PasswordFile and SentinelPasswordFile hold "password" or "user:password".
//   - CA, Cert and Key are PEM files. ServerName is the name in the servers' certificates.
//
// Target.Check returns all mistakes, each with its URL, and without passwords. Check reads the
// files of TLS and of passwords. Later each new connection reads the files again.
type Target = redis.Options

// AnyServerName as Target.ServerName accepts certificates for any name that the authorities signed.
const AnyServerName = redis.AnyServerName

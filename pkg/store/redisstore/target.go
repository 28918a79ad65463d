package redisstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Target says where Redis is and who asks. The zero value is nowhere: make one with ParseTarget. Printed in any way it shows
// no password.
type Target struct {
	topology  topology
	network   string // as in net.Dial
	addresses []string
	primary   string // the name that the Sentinels know the primary by
	database  int

	username, password                 string // "" and "": nobody logs in
	sentinelUsername, sentinelPassword string
	security                           *security // nil without TLS
}

// topology is how the servers belong together.
type topology string

// The topologies.
const (
	topologySingle   topology = "single"
	topologySentinel topology = "sentinel"
	topologyCluster  topology = "cluster"
)

// TargetOptions is what ParseTarget needs. All but URLs may be empty.
type TargetOptions struct {
	// URLs say where Redis is. Each is one of
	//
	//	redis://[user:password@]host[:6379][/database]
	//	unix://[user:password@]/path/to/socket[?db=database]
	//	redis-sentinel://[user:password@]host[:26379][,host…]/primary[/database]
	//	redis-cluster://[user:password@]host[:6379][,host…]
	//
	// rediss, rediss-sentinel and rediss-cluster are the same with TLS; valkey stands for redis everywhere. ?db= stands for
	// /database everywhere. Several URLs of the same scheme are one list of hosts, of which any one may be away. The user and
	// the password are those of the servers that count, never those of a Sentinel; reserved characters in them are
	// percent-encoded.
	URLs []string

	// Username and Password log in to the servers that count. Either may be in the URLs instead, or also. A Password alone is
	// that of the user "default".
	Username, Password string

	// SentinelUsername and SentinelPassword log in to the Sentinels.
	SentinelUsername, SentinelPassword string

	CA         string // PEM file of the authorities to trust instead of the system's
	Cert, Key  string // PEM files of a client certificate; both or none
	ServerName string // that the servers' certificates must be for; empty: the host dialed

	// AnyServerName accepts certificates for any name, as long as the authorities signed them. With the system's authorities that
	// is nearly anybody.
	AnyServerName bool
}

// ParseTarget reads o. Its error is all mistakes, each with the URL it is in; no password is in it. Files are read, to find
// out now that they cannot be, and again whenever a connection is made.
func ParseTarget(o TargetOptions) (Target, error) {
	var p targetParser
	t := Target{
		username: o.Username, password: o.Password,
		sentinelUsername: o.SentinelUsername, sentinelPassword: o.SentinelPassword,
	}
	var urls []parsedURL
	for _, text := range o.URLs {
		p.at = fmt.Sprintf("URL %q: ", redactURL(text))
		before := len(p.mistakes)
		if u := p.url(text); len(p.mistakes) == before {
			urls = append(urls, u)
		}
	}
	p.at = ""
	if len(o.URLs) == 0 {
		p.mistake("no URL of Redis: want %s", urlForms)
	}
	tls := p.merge(&t, urls)

	secure := security{ca: o.CA, cert: o.Cert, key: o.Key, name: o.ServerName, anyName: o.AnyServerName}
	switch {
	case tls:
		t.security = &secure
		if secure.name != "" && secure.anyName {
			p.mistake("a server name and any server name: there can be one of the two")
		}
		if err := secure.files().Check(); err != nil {
			p.mistakes = append(p.mistakes, err)
		}
	case len(urls) > 0 && secure != (security{}):
		p.mistake("a CA, a client certificate and a server name are for TLS: write the URL with rediss, rediss-sentinel or rediss-cluster")
	}
	if len(urls) > 0 && t.topology != topologySentinel && (o.SentinelUsername != "" || o.SentinelPassword != "") {
		p.mistake("a user name and a password of Sentinel are for redis-sentinel:// and rediss-sentinel:// URLs")
	}
	if err := errors.Join(p.mistakes...); err != nil {
		return Target{}, err
	}
	return t, nil
}

const urlForms = "redis://host:6379/0, rediss:// (TLS), unix:///path, redis-sentinel://host,host/primary or redis-cluster://host,host"

// merge makes the target of all URLs, which must not contradict each other, and reports whether it has TLS.
func (p *targetParser) merge(t *Target, urls []parsedURL) (tls bool) {
	for i, u := range urls {
		first := urls[0]
		p.at = fmt.Sprintf("URL %q: ", u.redacted)
		switch {
		case i == 0:
			t.topology, t.network, t.primary, t.database = u.topology, u.network, u.primary, u.database
		case u.topology != first.topology || u.network != first.network || u.tls != first.tls:
			p.mistake("its scheme differs from that of %q: all must have the same", first.redacted)
			continue
		case u.primary != first.primary:
			p.mistake("its primary differs from that of %q: a list has one", first.redacted)
		case u.database != first.database:
			p.mistake("its database differs from that of %q: a list has one", first.redacted)
		}
		if agree(&t.username, u.username) != nil {
			p.mistake("its user name differs from the one set apart or in another URL: there can be one")
		}
		if agree(&t.password, u.password) != nil {
			p.mistake("its password differs from the one set apart or in another URL: there can be one")
		}
		for _, address := range u.addresses {
			if !slices.Contains(t.addresses, address) {
				t.addresses = append(t.addresses, address)
			}
		}
	}
	p.at = ""
	if t.topology == topologySingle && len(t.addresses) > 1 {
		p.mistake("%d servers that do not know each other: for several, use Sentinel (redis-sentinel://host,host/primary) "+
			"or a cluster (redis-cluster://host,host)", len(t.addresses))
	}
	return len(urls) > 0 && urls[0].tls
}

// agree sets what is not set yet.
func agree(set *string, value string) error {
	if *set != "" && value != "" && *set != value {
		return errors.New("they differ")
	}
	*set = cmp.Or(*set, value)
	return nil
}

// String is the target as one URL, without passwords.
func (t Target) String() string {
	if t.topology == "" {
		return "nowhere"
	}
	scheme, path := "redis", ""
	if t.security != nil {
		scheme = "rediss"
	}
	if t.topology != topologySingle {
		scheme += "-" + string(t.topology)
	}
	if t.topology == topologySentinel {
		path = "/" + url.PathEscape(t.primary)
	}
	if t.database != 0 {
		path += "/" + strconv.Itoa(t.database)
	}
	hosts := strings.Join(t.addresses, ",")
	if t.network == "unix" {
		scheme, hosts, path = "unix", (&url.URL{Path: t.addresses[0]}).EscapedPath(), ""
		if t.database != 0 {
			path = "?db=" + strconv.Itoa(t.database)
		}
	}
	user := ""
	switch {
	case t.password != "":
		user = url.PathEscape(t.username) + ":***@"
	case t.username != "":
		user = url.PathEscape(t.username) + ":@"
	}
	return scheme + "://" + user + hosts + path
}

// GoString is String: %#v shows no password either.
func (t Target) GoString() string { return t.String() }

// LogValue is String.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.String()) }

// host is the name or the IP of an address, without its port.
func host(address string) string {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return name
}

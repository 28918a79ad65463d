package redisconn

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

// Target is the addresses of Redis, and how to log in. ParseTarget makes a Target; the zero value
// has no address. A Target prints without passwords.
type Target struct {
	topology  topology
	network   string // as in net.Dial
	addresses []string
	primary   string // the Sentinels' name of the primary
	database  int

	username, password                 string // "" and "": no login
	sentinelUsername, sentinelPassword string
	passwordFile, sentinelPasswordFile string    // read again at each login; "": no file
	security                           *security // nil without TLS
}

// topology is how servers form one Redis.
type topology string

// The topologies.
const (
	topologySingle   topology = "single"
	topologySentinel topology = "sentinel"
	topologyCluster  topology = "cluster"
)

// TargetOptions are the options of ParseTarget. All but URLs may be empty. redisstore.Target has
// the same fields, and explains them.
type TargetOptions struct {
	URLs                               []string
	Username, Password                 string
	SentinelUsername, SentinelPassword string
	PasswordFile, SentinelPasswordFile string
	CA, Cert, Key                      string
	ServerName                         string
	AnyServerName                      bool
}

// ParseTarget returns the target of o. The error has all mistakes, each with its URL, and no
// password. ParseTarget reads the files of TLS and of passwords to check them; each new connection
// reads the files again.
func ParseTarget(o TargetOptions) (Target, error) {
	var p targetParser
	t := Target{
		username: o.Username, password: o.Password,
		sentinelUsername: o.SentinelUsername, sentinelPassword: o.SentinelPassword,
	}
	p.file("password", o.PasswordFile, &t.password, &t.passwordFile)
	p.file("password of Sentinel", o.SentinelPasswordFile, &t.sentinelPassword, &t.sentinelPasswordFile)
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
			p.mistake("a server name and any server name: set only one of them")
		}
		if err := secure.files().Check(); err != nil {
			p.mistakes = append(p.mistakes, err)
		}
	case len(urls) > 0 && secure != (security{}):
		p.mistake("a CA, a client certificate and a server name are for TLS: write the URL with rediss, rediss-sentinel or rediss-cluster")
	}
	if len(urls) > 0 && t.topology != topologySentinel && (o.SentinelUsername != "" || o.SentinelPassword != "" || o.SentinelPasswordFile != "") {
		p.mistake("a user name and a password of Sentinel are for redis-sentinel:// and rediss-sentinel:// URLs")
	}
	if err := errors.Join(p.mistakes...); err != nil {
		return Target{}, err
	}
	return t, nil
}

// file reads a password from its file.
func (p *targetParser) file(name, path string, password, to *string) {
	if path == "" {
		return
	}
	if *password != "" {
		p.mistake("a %s, and a file of the %s: set only one of them", name, name)
	}
	text, err := ReadPassword(path)
	if err != nil {
		p.mistake("file of the %s: %w", name, err)
	}
	*password, *to = text, path
}

const urlForms = "redis://host:6379/0, rediss:// (TLS), unix:///path, redis-sentinel://host,host/primary or redis-cluster://host,host"

// merge fills t from all URLs, which must not contradict each other. merge reports whether t has
// TLS.
func (p *targetParser) merge(t *Target, urls []parsedURL) (tls bool) {
	for i, u := range urls {
		first := urls[0]
		p.at = fmt.Sprintf("URL %q: ", u.redacted)
		switch {
		case i == 0:
			t.topology, t.network, t.primary, t.database = u.topology, u.network, u.primary, u.database
		case u.topology != first.topology || u.network != first.network || u.tls != first.tls:
			p.mistake("the scheme differs from the scheme of %q", first.redacted)
			continue
		case u.primary != first.primary:
			p.mistake("the primary differs from the primary of %q", first.redacted)
		case u.database != first.database:
			p.mistake("the database differs from the database of %q", first.redacted)
		}
		if !agree(&t.username, u.username) {
			p.mistake("the user name differs from the user name in another URL or in a setting of its own")
		}
		if !agree(&t.password, u.password) {
			p.mistake("the password differs from the password in another URL or in a setting of its own")
		}
		for _, address := range u.addresses {
			if !slices.Contains(t.addresses, address) {
				t.addresses = append(t.addresses, address)
			}
		}
	}
	p.at = ""
	if t.topology == topologySingle && len(t.addresses) > 1 {
		p.mistake("%d servers, each alone: for several, use Sentinel (redis-sentinel://host,host/primary) "+
			"or a cluster (redis-cluster://host,host)", len(t.addresses))
	}
	return len(urls) > 0 && urls[0].tls
}

// agree sets an empty text to value, and reports whether both agree.
func agree(text *string, value string) bool {
	*text = cmp.Or(*text, value)
	return value == "" || *text == value
}

// String returns the target as one URL, without passwords.
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

// GoString is String, for %#v.
func (t Target) GoString() string { return t.String() }

// LogValue is String.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.String()) }

// host returns the name or the IP of an address, without the port.
func host(address string) string {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return name
}

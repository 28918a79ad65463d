package redis

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Options is where Redis is, and how to log in. redisstore.Target has the same fields, with their
// meanings.
type Options struct {
	URLs                               []string
	PasswordFile, SentinelPasswordFile string
	CA                                 string
	Cert, Key                          string
	ServerName                         string
}

// AnyServerName as Options.ServerName accepts a certificate for any name.
const AnyServerName = "*"

// Target is a valid form of Options. The zero value has no address. A Target prints without
// passwords.
type Target struct {
	topology  topology
	network   string // as in net.Dial
	addresses []string
	primary   string // the Sentinels' name of the primary
	database  int

	login, sentinelLogin login
	security             *security // nil without TLS
}

type topology string

const (
	topologySingle   topology = "single"
	topologySentinel topology = "sentinel"
	topologyCluster  topology = "cluster"
)

const several = "for several, use Sentinel (redis-sentinel://host,host/primary) or a cluster (redis-cluster://host,host)"

const urlForms = "redis://host:6379/0, rediss:// (TLS), unix:///path, redis-sentinel://host,host/primary or redis-cluster://host,host"

// Check returns all mistakes of o, as Parse does.
func (o Options) Check() error {
	_, err := o.Parse()
	return err
}

// Parse returns the target of o. The error has all mistakes, each with its URL, and no password.
// Parse reads the files of TLS and of passwords to check them; each new connection reads the files
// again.
func (o Options) Parse() (Target, error) {
	var p parser
	var urls []parsedURL
	for _, text := range o.URLs {
		p.at = fmt.Sprintf("URL %q: ", redact(text))
		before := len(p.mistakes)
		if u := p.url(text); len(p.mistakes) == before {
			urls = append(urls, u)
		}
	}
	p.at = ""
	if len(o.URLs) == 0 {
		p.mistake("no URL of Redis: want %s", urlForms)
	}
	t, tls := p.merge(urls)
	p.file("password", o.PasswordFile, &t.login)
	p.file("password of Sentinel", o.SentinelPasswordFile, &t.sentinelLogin)
	secure := security{ca: o.CA, cert: o.Cert, key: o.Key, name: o.ServerName}
	switch {
	case tls:
		t.security = &secure
		if err := secure.files().Check(); err != nil {
			p.mistakes = append(p.mistakes, err)
		}
	case len(urls) > 0 && secure != (security{}):
		p.mistake("a CA, a client certificate and a server name are for TLS: write the URL with rediss, rediss-sentinel or rediss-cluster")
	}
	if len(urls) > 0 && t.topology != topologySentinel && t.sentinelLogin != (login{}) {
		p.mistake("a user name and a password of Sentinel are for redis-sentinel:// and rediss-sentinel:// URLs")
	}
	if err := errors.Join(p.mistakes...); err != nil {
		return Target{}, err
	}
	return t, nil
}

// parser collects mistakes.
type parser struct {
	at       string // the URL of the next mistakes
	mistakes []error
}

func (p *parser) mistake(format string, args ...any) {
	p.mistakes = append(p.mistakes, fmt.Errorf("%s%w", p.at, fmt.Errorf(format, args...)))
}

func (p *parser) file(name, path string, l *login) {
	if path == "" {
		return
	}
	if l.password != "" {
		p.mistake("a %s, and a file of the %s: set only one of them", name, name)
	}
	user, password, err := ReadLogin(path)
	if err != nil {
		p.mistake("file of the %s: %w", name, err)
	}
	if !agree(&l.user, user) {
		p.mistake("file of the %s: the user name differs from the user name in a URL", name)
	}
	l.password, l.file = password, path
}

// merge returns the target of all URLs, which must not contradict each other. merge reports whether
// the target has TLS.
func (p *parser) merge(urls []parsedURL) (t Target, tls bool) {
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
		if !agree(&t.login.user, u.login.user) || !agree(&t.sentinelLogin.user, u.sentinelLogin.user) {
			p.mistake("the user name differs from the user name in another URL or in a setting of its own")
		}
		if !agree(&t.login.password, u.login.password) || !agree(&t.sentinelLogin.password, u.sentinelLogin.password) {
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
		p.mistake("%d servers, each alone: %s", len(t.addresses), several)
	}
	return t, len(urls) > 0 && urls[0].tls
}

// agree sets an empty text to value, and reports whether both agree.
func agree(text *string, value string) bool {
	if *text == "" {
		*text = value
	}
	return value == "" || *text == value
}

type parsedURL struct {
	Target
	redacted string
	tls      bool
}

// url reads one URL. After a mistake the result is worthless. net/url reads only pieces of the URL:
// net/url has no lists of hosts, and its errors show passwords.
func (p *parser) url(text string) parsedURL {
	u := parsedURL{redacted: redact(text)}
	scheme, rest, found := strings.Cut(text, "://")
	if !found || !u.scheme(strings.ToLower(scheme)) {
		p.mistake("not a URL of Redis: want %s", urlForms)
		return u
	}
	// Reserved characters in a password would end up in other parts of the URL, and in errors.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 && strings.ContainsAny(rest[:i], "@/?#,") {
		p.mistake("unexpected @: write one user:password@ before the hosts, and @ / ? # , in a user name or password as %%40 %%2F %%3F %%23 %%2C")
		return u
	}
	if strings.Contains(rest, "#") {
		p.mistake("unexpected #: in a user name or password write %%23")
		return u
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, path, hasPath := strings.Cut(rest, "/")
	if user, after, found := strings.Cut(hosts, "@"); found {
		hosts = after
		name, password, found := strings.Cut(user, ":")
		if !found {
			p.mistake("a user name without a password: write user:password@, :password@ for a password alone, user:@ for a password in a file")
		}
		u.login.user, u.login.password = p.decode("user name or password", name), p.decode("user name or password", password)
	}
	switch {
	case u.network != "unix":
		p.hosts(&u, hosts)
	case hosts != "" || !hasPath || path == "":
		p.mistake("want the whole path of a socket after unix://, as in unix:///run/redis.sock")
	default:
		u.addresses = []string{p.decode("path", "/"+path)}
	}
	if u.network == "unix" {
		path = ""
	}
	if u.topology == topologySentinel {
		var name string
		name, path, _ = strings.Cut(path, "/")
		u.primary = p.decode("name of the primary", name)
		if u.primary == "" || strings.ContainsFunc(u.primary, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			p.mistake("want the name of the primary after the hosts, as in redis-sentinel://host,host/primary")
		}
	}
	p.parameters(&u, path, query)
	return u
}

func (p *parser) decode(part, text string) string {
	decoded, err := url.PathUnescape(text)
	if err != nil {
		p.mistake("an invalid percent-encoding in the %s: write %% as %%25", part)
	}
	return decoded
}

// scheme reads the scheme, and reports whether the scheme is one of Redis.
func (u *parsedURL) scheme(scheme string) bool {
	u.topology, u.network = topologySingle, "tcp"
	if base, found := strings.CutSuffix(scheme, "-sentinel"); found {
		scheme, u.topology = base, topologySentinel
	} else if base, found := strings.CutSuffix(scheme, "-cluster"); found {
		scheme, u.topology = base, topologyCluster
	}
	switch scheme {
	case "redis", "valkey":
	case "rediss", "valkeys":
		u.tls = true
	case "unix":
		u.network = "unix"
		return u.topology == topologySingle
	default:
		return false
	}
	return true
}

// hosts reads host[:port][,host[:port]…].
func (p *parser) hosts(u *parsedURL, text string) {
	port := "6379"
	if u.topology == topologySentinel {
		port = "26379"
	}
	hosts := strings.Split(text, ",")
	if len(hosts) > 1 && u.topology == topologySingle {
		p.mistake("one server has one host: %s", several)
	}
	for i, h := range hosts {
		address, err := parseAddress(h, port)
		if err != nil {
			p.mistake("host %d: %w", i+1, err)
		}
		u.addresses = append(u.addresses, address)
	}
}

func parseAddress(text, port string) (string, error) {
	name, after, found := strings.Cut(text, ":")
	if inner, isIP := strings.CutPrefix(text, "["); isIP {
		inner, after, found = strings.Cut(inner, "]")
		if found && after != "" {
			port, found = strings.CutPrefix(after, ":")
		}
		name = strings.Replace(inner, "%25", "%", 1) // the zone, RFC 6874
		if ip, err := netip.ParseAddr(name); !found || err != nil || !ip.Is6() {
			return "", fmt.Errorf("want an IPv6 address in brackets, as in [::1]:%s", port)
		}
	} else {
		if found {
			port = after
		}
		invalid := func(r rune) bool { return r <= ' ' || strings.ContainsRune("\"%<>\\^`{|}\x7f", r) }
		switch {
		case strings.Contains(port, ":"):
			return "", errors.New("write an IPv6 address in brackets, as in [::1]:6379")
		case name == "":
			return "", errors.New("no name")
		case strings.ContainsFunc(name, invalid):
			return "", errors.New("invalid character in the name")
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port must be a number from 1 to 65535")
	}
	return net.JoinHostPort(name, port), nil
}

// parameters reads the database in the path, and after the ? db=database and the login to
// Sentinels.
func (p *parser) parameters(u *parsedURL, path, query string) {
	const names = "the parameters are db, as in ?db=1, and for Sentinels sentinel_username and sentinel_password"
	values, err := url.ParseQuery(query)
	if err != nil {
		p.mistake("invalid parameters after the ?: %s", names)
		return
	}
	var databases []string
	if path != "" {
		databases = append(databases, path)
	}
	for name, texts := range values {
		switch name {
		case "db":
			databases = append(databases, texts...)
		case "sentinel_username":
			u.sentinelLogin.user = texts[0]
		case "sentinel_password":
			u.sentinelLogin.password = texts[0]
		default:
			p.mistake("unknown parameter %q: %s", name, names)
		}
	}
	for i, text := range databases {
		n, err := strconv.ParseUint(text, 10, 31)
		switch {
		case err != nil:
			p.mistake("the database must be a number from 0 up")
		case i > 0 && u.database != int(n):
			p.mistake("more than one database")
		case u.topology == topologyCluster && n != 0:
			p.mistake("a cluster has database 0 only")
		}
		u.database = int(n)
	}
}

// redact returns the parts of a URL, valid or not, that errors may show. No part of a password
// remains.
func redact(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	switch {
	case !found:
		scheme, rest = "", text
	case strings.Contains(scheme, "@"):
		return "***"
	default:
		scheme += "://"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		scheme, rest = scheme+"***@", rest[i+1:]
	}
	rest, _, found = strings.Cut(rest, "?")
	query := ""
	if found {
		query = "?***"
	}
	authority, _, _ := strings.Cut(rest, "/")
	for h := range strings.SplitSeq(authority, ",") {
		// A password without its @ and host looks like a port.
		name, port, found := strings.Cut(h, ":")
		if _, err := strconv.ParseUint(port, 10, 32); found && err != nil && !strings.HasPrefix(h, "[") {
			return scheme + name + ":***"
		}
	}
	return scheme + rest + query
}

// String returns o as one URL, without passwords; "nowhere" when o has mistakes.
func (o Options) String() string {
	t, _ := o.Parse() // the zero Target prints as nowhere
	return t.String()
}

// GoString is String.
func (o Options) GoString() string { return o.String() }

// LogValue is String.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }

// String returns the target as one URL, without passwords, and without the login to Sentinels.
func (t Target) String() string {
	if t.topology == "" {
		return "nowhere"
	}
	scheme, path, database := "redis", "", ""
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
		database = strconv.Itoa(t.database)
		path += "/" + database
	}
	hosts := strings.Join(t.addresses, ",")
	if t.network == "unix" {
		scheme, hosts, path = "unix", (&url.URL{Path: t.addresses[0]}).EscapedPath(), ""
		if database != "" {
			path = "?db=" + database
		}
	}
	user := ""
	switch {
	case t.login.password != "":
		user = url.PathEscape(t.login.user) + ":***@"
	case t.login.user != "":
		user = url.PathEscape(t.login.user) + ":@"
	}
	return scheme + "://" + user + hosts + path
}

// GoString is String, for %#v.
func (t Target) GoString() string { return t.String() }

// LogValue is String.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.String()) }

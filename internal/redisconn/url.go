package redisconn

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// targetParser collects mistakes.
type targetParser struct {
	at       string // the URL of the next mistakes
	mistakes []error
}

func (p *targetParser) mistake(format string, args ...any) {
	p.mistakes = append(p.mistakes, fmt.Errorf("%s%w", p.at, fmt.Errorf(format, args...)))
}

// parsedURL is one URL.
type parsedURL struct {
	Target
	redacted string
	tls      bool
}

// url reads one URL. After a mistake the result is worthless. net/url reads only pieces of the URL:
// net/url has no lists of hosts, and its errors show passwords.
func (p *targetParser) url(text string) parsedURL {
	u := parsedURL{redacted: redactURL(text)}
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
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if user, hosts, found := strings.Cut(authority, "@"); found {
		authority = hosts
		p.user(&u, user)
	}
	if u.network == "unix" {
		p.socket(&u, authority, path)
		path = ""
	} else {
		p.hosts(&u, authority)
	}
	if u.topology == topologySentinel {
		path = p.primary(&u, path)
	}
	p.database(&u, path, query)
	return u
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

// user reads user:password.
func (p *targetParser) user(u *parsedURL, text string) {
	name, password, found := strings.Cut(text, ":")
	if !found {
		p.mistake("a user name without a password: write user:password@, :password@ for a password alone, user:@ for a password in a setting of its own")
		return
	}
	var err1, err2 error
	u.username, err1 = url.PathUnescape(name)
	u.password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		p.mistake("an invalid percent-encoding in the user name or password: write %% as %%25")
	}
}

// socket reads the path of a Unix socket.
func (p *targetParser) socket(u *parsedURL, authority, path string) {
	decoded, err := url.PathUnescape(path)
	switch {
	case authority != "" || path == "" || path == "/":
		p.mistake("want the whole path of a socket after unix://, as in unix:///run/redis.sock")
	case err != nil:
		p.mistake("an invalid percent-encoding in the path: write %% as %%25")
	}
	u.addresses = []string{decoded}
}

// hosts reads host[:port][,host[:port]…].
func (p *targetParser) hosts(u *parsedURL, text string) {
	port := "6379"
	if u.topology == topologySentinel {
		port = "26379"
	}
	hosts := strings.Split(text, ",")
	if len(hosts) > 1 && u.topology == topologySingle {
		p.mistake("one server has one host: for several, use Sentinel (redis-sentinel://host,host/primary) or a cluster (redis-cluster://host,host)")
	}
	for i, h := range hosts {
		address, err := parseAddress(h, port)
		if err != nil {
			p.mistake("host %d: %w", i+1, err)
			continue
		}
		u.addresses = append(u.addresses, address)
	}
}

// parseAddress reads host[:port].
func parseAddress(text, port string) (string, error) {
	var name string
	if strings.HasPrefix(text, "[") {
		inner, after, found := strings.Cut(text[1:], "]")
		if found && after != "" {
			port, found = strings.CutPrefix(after, ":")
		}
		inner = strings.Replace(inner, "%25", "%", 1) // the zone, RFC 6874
		ip, err := netip.ParseAddr(inner)
		if !found || err != nil || !ip.Is6() {
			return "", fmt.Errorf("want an IPv6 address in brackets, as in [::1]:%s", port)
		}
		name = inner
	} else {
		after, found := "", false
		name, after, found = strings.Cut(text, ":")
		if found {
			port = after
		}
		if strings.Contains(port, ":") {
			return "", errors.New("write an IPv6 address in brackets, as in [::1]:6379")
		}
	}
	if name == "" {
		return "", errors.New("no name")
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"%<>\^`+"`{|}\x7f", r) }); i >= 0 && text[0] != '[' {
		return "", errors.New("invalid character in the name")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port must be a number from 1 to 65535")
	}
	return net.JoinHostPort(name, port), nil
}

// primary reads /primary[/database] and returns /database.
func (p *targetParser) primary(u *parsedURL, path string) string {
	name, database, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	decoded, err := url.PathUnescape(name)
	if err != nil || decoded == "" || strings.ContainsFunc(decoded, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		p.mistake("want the name of the primary after the hosts, as in redis-sentinel://host,host/primary")
	}
	u.primary = decoded
	if database == "" {
		return ""
	}
	return "/" + database
}

// database reads /database and ?db=database.
func (p *targetParser) database(u *parsedURL, path, query string) {
	values, err := url.ParseQuery(query)
	if err != nil {
		p.mistake("invalid parameters after the ?: the only parameter is db, as in ?db=1")
		return
	}
	for name := range values {
		if name != "db" {
			p.mistake("unknown parameter %q: the only parameter is db", name)
		}
	}
	var texts []string
	if path = strings.TrimPrefix(path, "/"); path != "" {
		texts = append(texts, path)
	}
	texts = append(texts, values["db"]...)
	for i, text := range texts {
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

// redactURL returns the parts of a URL, valid or not, that errors may show. No part of a password
// remains.
func redactURL(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "", text
	} else {
		scheme += "://"
	}
	if strings.Contains(scheme, "@") {
		return "***"
	}
	user := ""
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, rest = "***@", rest[i+1:]
	}
	rest, query, found := strings.Cut(rest, "?")
	if found {
		value, only := strings.CutPrefix(query, "db=")
		if _, err := strconv.ParseUint(value, 10, 31); only && err == nil {
			query = "?db=" + value
		} else {
			query = "?***"
		}
	}
	// A password without its @ and host looks like a port.
	authority, path, found := strings.Cut(rest, "/")
	if found {
		path = "/" + path
	}
	hosts := strings.Split(authority, ",")
	for i, h := range hosts {
		name, port, found := strings.Cut(h, ":")
		if _, err := strconv.ParseUint(port, 10, 32); found && err != nil && !strings.HasPrefix(h, "[") {
			hosts[i], path = name+":***", ""
		}
	}
	return scheme + user + strings.Join(hosts, ",") + path + query
}

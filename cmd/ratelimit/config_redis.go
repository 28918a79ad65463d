package main

import (
	"cmp"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

type rawRedis struct {
	socket, kind, url  string
	auth, sentinelAuth string
	tls                bool
}

// The values of REDIS_TYPE.
const (
	kindSingle   = "SINGLE"
	kindCluster  = "CLUSTER"
	kindSentinel = "SENTINEL"
)

func redisType(to *string) settings.Value {
	kinds := []string{kindSingle, kindCluster, kindSentinel}
	return settings.OneOfAnyCase(to, kinds, kinds...)
}

// opTimeout is the default of REDIS_OP_TIMEOUT. In the original a call of Redis ends with its
// caller only. The original's REDIS_TIMEOUT, which bounds connecting, has this default.
const opTimeout = 10 * time.Second

func (c *config) completeRedis() []error {
	r := &c.raw
	c.Redis.Timeout = cmp.Or(c.Redis.Timeout, opTimeout)
	if c.Backend == "" {
		c.Backend = backendMemory
		if r.redis.url != "" {
			c.Backend = backendRedis
		}
	}
	if c.Backend != backendRedis {
		return nil
	}
	if r.redis.url == "" {
		r.redis.url = originalSocket
	}
	var err error
	c.Redis.Target, err = r.target(&r.redis)
	errs := settings.Mistakes("REDIS_URL", err)
	if r.perSecond {
		c.Redis.Seconds = new(redisstore.Target)
		*c.Redis.Seconds, err = r.target(&r.seconds)
		errs = append(errs, settings.Mistakes("REDIS_PERSECOND_URL", err)...)
	}
	return errs
}

// Where the original looks for Redis when nobody tells it.
const (
	originalSocket        = "/var/run/nutcracker/ratelimit.sock"
	originalSecondsSocket = "/var/run/nutcracker/ratelimitpersecond.sock"
)

func (r *raw) target(of *rawRedis) (redisstore.Target, error) {
	var t redisstore.Target
	if of.tls {
		t = r.redisTLS
		if r.anyName {
			t.ServerName = redisstore.AnyServerName
		}
	}
	u, err := redisURL(of)
	if user, password := credentials(of.sentinelAuth); of.kind == kindSentinel && of.sentinelAuth != "" {
		u += "?" + url.Values{"sentinel_username": {user}, "sentinel_password": {password}}.Encode()
	}
	t.URLs = withLogin(u, of.auth)
	return t, err
}

// withLogin adds the login of REDIS_AUTH. A login in the URL stays beside it, as both must agree.
func withLogin(u, auth string) []string {
	if auth == "" {
		return []string{u}
	}
	scheme, rest, _ := strings.Cut(u, "://")
	own := strings.LastIndexByte(rest, '@')
	user, password := credentials(auth)
	escape := func(text string) string { return strings.ReplaceAll(url.PathEscape(text), "@", "%40") }
	login := scheme + "://" + escape(user) + ":" + escape(password) + "@" + rest[own+1:]
	if own < 0 {
		return []string{login}
	}
	return []string{u, login}
}

func credentials(auth string) (user, password string) {
	if name, rest, found := strings.Cut(auth, ":"); found {
		return name, rest
	}
	return "", auth
}

// redisURL returns the address as one of our URLs. No error shows it: it may have a password.
func redisURL(of *rawRedis) (string, error) {
	scheme := "redis"
	if of.tls {
		scheme = "rediss"
	}
	hosts := strings.Split(of.url, ",")
	for i := range hosts {
		hosts[i] = strings.TrimSpace(hosts[i])
	}
	switch of.kind {
	case kindCluster:
		return scheme + "-cluster://" + strings.Join(hosts, ","), nil
	case kindSentinel:
		if len(hosts) < 2 {
			return "", errors.New("must be the name of the primary and then the sentinels, with commas between: primary,host:26379,host:26379")
		}
		return scheme + "-sentinel://" + strings.Join(hosts[1:], ",") + "/" + url.PathEscape(hosts[0]), nil
	}
	given, rest, isURL := strings.Cut(of.url, "://")
	switch {
	case isURL && of.tls && given == "redis":
		return scheme + "://" + rest, nil
	case isURL:
		return of.url, nil
	case of.socket == "unix" && of.tls:
		return "", errors.New("there is no TLS over a Unix socket: name a host and the socket type tcp, or switch TLS off")
	case of.socket == "unix":
		return (&url.URL{Scheme: "unix", Path: of.url}).String(), nil
	}
	return scheme + "://" + of.url, nil
}

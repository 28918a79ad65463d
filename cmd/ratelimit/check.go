package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// moreVariables is what the original does not have, reads by other means, or is given by platforms all the same.
func moreVariables(c *config) []variable {
	r := &c.raw
	return []variable{
		used("REDIS_KEY_FORMAT", keyFormat(&c.Keys.Format), keysWeir, "with Redis: `weir` counts under keys of ours, which never collide; `ratelimit`, the original's keys, is refused as long as it is not there"),
		used("STATSD_PROTOCOL", word(&r.statsdProtocol, "tcp", "udp"), "tcp", "how StatsD is told"),
		idle("GRPC_SERVER_TLS_CA_CERT", text(new(string), nil), "", "Envoy Gateway sets it and the original does not know it: clients that show no certificate would be refused; GRPC_CLIENT_TLS_CACERT asks for that"),
		idle("REDIS_POOL_ON_EMPTY_WAIT_DURATION", text(new(string), nil), "", "of the original's README only; there is no pool"),
	}
}

// not is the opposite of a boolean.
func not(to *bool) value {
	v := boolean(to)
	return value{v.kind, func(s string) error {
		err := v.store(s)
		*to = !*to
		return err
	}}
}

// logLevel is a level as the original names them.
func logLevel(to *string) value {
	return text(to, func(s string) error {
		_, err := parseLevel(s)
		return err
	})
}

// keyFormat is how counts are written in Redis.
func keyFormat(to *string) value {
	return value{keysWeir, func(s string) error {
		switch *to = keysWeir; {
		case strings.EqualFold(s, keysWeir):
			return nil
		case strings.EqualFold(s, keysOriginal):
			return errors.New("the original's keys are not there yet, so that old and new pods do not count together: must be weir")
		}
		return fmt.Errorf("%q: must be weir", s)
	}}
}

// perSecond refuses a Redis of its own for limits per second.
func perSecond() value {
	on := new(bool)
	v := boolean(on)
	return value{v.kind, func(s string) error {
		if err := v.store(s); err != nil || !*on {
			return err
		}
		return errors.New("limits per second are not kept in a Redis of their own: a request is one transaction, and that is in one Redis; " +
			"without it they are in the Redis of REDIS_URL")
	}}
}

// keyPrefix accepts what keys in Redis may begin with. Braces are for hash tags.
func keyPrefix(s string) error {
	if strings.ContainsAny(s, "{}") {
		return errors.New("must have no { and }")
	}
	return nil
}

// silent is a level above all that is logged.
const silent = slog.Level(100)

// parseLevel reads the name of a level, in any case.
func parseLevel(name string) (slog.Level, error) {
	switch strings.ToLower(name) {
	case "panic", "fatal":
		return silent, nil
	case "error":
		return slog.LevelError, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "info":
		return slog.LevelInfo, nil
	case "debug", "trace":
		return slog.LevelDebug, nil
	}
	return 0, errors.New("must be one of trace, debug, info, warn, error, fatal, panic")
}

// configType is where rules come from. The original compares it as it is.
func configType(to *string) value {
	return text(to, func(s string) error {
		if s != configFile && s != configXDS {
			return fmt.Errorf("must be %s or %s", configFile, configXDS)
		}
		return nil
	})
}

// backend is where counts are.
func backend(to *string) value {
	return text(to, func(s string) error {
		switch s {
		case "", backendRedis, backendMemory:
			return nil
		case backendMemcache:
			return errors.New("counts are not kept in memcached: a request could not be one step there, and what fails would pass; " +
				"must be redis, or memory for counts in this process")
		}
		return errors.New("must be redis or memory")
	})
}

// socket is the kind of a connection, as package net names it.
func socket(to *string) value {
	return text(to, func(s string) error {
		switch s {
		case "unix", "tcp", "tcp4", "tcp6":
			return nil
		}
		return errors.New("must be tcp or unix")
	})
}

// headerName accepts the name of an HTTP header.
func headerName(s string) error {
	if !httpguts.ValidHeaderFieldName(s) {
		return errors.New("must be the name of an HTTP header")
	}
	return nil
}

// listenAddress accepts what can be listened on.
func listenAddress(s string) error {
	if s == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(s); err != nil {
		return errors.New("must be host:port or :port")
	}
	return nil
}

// rooted accepts a path of a URL.
func rooted(s string) error {
	if s != "" && !strings.HasPrefix(s, "/") || strings.ContainsAny(s, " {}") {
		return errors.New("must be a path that begins with /")
	}
	return nil
}

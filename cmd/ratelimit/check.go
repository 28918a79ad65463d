package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"strings"

	"golang.org/x/net/http/httpguts"
)

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
		switch s {
		case configFile, configXDS, configXDSDelta:
			return nil
		}
		return fmt.Errorf("must be %s, %s or %s", configFile, configXDS, configXDSDelta)
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

// hostName accepts what a port can stand behind.
func hostName(s string) error {
	if _, _, err := net.SplitHostPort(address(s, 0)); err != nil {
		return errors.New("must be a name or an address, of IPv6 with or without brackets")
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

// rooted accepts a path of a URL that a page can have: http.ServeMux takes no other.
func rooted(s string) error {
	clean := path.Clean("/" + s)
	if strings.HasSuffix(s, "/") && clean != "/" {
		clean += "/"
	}
	if s != "" && s != clean || strings.ContainsAny(s, " {}") {
		return errors.New("must be a path that begins with /, without spaces, braces, . and .. and empty parts")
	}
	return nil
}

package main

import (
	"errors"
	"log/slog"
	"net"
	"path"
	"strings"

	"github.com/weirproxy/weir/internal/settings"
)

// silent is a level above every message.
const silent = slog.Level(100)

// logLevel is a level as the original names it, in upper or lower case.
func logLevel(to *slog.Level) settings.Value {
	return settings.OneOfAnyCase(to, []string{"trace", "debug", "info", "warn", "warning", "error", "fatal", "panic"},
		slog.LevelDebug, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelWarn, slog.LevelError, silent, silent)
}

func backend(to *string) settings.Value {
	return text(to, func(s string) error {
		switch s {
		case "", backendRedis, backendMemory:
			return nil
		case backendMemcache:
			return errors.New("counts are not kept in memcached: a request could not be one step there, and failures would pass; " +
				"must be redis, or memory for counts in this process")
		}
		return errors.New("must be redis or memory")
	})
}

func hostName(s string) error {
	if _, _, err := net.SplitHostPort(address(s, 0)); err != nil {
		return errors.New("must be a name or an address, of IPv6 with or without brackets")
	}
	return nil
}

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

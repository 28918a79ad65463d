package redis

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/internal/wire/certificates"
)

// login is a user and a password, and perhaps the file that holds them. "" and "": no login.
type login struct{ user, password, file string }

const maxLogin = 64 << 10 // bytes of a file

// ReadLogin returns the password in a file, and the user if the file holds user:password. Line ends
// at the end do not count. An empty file, and a file of more than 64 KiB, are errors.
func ReadLogin(path string) (user, password string, err error) {
	data, err := regular.Read(path, maxLogin)
	if err != nil {
		return "", "", err
	}
	if data = bytes.TrimRight(data, "\r\n"); len(data) == 0 {
		return "", "", fmt.Errorf("%s: is empty, must hold the password", path)
	}
	if user, password, found := strings.Cut(string(data), ":"); found {
		return user, password, nil
	}
	return "", string(data), nil
}

// credentials is a login that follows its file. Each new connection reads the file, so that a
// renewed password needs no restart.
type credentials struct {
	of     string // the servers, in logs
	logger *slog.Logger

	mu      sync.Mutex // guards the fields below
	current login      // the last one that was read
	failure string     // of the last read; "": none
}

// read is rueidis's ClientOption.AuthCredentialsFn: the login of a new connection. While the file
// cannot be read, read returns the last login, and logs each new reason.
func (c *credentials) read(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	ctx := context.Background()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current.file != "" {
		user, password, err := ReadLogin(c.current.file)
		next := login{cmp.Or(user, c.current.user), password, c.current.file}
		switch {
		case err == nil:
			if next != c.current || c.failure != "" {
				c.logger.LogAttrs(ctx, slog.LevelInfo, "the password file of redis was read again",
					slog.String("of", c.of), slog.Bool("changed", next != c.current))
			}
			c.current, c.failure = next, ""
		case err.Error() != c.failure:
			c.failure = err.Error()
			c.logger.LogAttrs(ctx, slog.LevelWarn, "the password file of redis cannot be read, so the last password stays",
				slog.String("of", c.of), slog.String("error", c.failure))
		}
	}
	return rueidis.AuthCredentials{Username: c.current.user, Password: c.current.password}, nil
}

// security is the TLS of connections. Each new connection reads the files, so that renewed
// certificates need no restart.
type security struct {
	ca, cert, key string // PEM files; "" means the system's authorities, and no certificate
	name          string // of the server's certificate; "" means the host dialed
}

func (s *security) files() certificates.Files {
	return certificates.Files{
		Certificate: certificates.File{Name: "client certificate", Path: s.cert},
		Key:         certificates.File{Name: "client key", Path: s.key},
		Authorities: certificates.File{Name: "CA", Path: s.ca},
		Bundle:      true,
	}
}

func (s *security) config(address string) (*tls.Config, error) {
	set, err := s.files().Read()
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(address)
	if s.name == AnyServerName {
		config := set.Client(cmp.Or(host, address))
		certificates.AnyName(config)
		return config, nil
	}
	return set.Client(cmp.Or(s.name, host, address)), nil
}

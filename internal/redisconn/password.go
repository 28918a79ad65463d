package redisconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/redis/rueidis"
)

// maxPassword is the size of the largest password file, in bytes.
const maxPassword = 64 << 10

// ReadPassword returns the password in a file, without the line ends at its end. An empty file, and
// a file of more than 64 KiB, are errors.
func ReadPassword(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxPassword+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxPassword {
		return "", fmt.Errorf("%s: is larger than %d bytes, must hold the password", path, maxPassword)
	}
	if data = bytes.TrimRight(data, "\r\n"); len(data) == 0 {
		return "", fmt.Errorf("%s: is empty, must hold the password", path)
	}
	return string(data), nil
}

// password is a password, and perhaps the file that holds the password. Each login reads the file,
// so that a renewed password needs no restart.
type password struct {
	of, path string // path "": no file

	mu      sync.Mutex // guards the fields below
	current string     // the last password that was read
	failure string     // of the last read; "": none
}

// read returns the password for a login. While the file cannot be read, read returns the last
// password, and logs each new reason.
func (p *password) read(ctx context.Context, logger *slog.Logger) string {
	if p.path == "" {
		return p.current
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := ReadPassword(p.path)
	switch {
	case err != nil && err.Error() != p.failure:
		p.failure = err.Error()
		logger.LogAttrs(ctx, slog.LevelWarn, "the password file of redis cannot be read, so the last password stays", slog.String("of", p.of), slog.String("error", p.failure))
	case err == nil:
		if text != p.current || p.failure != "" {
			logger.LogAttrs(ctx, slog.LevelInfo, "the password file of redis was read again", slog.String("of", p.of), slog.Bool("changed", text != p.current))
		}
		p.current, p.failure = text, ""
	}
	return p.current
}

// credentials is rueidis's ClientOption.AuthCredentialsFn: the login of a new connection.
func (c *Conn) credentials(to rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	server, ok := to.Address.(peer)
	if !ok {
		return rueidis.AuthCredentials{}, errors.New("a connection that redisconn did not dial")
	}
	if server.sentinel {
		return rueidis.AuthCredentials{Username: c.target.sentinelUsername, Password: c.sentinelPassword.read(c.ctx, c.logger)}, nil
	}
	return rueidis.AuthCredentials{Username: c.target.username, Password: c.password.read(c.ctx, c.logger)}, nil
}

// toSentinel marks the dialer that rueidis passes to session.fetch for a Sentinel. Nothing dials
// with this dialer.
type toSentinel struct{}

var _ net.Addr = toSentinel{}

// Network is not used.
func (toSentinel) Network() string { return "" }

// String is not used.
func (toSentinel) String() string { return "a Sentinel" }

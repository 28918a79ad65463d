package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/internal/wire/certificates"
)

// Admin chooses the clients of the admin service and its page.
type Admin struct {
	TokenFile certificates.File // with the token that clients must show; without a path: no token
	TLS       TLS               // of the address
}

// The bounds of a token, in bytes.
const (
	minToken = 16
	maxToken = 4096

	maxTokenFile = 4 * maxToken // with white space around the token
)

// Check returns all mistakes in the files.
func (a *Admin) Check() error {
	var errs []error
	if a.TokenFile.Path != "" {
		_, err := readToken(a.TokenFile)
		errs = append(errs, err)
	}
	t := &a.TLS
	if t.Certificate.Path == "" && t.Key.Path == "" && t.Authorities.Path != "" {
		errs = append(errs, fmt.Errorf("%s: needs %s and %s: clients can only show certificates to a server with one",
			t.Authorities.Name, t.Certificate.Name, t.Key.Name))
	} else if t.Certificate.Path != "" || t.Key.Path != "" {
		errs = append(errs, t.Check())
	}
	return errors.Join(errs...)
}

// token reads the token, and returns the function for the token from now on; nil without a file.
func (a *Admin) token(logger *slog.Logger) (func() string, error) {
	if a.TokenFile.Path == "" {
		return nil, nil //nolint:nilnil // see above
	}
	file := &tokenFile{file: a.TokenFile, logger: logger}
	if err := file.read(time.Now()); err != nil {
		return nil, err
	}
	return file.token, nil
}

// allow refuses an address of other machines, unless clients must show a token or a certificate.
func (a *Admin) allow(at net.Addr) error {
	tcp, ok := at.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() || a.TokenFile.Path != "" || a.TLS.Authorities.Path != "" {
		return nil
	}
	return fmt.Errorf("%s: the admin service changes limits and shows keys, so on an address that is not loopback clients must show "+
		"a token or a certificate: set %s, or %s with %s, or listen on 127.0.0.1",
		at, a.TokenFile.Name, a.TLS.Authorities.Name, a.TLS.Certificate.Name)
}

func (a *Admin) warn(ctx context.Context, at net.Addr, logger *slog.Logger) {
	if tcp, ok := at.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && a.TLS.Certificate.Path == "" {
		logger.LogAttrs(ctx, slog.LevelWarn, "the admin token crosses the network in clear text",
			slog.String("address", at.String()), slog.String("set", a.TLS.Certificate.Name))
	}
}

func readToken(f certificates.File) (string, error) {
	data, err := regular.Read(f.Path, maxTokenFile)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Name, err)
	}
	return ParseToken(f, data)
}

// ParseToken returns the token in the data of a file. White space around it does not count.
func ParseToken(f certificates.File, data []byte) (string, error) {
	token := strings.TrimSpace(string(data))
	printable := !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
	if len(token) < minToken || len(token) > maxToken || !printable {
		return "", fmt.Errorf("%s: %s: the token has %d bytes, must be from %d to %d characters of ASCII without spaces, "+
			"such as from: openssl rand -hex 32", f.Name, f.Path, len(token), minToken, maxToken)
	}
	return token, nil
}

const tokenAge = time.Second

// tokenFile is a token that may change, as in a Secret of Kubernetes. Safe for concurrent use.
type tokenFile struct {
	file   certificates.File
	logger *slog.Logger
	logged loglimit.Limiter

	mu  sync.Mutex // guards all below
	now string     // "" after a failure
	at  time.Time  // of the last read
}

// token returns the token, "" where it cannot be read.
func (t *tokenFile) token() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.at) >= tokenAge {
		if err := t.readLocked(now); err != nil {
			if missed, due := t.logged.Due(time.Minute); due {
				t.logger.LogAttrs(context.Background(), slog.LevelError, "the admin token cannot be read, nobody is admitted",
					slog.String("error", err.Error()), slog.Uint64("not_logged", missed))
			}
		}
	}
	return t.now
}

func (t *tokenFile) read(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.readLocked(now)
}

func (t *tokenFile) readLocked(now time.Time) (err error) {
	t.at = now
	t.now, err = readToken(t.file)
	return err
}

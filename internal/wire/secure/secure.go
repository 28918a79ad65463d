// Package secure is TLS of servers, with a bound of the bytes that TLS keeps for a client.
package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/loglimit"
)

// Credentials is TLS for every connection except on Unix sockets, which the permissions of the file
// protect.
type Credentials struct {
	credentials.TransportCredentials // TLS

	logger *slog.Logger
	failed loglimit.Limiter
}

// New returns the credentials of a config. A failed handshake is logged, at most once a second.
func New(config *tls.Config, logger *slog.Logger) *Credentials {
	return &Credentials{TransportCredentials: credentials.NewTLS(config), logger: logger}
}

// ServerHandshake implements [credentials.TransportCredentials].
func (s *Credentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if raw.LocalAddr().Network() == "unix" {
		return insecure.NewCredentials().ServerHandshake(raw)
	}
	conn, info, err := s.TransportCredentials.ServerHandshake(&undecrypted{Conn: raw})
	if err != nil && !leftEarly(err) {
		if missed, ok := s.failed.Due(time.Second); ok {
			s.logger.LogAttrs(context.Background(), slog.LevelWarn, "TLS handshake failed",
				slog.String("client", raw.RemoteAddr().String()), slog.String("error", err.Error()), slog.Uint64("not_logged", missed))
		}
	}
	return conn, info, err
}

// maxUndecrypted bounds the bytes that TLS keeps before it has a byte for the server: the client's
// part of a handshake, or a record. The package crypto/tls keeps 64 KiB of a message, and 256 KiB
// of certificates.
const maxUndecrypted = 24 << 10

// errUndecrypted ends a connection that has sent more.
var errUndecrypted = fmt.Errorf("the client has sent %d bytes, and the handshake or record is not complete", maxUndecrypted)

// undecrypted is a connection below TLS. One goroutine may read it, and call Decrypted.
type undecrypted struct {
	net.Conn

	bytes int // read since Decrypted
}

// Read implements [net.Conn].
func (u *undecrypted) Read(p []byte) (int, error) {
	if u.bytes >= maxUndecrypted {
		return 0, errUndecrypted
	}
	n, err := u.Conn.Read(p)
	u.bytes += n
	return n, err
}

// Decrypted notes that TLS has given bytes to the server.
func (u *undecrypted) Decrypted() { u.bytes = 0 }

// NetConn returns the connection below, as [tls.Conn.NetConn] does.
func (u *undecrypted) NetConn() net.Conn { return u.Conn }

// leftEarly reports whether the client closed the connection without a handshake, as probes of an
// open port do.
func leftEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Clone implements [credentials.TransportCredentials].
func (s *Credentials) Clone() credentials.TransportCredentials {
	return &Credentials{TransportCredentials: s.TransportCredentials.Clone(), logger: s.logger}
}

package wire

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

// Secure is TLS for every connection except on Unix sockets, which the permissions of the file
// protect. Safe for concurrent use.
type Secure struct {
	credentials.TransportCredentials // TLS

	logger *slog.Logger
	failed loglimit.Limiter
}

// NewSecure returns the TLS of a server. Failed handshakes go to the log, at most one a second.
func NewSecure(config *tls.Config, logger *slog.Logger) *Secure {
	return &Secure{TransportCredentials: credentials.NewTLS(config), logger: logger}
}

// ServerHandshake implements [credentials.TransportCredentials].
func (s *Secure) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if raw.LocalAddr().Network() == "unix" {
		return insecure.NewCredentials().ServerHandshake(raw)
	}
	below := &undecrypted{Conn: raw}
	conn, info, err := s.TransportCredentials.ServerHandshake(below)
	if secure, ok := conn.(*tls.Conn); ok && err == nil {
		return &decrypting{secure, below}, info, nil
	}
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

var errUndecrypted = fmt.Errorf("the client has sent %d bytes, and the handshake or record is not complete", maxUndecrypted)

type undecrypted struct {
	net.Conn

	bytes int // read since TLS has given bytes to the server
}

func (u *undecrypted) Read(p []byte) (int, error) {
	if u.bytes >= maxUndecrypted {
		return 0, errUndecrypted
	}
	n, err := u.Conn.Read(p)
	u.bytes += n
	return n, err
}

func (u *undecrypted) NetConn() net.Conn { return u.Conn }

type decrypting struct {
	*tls.Conn

	below *undecrypted
}

func (d *decrypting) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if n > 0 {
		d.below.bytes = 0
	}
	return n, err
}

// StateOf returns the state of TLS of a connection, or of a connection below it; nil: there is no
// TLS.
func StateOf(conn net.Conn) *tls.ConnectionState {
	for conn != nil {
		if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
			state := secure.ConnectionState()
			return &state
		}
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	return nil
}

// leftEarly reports whether the client closed the connection without a handshake, as probes of an
// open port do.
func leftEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Clone implements [credentials.TransportCredentials].
func (s *Secure) Clone() credentials.TransportCredentials {
	return &Secure{TransportCredentials: s.TransportCredentials.Clone(), logger: s.logger}
}

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/internal/inflight"
	"github.com/weirproxy/weir/internal/loglimit"
)

// followed is credentials, with connections that a bound on the bytes in flight follows.
type followed struct {
	credentials.TransportCredentials

	bound *inflight.Bound
}

// followedInfo is the information of the credentials, with the connection.
type followedInfo struct {
	credentials.AuthInfo

	conn *inflight.Conn
}

// ServerHandshake implements [credentials.TransportCredentials].
func (f *followed) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := f.bound.Follow(conn)
	return c.Server(), followedInfo{info, c}, nil
}

// Clone implements [credentials.TransportCredentials].
func (f *followed) Clone() credentials.TransportCredentials {
	return &followed{TransportCredentials: f.TransportCredentials.Clone(), bound: f.bound}
}

// connection returns the connection of a call; nil when the bound does not follow the connection.
func connection(ctx context.Context) *inflight.Conn {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	info, _ := p.AuthInfo.(followedInfo)
	return info.conn
}

// secured is TLS for every connection except on Unix sockets, which the permissions of the file protect.
type secured struct {
	credentials.TransportCredentials // TLS

	logger *slog.Logger
	failed loglimit.Limiter
}

func newSecured(config *tls.Config, logger *slog.Logger) *secured {
	return &secured{TransportCredentials: credentials.NewTLS(config), logger: logger}
}

// ServerHandshake implements [credentials.TransportCredentials].
func (s *secured) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if raw.LocalAddr().Network() == "unix" {
		return insecure.NewCredentials().ServerHandshake(raw)
	}
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil && !leftEarly(err) {
		if missed, ok := s.failed.Due(time.Second); ok {
			s.logger.LogAttrs(context.Background(), slog.LevelWarn, "TLS handshake failed",
				slog.String("client", raw.RemoteAddr().String()), slog.String("error", err.Error()), slog.Uint64("not_logged", missed))
		}
	}
	return conn, info, err
}

// leftEarly reports whether the client closed the connection without a handshake, as probes of an open port do.
func leftEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Clone implements [credentials.TransportCredentials].
func (s *secured) Clone() credentials.TransportCredentials {
	return &secured{TransportCredentials: s.TransportCredentials.Clone(), logger: s.logger}
}

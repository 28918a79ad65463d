package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// secured is TLS for every connection except on Unix sockets, which the permissions of the file protect.
type secured struct {
	credentials.TransportCredentials // TLS

	logger *slog.Logger
	failed logLimiter
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
		if missed, ok := s.failed.due(); ok {
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

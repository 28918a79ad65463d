//go:build !linux

package laneserver

import (
	"net"

	"github.com/weirproxy/weir/internal/wire/connections"
)

func newSocket(conn net.Conn, plain connections.Decrypter) socket {
	return &netSocket{Conn: conn, plain: plain}
}

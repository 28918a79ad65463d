//go:build !linux

package laneserver

import "net"

func newSocket(conn net.Conn) socket { return newNetSocket(conn) }

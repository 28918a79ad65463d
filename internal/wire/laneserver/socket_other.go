//go:build !linux

package laneserver

import "net"

func newSocket(_, secured net.Conn) socket { return &netSocket{Conn: secured} }

//go:build !linux

package rawio

import "net"

func wrap(conn net.Conn) net.Conn { return conn }

package server

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/internal/wire/inflight"
	"github.com/weirproxy/weir/internal/wire/laneserver"
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
	conn, info, err := f.handshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := f.bound.Follow(conn)
	return c.Server(), followedInfo{info, c}, nil
}

// handshake secures a connection, unless the lane has done so before it handed the connection over.
func (f *followed) handshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	handed, ok := raw.(*laneserver.Handed)
	if !ok {
		defer f.bound.Shake(raw)()
		return f.TransportCredentials.ServerHandshake(raw)
	}
	if info, ok := handed.Info.(credentials.AuthInfo); ok {
		return handed, info, nil
	}
	return insecure.NewCredentials().ServerHandshake(handed)
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

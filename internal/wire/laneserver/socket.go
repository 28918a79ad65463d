package laneserver

import "net"

// socket reads and writes the bytes of a connection. One goroutine may read, another one write.
type socket interface {
	// read waits for bytes, and returns the buffers of s that have them in front.
	read(s *Server) (b *buffers, n int, err error)
	// try writes as much as the system takes at once, where the system can tell, and returns the rest.
	try(p []byte) (rest []byte, err error)
	// write writes all bytes, and may wait for the client.
	write(p []byte) error
}

// netSize is the memory of an idle connection of package net, in bytes.
const netSize = 4 << 10

// netSocket is a socket of package net, which waits with a small buffer.
type netSocket struct {
	net.Conn

	buffer []byte
}

func (n *netSocket) read(s *Server) (b *buffers, read int, err error) {
	if n.buffer == nil {
		n.buffer = make([]byte, netSize)
	}
	read, err = n.Read(n.buffer)
	if read == 0 && err != nil {
		return nil, 0, err
	}
	b, _ = s.buffers.Get().(*buffers)
	copy(b.in[:], n.buffer[:read])
	return b, read, nil
}

func (n *netSocket) try(p []byte) (rest []byte, err error) { return p, nil }

func (n *netSocket) write(p []byte) error {
	_, err := n.Write(p)
	return err
}

package connections

import "net"

// Marker is a connection that wants to know about requests, such as a [Conn]. All methods are safe
// for concurrent use.
type Marker interface {
	Begin()    // the first request is open
	Answered() // a request is answered
	Done()     // no request is open
}

// Decrypter is a connection below TLS that wants to know when TLS has read on. The goroutine that
// reads the connection calls it.
type Decrypter interface {
	Decrypted() // TLS has given bytes to the server
}

// Below returns the first Marker among a connection and the connections below it, as their NetConn
// tells, and a Decrypter on the way there. Each may be nil.
func Below(conn net.Conn) (mark Marker, plain Decrypter) {
	for {
		if d, ok := conn.(Decrypter); ok {
			plain = d
		}
		if m, ok := conn.(Marker); ok {
			return m, plain
		}
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, plain
		}
		conn = below.NetConn()
	}
}

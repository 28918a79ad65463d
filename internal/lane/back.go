package lane

// Back is a [Foreign] that speaks HTTP/2 to a gRPC server, as a client on one connection, again without input and output: the
// streams keep their numbers, header blocks are decoded and encoded again, and each side has its own flow control.
//
// The caller makes a Back with its Conn, connects it to the gRPC server by any net.Conn, also one in memory, feeds what that server
// sends to [Back.Receive], and writes [Back.Output] to it: after each method of the Conn too. A Conn and its Back have one lock.
type Back struct {
	conn *Conn
}

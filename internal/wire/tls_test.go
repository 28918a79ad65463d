package wire

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// The bound is for bytes that TLS keeps, not for all bytes of a connection.
func TestUndecryptedCountsSinceTheLastDecryptedByte(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() { _, _ = client.Write(make([]byte, 3*maxUndecrypted)) }()
	u := &undecrypted{Conn: server}
	part := make([]byte, maxUndecrypted)
	for range 2 {
		must.Get(io.ReadFull(u, part))(t)
		u.bytes = 0 // TLS gives bytes to the server
	}
	must.Get(io.ReadFull(u, part))(t)
	if _, err := u.Read(part); !errors.Is(err, errUndecrypted) {
		t.Errorf("got %v, want %v", err, errUndecrypted)
	}
}

func TestOtherErrorsAreNoClientThatLeft(t *testing.T) {
	for _, err := range []error{errors.New("no"), &net.OpError{Err: errors.New("no")}} {
		if leftEarly(err) {
			t.Errorf("%v is taken for a client that left", err)
		}
	}
}

package wire

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestTheSystemKeepsFewAnswersForAUnixSocketThatNobodyReads(t *testing.T) {
	below := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	l := NewConnections(ConnectionOptions{SocketBuffer: 16 << 10, Logger: slog.New(slog.DiscardHandler)}).Listen(below)
	defer l.Close()
	client := must.Get(net.Dial("unix", below.Addr().String()))(t)
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	sent := 0
	for answer := make([]byte, 4<<10); err == nil || sent == 0; {
		if err := server.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil { // which a busy machine may miss
			t.Fatal(err)
		}
		var n int
		n, err = server.Write(answer)
		sent += n
	}
	if sent > 40<<10 { // twice 16 KiB and a part of an answer; the system's own size is 208 KiB
		t.Errorf("%d bytes in the buffer; want at most %d", sent, 40<<10)
	}
}

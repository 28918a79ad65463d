package redis

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// Sentinels that do not agree can make two replicas primaries. A Sentinel then names one of them,
// and a moment later the other one. The first one goes on to accept writes, and closes no
// connection. A ping each second shows how long Conn uses the first one.
func TestSentinelsThatNameAnotherPrimarySoonAreFollowed(t *testing.T) {
	t.Parallel()
	var pings, asked atomic.Int64
	var named [2]string
	primary := func(pinged *atomic.Int64) string {
		f := newFakeRedis(t, "7.0.15")
		answer := func(_ net.Conn, words []string) string {
			switch {
			case words[0] == "ROLE":
				return "*1\r\n$6\r\nmaster\r\n"
			case words[0] == "PING" && len(words) > 1:
				pinged.Add(1)
			}
			return ""
		}
		f.answer.Store(&answer)
		return f.listener.Addr().String()
	}
	named[0], named[1] = primary(&pings), primary(new(atomic.Int64))
	sentinel := newFakeRedis(t, "7.0.15")
	answer := func(_ net.Conn, words []string) string {
		switch {
		case len(words) < 2 || words[0] != "SENTINEL":
			return ""
		case strings.EqualFold(words[1], "SENTINELS"):
			return "*0\r\n"
		}
		host, port, _ := net.SplitHostPort(named[min(asked.Add(1)-1, 1)])
		return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
	}
	sentinel.answer.Store(&answer)
	c, _ := connectedTo(t, Options{URLs: []string{"redis-sentinel://" + sentinel.listener.Addr().String() + "/weir"}})
	await(t, "a connection to the other primary", func() error {
		client := must.Get(c.Client())(t)
		if _, is := client.Nodes()[named[1]]; !is {
			return errors.New("commands go to the first primary")
		}
		return nil
	})
	if n := pings.Load(); n > 2 {
		t.Errorf("the first primary got %d pings, one each second, before a Sentinel was asked again; want 2 at most", n)
	}
}

package wire

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// hold makes the connection the connection of a client that has taken one answer and keeps a
// request open.
func hold(c *Conn) {
	c.Begin()
	c.Answered()
}

// A client takes one answer and then holds a health Watch, or a message that never ends. Such
// clients must not lock a newcomer out for ever.
func TestABusyConnectionThatIsSilentForLongestMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 3})
		asking, lively := b.dial(t)
		hold(lively)
		oldest, first := b.dial(t)
		hold(first)
		time.Sleep(time.Second)
		younger, second := b.dial(t)
		hold(second)
		for range 2 * silentAge / time.Second {
			time.Sleep(time.Second)
			lively.Answered()
			if _, c := b.dial(t); c != nil {
				if got := time.Since(b.begun); got < silentAge {
					t.Fatalf("a connection gave way after %v", got)
				}
				hold(c)
				break
			}
		}
		if open(t, oldest) || !open(t, younger) || !open(t, asking) {
			t.Errorf("open: silent for longest %t, silent for a shorter time %t, with answers %t; want the first one closed alone",
				open(t, oldest), open(t, younger), open(t, asking))
		}
		if got := b.Stats(); got.Replaced != 1 || !strings.Contains(b.log.String(), "took the place of a silent one") {
			t.Errorf("got %+v, want one replaced; log:\n%s", got, b.log)
		}
	})
}

// A request that begins after a long quiet time is new, and not old.
func TestSilenceBeginsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 1})
		client, server := b.dial(t)
		hold(server)
		server.Done()
		time.Sleep(time.Hour)
		server.Begin()
		time.Sleep(silentAge - time.Millisecond)
		if _, other := b.dial(t); other != nil || !open(t, client) {
			t.Error("a connection gave way while a request of it was younger than silentAge")
		}
	})
}

// An attacker gives up its only request and opens another one again and again.
func TestRequestsWithoutAnAnswerDoNotEndTheSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 1})
		client, server := b.dial(t)
		hold(server)
		for range 2 * silentAge / time.Second {
			time.Sleep(time.Second / 2)
			server.Done()
			server.Begin()
			time.Sleep(time.Second / 2)
		}
		if _, other := b.dial(t); other == nil || open(t, client) {
			t.Error("a connection without answers keeps others out")
		}
	})
}

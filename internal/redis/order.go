package redis

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// orderInterval is the time between two checks of a busy connection.
const orderInterval = time.Second

// keepOrder pings the busy connections, with a number that their checkers know, until the session
// ends. A reply too many shifts all replies after it, and package resp would notice that only on an
// idle connection.
func (s *session) keepOrder() {
	tick := time.NewTicker(orderInterval)
	defer tick.Stop()
	commands := map[string]uint64{} // of the connections to an address at the last tick
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		nodes := s.client.Nodes()
		for address, node := range nodes {
			before, now := commands[address], s.commands(address)
			if commands[address] = now; now-before > 1 { // one is the ping itself
				s.running.Go(func() { s.pingInOrder(node) })
			}
		}
		for address := range commands {
			if _, known := nodes[address]; !known {
				delete(commands, address)
			}
		}
	}
}

// commands returns the number of commands that were sent on the present connections to an address.
func (s *session) commands(address string) (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.endpoints[address]; e != nil {
		for c := range e.fetched {
			n += c.checker.Commands()
		}
	}
	return n
}

// pingInOrder sends a PING with a random number. The checker of the connection closes the
// connection unless the number comes back.
func (s *session) pingInOrder(node rueidis.Client) {
	ctx, cancel := context.WithTimeout(s.ctx, orderInterval)
	defer cancel()
	number := strconv.FormatUint(rand.Uint64(), 36)
	_ = node.Do(ctx, node.B().Ping().Message(number).Build()).Error() // other commands find out, too
}

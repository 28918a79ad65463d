package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Nodes has for each slot of a cluster the number of its primary. Numbers are small, and a primary
// keeps its number while it has slots.
type Nodes [16384]uint16

const (
	nodesInterval = 30 * time.Second // as rueidis asks for the slots
	nodesTimeout  = timeout / 4      // of one node's answer; then another node is asked
	maxPrimaries  = 1000             // as many as Redis recommends for a cluster at most
)

// nodes is the newest Nodes, and the ids of their primaries.
type nodes struct {
	known     atomic.Pointer[Nodes] // nil: unknown
	mu        sync.Mutex            // guards the fields below
	primaries []string              // by number; "": the number is free
	addresses map[string]string     // of the primaries by id, as host:port
}

// Nodes returns the primaries of the slots; nil: unknown, or no cluster. Nodes takes no lock, and
// is the same pointer as before unless a slot has changed its primary. rueidis may know of a change
// up to 30 s earlier.
func (c *Conn) Nodes() *Nodes { return c.nodes.known.Load() }

// Primaries returns the addresses of a cluster's primaries, by the numbers of Nodes. "": no primary
// has the number. Nil: unknown, or no cluster.
func (c *Conn) Primaries() []string {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	all := slices.Clone(c.nodes.primaries)
	for i, id := range all {
		all[i] = c.nodes.addresses[id]
	}
	return all
}

// keepNodes asks for the primaries of the slots until the session ends: after nodesInterval, when
// rueidis knows other addresses, and after a failure.
func (s *session) keepNodes() {
	asked, addresses := time.Now(), s.addresses() // newSession has just asked
	known := s.conn.Nodes() != nil
	s.each(time.Second, func() {
		now := s.addresses()
		if !known || time.Since(asked) >= nodesInterval || !slices.Equal(now, addresses) {
			asked, addresses = time.Now(), now
			known = s.askNodes() == nil
		}
	})
}

func (s *session) addresses() []string { return slices.Sorted(maps.Keys(s.client.Nodes())) }

// askNodes asks one node after another for the primaries of the slots, until one answers.
func (s *session) askNodes() error {
	err := errors.New("no node is known")
	for _, node := range s.client.Nodes() { // in random order
		var ranges []rueidis.RedisMessage
		ctx, cancel := context.WithTimeout(s.ctx, nodesTimeout)
		ranges, err = node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
		cancel()
		if err == nil {
			err = s.conn.nodes.learn(ranges)
		}
		if err == nil || s.ctx.Err() != nil {
			break
		}
	}
	return err
}

// learn learns the primaries of the slots from the answer to CLUSTER SLOTS. Slots without a
// primary get number 0.
func (n *nodes) learn(ranges []rueidis.RedisMessage) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var now Nodes
	known, slotsOf, addresses := 0, map[string][][2]int64{}, map[string]string{}
	for i := range ranges {
		first, last, primary, err := readRange(ranges[i])
		if err != nil {
			return fmt.Errorf("CLUSTER SLOTS: range %d: %w", i, err)
		}
		id, address, err := readNode(primary)
		if err != nil {
			return fmt.Errorf("CLUSTER SLOTS: range %d: %w", i, err)
		}
		slotsOf[id] = append(slotsOf[id], [2]int64{first, last})
		addresses[id] = address
		known += int(last-first) + 1
		// Each primary costs callers memory, and each slot time.
		if known > len(now) || len(slotsOf) > maxPrimaries {
			return fmt.Errorf("CLUSTER SLOTS: more than %d slots or %d primaries", len(now), maxPrimaries)
		}
	}
	n.primaries = number(n.primaries, slices.Collect(maps.Keys(slotsOf)))
	n.addresses = addresses
	for primary, id := range n.primaries {
		for _, r := range slotsOf[id] {
			for slot := r[0]; slot <= r[1]; slot++ {
				now[slot] = uint16(primary)
			}
		}
	}
	if old := n.known.Load(); old == nil || *old != now {
		n.known.Store(&now)
	}
	return nil
}

// number returns the ids of primaries by their numbers. A primary keeps its number. A new one gets
// the smallest that is free: "".
func number(primaries, now []string) []string {
	primaries = slices.Clone(primaries)
	for n, id := range primaries {
		if !slices.Contains(now, id) {
			primaries[n] = ""
		}
	}
	slices.Sort(now)
	for _, id := range now {
		if slices.Contains(primaries, id) {
			continue
		}
		if free := slices.Index(primaries, ""); free >= 0 {
			primaries[free] = id
		} else {
			primaries = append(primaries, id)
		}
	}
	return primaries
}

// readRange reads one range of slots: first slot, last slot, and the nodes, of which the first is
// the primary.
func readRange(of rueidis.RedisMessage) (first, last int64, primary rueidis.RedisMessage, err error) {
	parts, err := of.ToArray()
	if err != nil {
		return 0, 0, primary, err
	}
	if len(parts) < 3 {
		return 0, 0, primary, fmt.Errorf("%d parts: must be at least 3", len(parts))
	}
	first, err = parts[0].AsInt64()
	last, wrong := parts[1].AsInt64()
	if err = cmp.Or(err, wrong); err != nil {
		return 0, 0, primary, err
	}
	if first < 0 || last < first || last >= int64(len(Nodes{})) {
		return 0, 0, primary, fmt.Errorf("slots %d to %d: must be in order, from 0 to %d", first, last, len(Nodes{})-1)
	}
	return first, last, parts[2], nil
}

// readNode reads a node: its host, its port and its id. Without a host the node is named by its id.
func readNode(of rueidis.RedisMessage) (id, address string, err error) {
	parts, err := of.ToArray()
	if err != nil {
		return "", "", err
	}
	if len(parts) < 3 {
		return "", "", fmt.Errorf("a node of %d parts: must be at least 3", len(parts))
	}
	if id, err = parts[2].ToString(); err == nil && id == "" {
		err = errors.New("a node without an id")
	}
	host, noHost := parts[0].ToString()
	port, noPort := parts[1].AsInt64()
	if noHost != nil || noPort != nil || host == "" {
		return id, id, err
	}
	return id, net.JoinHostPort(host, strconv.FormatInt(port, 10)), err
}

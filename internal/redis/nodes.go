package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	mu        sync.Mutex            // guards primaries
	primaries []string              // by number; "": the number is free
}

// Nodes returns the primaries of the slots; nil: unknown, or no cluster. Nodes takes no lock, and
// is the same pointer as before unless a slot has changed its primary. rueidis may know of a change
// up to 30 s earlier.
func (c *Conn) Nodes() *Nodes { return c.nodes.known.Load() }

// keepNodes asks for the primaries of the slots until the session ends: after nodesInterval, when
// rueidis knows other addresses, and after a failure.
func (s *session) keepNodes() {
	asked, addresses := time.Now(), s.addresses() // newSession has just asked
	known := s.conn.Nodes() != nil
	s.eachSecond(func() {
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
	known, slotsOf := 0, map[string][][2]int64{}
	for i := range ranges {
		first, last, id, err := readRange(ranges[i])
		if err != nil {
			return fmt.Errorf("CLUSTER SLOTS: range %d: %w", i, err)
		}
		slotsOf[id] = append(slotsOf[id], [2]int64{first, last})
		known += int(last-first) + 1
		// Each primary costs callers memory, and each slot time.
		if known > len(now) || len(slotsOf) > maxPrimaries {
			return fmt.Errorf("CLUSTER SLOTS: more than %d slots or %d primaries", len(now), maxPrimaries)
		}
	}
	n.primaries = number(n.primaries, slices.Collect(maps.Keys(slotsOf)))
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
// the primary. A node is its host, its port and its id.
func readRange(of rueidis.RedisMessage) (first, last int64, id string, err error) {
	parts, err := of.ToArray()
	if err != nil {
		return 0, 0, "", err
	}
	if len(parts) < 3 {
		return 0, 0, "", fmt.Errorf("%d parts: must be at least 3", len(parts))
	}
	if first, err = parts[0].AsInt64(); err != nil {
		return 0, 0, "", err
	}
	if last, err = parts[1].AsInt64(); err != nil {
		return 0, 0, "", err
	}
	if first < 0 || last < first || last >= int64(len(Nodes{})) {
		return 0, 0, "", fmt.Errorf("slots %d to %d: must be in order, from 0 to %d", first, last, len(Nodes{})-1)
	}
	primary, err := parts[2].ToArray()
	if err != nil {
		return 0, 0, "", err
	}
	if len(primary) < 3 {
		return 0, 0, "", fmt.Errorf("a node of %d parts: must be at least 3", len(primary))
	}
	if id, err = primary[2].ToString(); err == nil && id == "" {
		err = errors.New("a node without an id")
	}
	return first, last, id, err
}

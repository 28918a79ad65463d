package parts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// slotCount is the number of slots of a cluster.
const slotCount = 16384

// A member is one line of CLUSTER NODES.
type member struct {
	id, primaryID    string // primaryID is "-" of a primary
	myself, primary  bool
	failed, unlinked bool // failed for all; not connected to the node that says so
	epoch            int64
	slots            []string // as Redis writes them: "5", "7-9"; slots on the move are left out
}

// parseMember reads one line of CLUSTER NODES:
// <id> <address> <flags> <primary> <ping> <pong> <epoch> <link> <slot> <slot>….
func parseMember(line string) (member, error) {
	words := strings.Fields(line)
	if len(words) < 8 {
		return member{}, fmt.Errorf("CLUSTER NODES: a line of %d words: %q", len(words), line)
	}
	epoch, err := strconv.ParseInt(words[6], 10, 64)
	if err != nil {
		return member{}, fmt.Errorf("CLUSTER NODES: the epoch in %q: %w", line, err)
	}
	flags := strings.Split(words[2], ",")
	return member{
		id: words[0], primaryID: words[3], epoch: epoch,
		myself: slices.Contains(flags, "myself"), primary: slices.Contains(flags, "master"),
		failed: slices.Contains(flags, "fail"), unlinked: words[7] != "connected",
		slots: slices.DeleteFunc(words[8:], func(slot string) bool { return strings.HasPrefix(slot, "[") }),
	}, nil
}

// has reports whether the member owns the slot.
func (m member) has(slot int) bool {
	return slices.ContainsFunc(m.slots, func(text string) bool {
		low, high, found := strings.Cut(text, "-")
		if !found {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		return err1 == nil && err2 == nil && first <= slot && slot <= last
	})
}

// members returns the cluster from the view of one node. A paused node is an error.
func (c *Cluster) members(ctx context.Context, node *Redis) ([]member, error) {
	if node.isPaused() {
		return nil, fmt.Errorf("node %s is paused", node.Address())
	}
	text, err := c.text(ctx, node, "CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var all []member
	for line := range strings.Lines(text) {
		m, err := parseMember(line)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// owners returns the owners of slots from the view of one node, once the node accepts commands and
// knows all others.
func (c *Cluster) owners(ctx context.Context, node *Redis) (string, error) {
	text, err := c.text(ctx, node, "CLUSTER", "INFO")
	if err != nil {
		return "", err
	}
	if state := fields(text); state["cluster_state"] != "ok" || state["cluster_known_nodes"] != strconv.Itoa(len(c.Nodes)) {
		return "", fmt.Errorf("node %s: its state is %s, it knows %s nodes",
			node.Address(), state["cluster_state"], state["cluster_known_nodes"])
	}
	all, err := c.members(ctx, node)
	if err != nil {
		return "", err
	}
	var lines []string
	for _, m := range all {
		i := slices.Index(c.ids, m.id)
		if i < 0 {
			return "", fmt.Errorf("node %s: still shaking hands with another", node.Address())
		}
		if running := c.Nodes[i].Running(); running && (m.failed || m.unlinked && !m.myself) {
			return "", fmt.Errorf("node %s: not connected to %s", node.Address(), c.Nodes[i].Address())
		}
		if len(m.slots) > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s\n", c.Nodes[i].Address(), strings.Join(m.slots, " ")))
		}
		if !m.myself || m.primary {
			continue
		}
		if state, err := node.Info(ctx, "replication"); err != nil || state["master_link_status"] != "up" {
			return "", fmt.Errorf("node %s: a replica without its copy: %w", node.Address(), err)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

// PrimaryOf returns the node that claims the slot, and of several the node with the highest epoch.
// During a failover there may be no such node: an error.
func (c *Cluster) PrimaryOf(ctx context.Context, slot int) (*Redis, error) {
	var found *Redis
	epoch := int64(-1)
	last := errors.New("no node claims it")
	for _, node := range c.Nodes {
		if !node.Running() {
			continue
		}
		all, err := c.members(ctx, node)
		if err != nil {
			last = err
		}
		for _, m := range all {
			if m.myself && m.primary && m.has(slot) && m.epoch > epoch {
				found, epoch = node, m.epoch
			}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no primary for slot %d: %w", slot, last)
	}
	return found, nil
}

// Slot returns the slot of a key.
func (c *Cluster) Slot(ctx context.Context, key string) (int, error) {
	var last error
	for _, node := range c.Nodes {
		message, err := node.Do(ctx, "CLUSTER", "KEYSLOT", key)
		if err == nil {
			slot, err := message.AsInt64()
			return int(slot), err
		}
		last = err
	}
	return 0, last
}

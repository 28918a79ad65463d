package parts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// slotCount is the number of slots of a cluster.
const slotCount = 16384

// A Cluster is a Redis Cluster of three primaries, with a third of the slots each, and a replica for each. After a second of silence, or
// RedisOptions.NodeTimeout, a replica replaces its primary, see DisableFailover. Make one with StartCluster, and end it with Kill.
type Cluster struct {
	Nodes []*Redis // at the start the first three are primaries, and node i+3 is the replica of node i; a failover changes that
	ids   []string // of Nodes; a restart keeps them
}

// StartCluster starts six nodes with the options, but without Port, ReplicaOf and Cluster. StartCluster waits until the cluster is whole,
// see AwaitWhole, which takes some seconds: a new node refuses commands for a while.
func StartCluster(ctx context.Context, binary, dir string, options RedisOptions) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(ctx, binary, dir, options); err != nil {
		c.Kill()
		return nil, fmt.Errorf("starting a cluster: %w", err)
	}
	return c, nil
}

// start starts all nodes. After an error some nodes may run.
func (c *Cluster) start(ctx context.Context, binary, dir string, options RedisOptions) error {
	options.Port, options.ReplicaOf, options.Cluster = 0, "", true
	options.Config = append([]string{
		"cluster-node-timeout 1000",
		"cluster-replica-validity-factor 0", // a replica with an old copy takes over, too
		"cluster-migration-barrier 100",     // a replica never changes its primary
	}, options.Config...)
	const primaries, replicas = 3, 3
	for range primaries + replicas {
		r, err := StartRedis(ctx, binary, dir, options)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, r)
		id, err := c.text(ctx, r, "CLUSTER", "MYID")
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
	}
	// A node forgets another node for good when their first exchange takes longer than the timeout, which a busy machine can cause.
	if err := c.setNodeTimeout(ctx, time.Minute); err != nil {
		return err
	}
	for i, node := range c.Nodes {
		// With different epochs the nodes never disagree about the owner of a slot.
		if _, err := node.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i < primaries {
			if _, err := node.Do(ctx, addSlots(i*slotCount/primaries, (i+1)*slotCount/primaries)...); err != nil {
				return err
			}
		}
		for _, other := range c.Nodes[:i] {
			if _, err := node.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.Port())); err != nil {
				return err
			}
		}
	}
	for _, node := range c.Nodes {
		err := poll(ctx, "a node to know all others", func() error {
			text, err := c.text(ctx, node, "CLUSTER", "NODES")
			if err == nil && (strings.Count(text, "\n") != len(c.Nodes) || strings.Contains(text, "handshake")) {
				err = errors.New(text)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := c.setNodeTimeout(ctx, time.Second); err != nil {
		return err
	}
	for i, replica := range c.Nodes[primaries:] {
		err := poll(ctx, "a replica to know its primary", func() error {
			_, err := replica.Do(ctx, "CLUSTER", "REPLICATE", c.ids[i])
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := c.AwaitWhole(ctx); err != nil || options.NodeTimeout == 0 {
		return err
	}
	return c.setNodeTimeout(ctx, options.NodeTimeout)
}

// addSlots returns the command that gives a node the slots from first to end-1. Redis 6.2 has no command for a range.
func addSlots(first, end int) []string {
	args := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot < end; slot++ {
		args = append(args, strconv.Itoa(slot))
	}
	return args
}

// text is Do, with the answer as a text.
func (c *Cluster) text(ctx context.Context, node *Redis, args ...string) (string, error) {
	message, err := node.Do(ctx, args...)
	if err != nil {
		return "", err
	}
	return message.ToString()
}

// Addresses returns the addresses of all nodes.
func (c *Cluster) Addresses() []string { return addresses(c.Nodes) }

// DisableFailover makes all nodes wait a minute for a silent node. On a busy machine a node may be silent for a second, and the cluster
// refuses commands during a failover.
func (c *Cluster) DisableFailover(ctx context.Context) error {
	if err := c.setNodeTimeout(ctx, time.Minute); err != nil {
		return err
	}
	return c.AwaitWhole(ctx)
}

// setNodeTimeout sets the time that all nodes wait for a silent node, until their restart.
func (c *Cluster) setNodeTimeout(ctx context.Context, timeout time.Duration) error {
	for _, node := range c.Nodes {
		if _, err := node.Do(ctx, "CONFIG", "SET", "cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10)); err != nil {
			return err
		}
	}
	return nil
}

// Kill ends all nodes.
func (c *Cluster) Kill() {
	for _, node := range c.Nodes {
		node.Kill()
	}
}

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

// AwaitWhole waits until all running nodes agree on the owners of all slots, accept commands, and have the data of their primaries.
// Nodes that do not run do not count.
func (c *Cluster) AwaitWhole(ctx context.Context) error {
	return poll(ctx, "a whole cluster", func() error {
		agreed := ""
		for _, node := range c.Nodes {
			if !node.Running() {
				continue
			}
			owners, err := c.owners(ctx, node)
			if err != nil {
				return err
			}
			if agreed == "" {
				agreed = owners
			}
			if owners != agreed {
				return fmt.Errorf("node %s disagrees with others about the owners of slots:\n%snot\n%s", node.Address(), owners, agreed)
			}
		}
		return nil
	})
}

// owners returns the owners of slots from the view of one node, once the node accepts commands and knows all others.
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

// PrimaryOf returns the node that claims the slot, and of several the node with the highest epoch. During a failover there may be no
// such node: an error.
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

// FailOver kills the primary of a slot, waits until all nodes know its replica as the primary, and returns the new primary. Restart
// brings the old primary back as a replica.
func (c *Cluster) FailOver(ctx context.Context, slot int) (*Redis, error) {
	old, err := c.PrimaryOf(ctx, slot)
	if err != nil {
		return nil, err
	}
	old.Kill()
	return c.AwaitNewPrimary(ctx, slot, old)
}

// AwaitNewPrimary waits until another node than old is the primary of a slot, and until the cluster is whole. AwaitNewPrimary returns
// the new primary.
func (c *Cluster) AwaitNewPrimary(ctx context.Context, slot int, old *Redis) (*Redis, error) {
	var primary *Redis
	err := poll(ctx, fmt.Sprintf("a new primary of slot %d", slot), func() error {
		var err error
		if primary, err = c.PrimaryOf(ctx, slot); err == nil && primary == old {
			err = errors.New("still the old one")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return primary, c.AwaitWhole(ctx)
}

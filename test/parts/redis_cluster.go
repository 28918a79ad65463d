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

// slotCount is how many slots a cluster has.
const slotCount = 16384

// A Cluster is a Redis Cluster of three primaries, with a third of the slots each, and a replica for each. A primary that has been
// silent for a second is replaced by its replica. Make one with StartCluster; whoever does ends it, with Kill.
type Cluster struct {
	Nodes []*Redis // who is a primary changes; at the start the first three are, and the one with an index 3 higher is its replica
	ids   []string // of Nodes, for ever
}

// StartCluster starts six nodes, each like options (Port, ReplicaOf and Cluster are not looked at), and waits until they are a whole
// cluster, see AwaitWhole. It takes some seconds: a node refuses to serve sooner.
func StartCluster(ctx context.Context, binary, dir string, options RedisOptions) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(ctx, binary, dir, options); err != nil {
		c.Kill()
		return nil, fmt.Errorf("starting a cluster: %w", err)
	}
	return c, nil
}

// start starts all nodes; after an error some run.
func (c *Cluster) start(ctx context.Context, binary, dir string, options RedisOptions) error {
	options.Port, options.ReplicaOf, options.Cluster = 0, "", true
	options.Config = append([]string{
		"cluster-node-timeout 1000",
		"cluster-replica-validity-factor 0", // a replica takes over however old its copy is
		"cluster-migration-barrier 100",     // and belongs to its primary for ever
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
	for i, node := range c.Nodes {
		// Different epochs, so that nobody has to sort out who is right about a slot.
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
	for i, replica := range c.Nodes[primaries:] {
		err := poll(ctx, "a replica to know its primary", func() error {
			_, err := replica.Do(ctx, "CLUSTER", "REPLICATE", c.ids[i])
			return err
		})
		if err != nil {
			return err
		}
	}
	return c.AwaitWhole(ctx)
}

// addSlots is the command that gives a node the slots from first up to, but not with, end. 6.2 knows none that takes a range.
func addSlots(first, end int) []string {
	args := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot < end; slot++ {
		args = append(args, strconv.Itoa(slot))
	}
	return args
}

// text is Do for an answer that is text.
func (c *Cluster) text(ctx context.Context, node *Redis, args ...string) (string, error) {
	message, err := node.Do(ctx, args...)
	if err != nil {
		return "", err
	}
	return message.ToString()
}

// Addresses are those of all nodes.
func (c *Cluster) Addresses() []string { return addresses(c.Nodes) }

// Kill ends all nodes that run.
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

// has reports whether the slot is its own.
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

// members is the cluster as one node sees it. A node that is paused is an error soon.
func (c *Cluster) members(ctx context.Context, node *Redis) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
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

// AwaitWhole waits until all nodes that run agree on who has which slots, serve all of them, and have, if they are replicas, their
// primary's data. It does not wait for nodes that do not run.
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
				return fmt.Errorf("node %s does not see who has the slots as others do:\n%snot\n%s", node.Address(), owners, agreed)
			}
		}
		return nil
	})
}

// owners is who has which slots as one node sees it, once it serves and knows all others.
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

// PrimaryOf returns the node that says that the slot is its own, the one with the newest knowledge if several do. It is an error when
// none does, as during a failover.
func (c *Cluster) PrimaryOf(ctx context.Context, slot int) (*Redis, error) {
	var found *Redis
	epoch := int64(-1)
	last := errors.New("nobody says so")
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

// Slot returns the slot that a key lies in.
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

// FailOver kills the primary of a slot, waits until its replica has taken over for all nodes, and returns that. Restart brings the old
// one back as a replica.
func (c *Cluster) FailOver(ctx context.Context, slot int) (*Redis, error) {
	old, err := c.PrimaryOf(ctx, slot)
	if err != nil {
		return nil, err
	}
	old.Kill()
	return c.AwaitNewPrimary(ctx, slot, old)
}

// AwaitNewPrimary waits until another node than old is the primary of a slot and the cluster is whole again, and returns it.
func (c *Cluster) AwaitNewPrimary(ctx context.Context, slot int, old *Redis) (*Redis, error) {
	var primary *Redis
	err := poll(ctx, fmt.Sprintf("a new primary of slot %d", slot), func() error {
		var err error
		if primary, err = c.PrimaryOf(ctx, slot); err == nil && primary == old {
			err = errors.New("it is the old one")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return primary, c.AwaitWhole(ctx)
}

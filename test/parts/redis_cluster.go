package parts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Cluster is a Redis Cluster of three primaries, with a third of the slots each, and a replica
// for each. After a second of silence, or RedisOptions.NodeTimeout, a replica replaces its primary,
// see DisableFailover. Make one with StartCluster, and end it with Kill.
type Cluster struct {
	Nodes []*Redis // at the start the first three are primaries, and node i+3 is the replica of node i; a failover changes that
	ids   []string // of Nodes; a restart keeps them
}

// StartCluster starts six nodes with the options, but without Port, ReplicaOf and Cluster.
// StartCluster waits until the cluster is whole, see AwaitWhole, which takes some seconds: a new
// node refuses commands for a while.
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
	// A node forgets another node for good when their first exchange takes longer than the timeout,
	// which a busy machine can cause.
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

// addSlots returns the command that gives a node the slots from first to end-1. Redis 6.2 has no
// command for a range.
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

// DisableFailover makes all nodes wait a minute for a silent node. On a busy machine a node may be
// silent for a second, and the cluster refuses commands during a failover.
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

// AwaitWhole waits until all running nodes agree on the owners of all slots, accept commands, and
// have the data of their primaries. Nodes that do not run do not count.
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

// FailOver kills the primary of a slot, waits until all nodes know its replica as the primary, and
// returns the new primary. Restart brings the old primary back as a replica.
func (c *Cluster) FailOver(ctx context.Context, slot int) (*Redis, error) {
	old, err := c.PrimaryOf(ctx, slot)
	if err != nil {
		return nil, err
	}
	old.Kill()
	return c.AwaitNewPrimary(ctx, slot, old)
}

// AwaitNewPrimary waits until another node than old is the primary of a slot, and until the cluster
// is whole. AwaitNewPrimary returns the new primary.
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

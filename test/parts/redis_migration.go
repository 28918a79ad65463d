package parts

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// A Migration moves a slot from one primary to another. Meanwhile From serves the keys that have
// not moved, and redirects other requests to To (ASK). A request for keys on both nodes fails with
// TRYAGAIN. Make one with BeginMigration, and end it with Finish.
type Migration struct {
	From, To *Redis
	Slot     int
	cluster  *Cluster
}

// BeginMigration declares the move of a slot to another primary. No key has moved yet.
func (c *Cluster) BeginMigration(ctx context.Context, slot int, to *Redis) (*Migration, error) {
	from, err := c.PrimaryOf(ctx, slot)
	if err != nil {
		return nil, err
	}
	if from == to {
		return nil, fmt.Errorf("slot %d is at %s already", slot, to.Address())
	}
	m := &Migration{From: from, To: to, Slot: slot, cluster: c}
	// To comes first, and is ready before From redirects a client.
	if err := m.setSlot(ctx, to, "IMPORTING", from); err != nil {
		return nil, err
	}
	return m, m.setSlot(ctx, from, "MIGRATING", to)
}

// setSlot sets the state of the slot on a node. other is the other node of the move, or the new
// owner.
func (m *Migration) setSlot(ctx context.Context, node *Redis, state string, other *Redis) error {
	id := m.cluster.ids[slices.Index(m.cluster.Nodes, other)]
	_, err := node.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(m.Slot), state, id)
	return err
}

// Move moves up to maxKeys keys, with their values and expiry, and returns the number of keys. 0
// means that all keys have moved.
func (m *Migration) Move(ctx context.Context, maxKeys int) (int, error) {
	message, err := m.From.Do(ctx, "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(m.Slot), strconv.Itoa(maxKeys))
	if err != nil {
		return 0, err
	}
	keys, err := message.AsStrSlice()
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	args := []string{"MIGRATE", "127.0.0.1", strconv.Itoa(m.To.Port()), "", "0", "5000"}
	switch o := m.To.options; {
	case o.Username != "":
		args = append(args, "AUTH2", o.Username, o.Password)
	case o.Password != "":
		args = append(args, "AUTH", o.Password)
	}
	_, err = m.From.Do(ctx, slices.Concat(args, []string{"KEYS"}, keys)...)
	return len(keys), err
}

// Finish moves the remaining keys, declares To the owner of the slot, and waits until all nodes
// know.
func (m *Migration) Finish(ctx context.Context) error {
	for {
		moved, err := m.Move(ctx, 100)
		if err != nil {
			return err
		}
		if moved == 0 {
			break
		}
	}
	// To comes first: To must not redirect clients back to From.
	for _, node := range []*Redis{m.To, m.From} {
		if err := m.setSlot(ctx, node, "NODE", m.To); err != nil {
			return err
		}
	}
	return m.cluster.AwaitWhole(ctx)
}

// MigrateSlot moves a slot with all its keys to another primary, and waits until all nodes know.
func (c *Cluster) MigrateSlot(ctx context.Context, slot int, to *Redis) error {
	m, err := c.BeginMigration(ctx, slot, to)
	if err != nil {
		return err
	}
	return m.Finish(ctx)
}

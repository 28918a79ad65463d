package parts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/rueidis"
)

// startCluster starts a cluster that the test's end kills.
func startCluster(t *testing.T, options RedisOptions) *Cluster {
	t.Helper()
	binary := NeedRedis(t, "../..")
	c, err := StartCluster(soon(t), binary, t.TempDir(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		if t.Failed() {
			for _, r := range c.Nodes {
				t.Logf("%s's last lines:\n%s", r.Address(), r.Tail(30))
			}
		}
	})
	return c
}

// slotOf is the slot of a key.
func slotOf(t *testing.T, c *Cluster, key string) int {
	t.Helper()
	slot, err := c.Slot(soon(t), key)
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// primaryOf is the primary of a slot.
func primaryOf(t *testing.T, c *Cluster, slot int) *Redis {
	t.Helper()
	r, err := c.PrimaryOf(soon(t), slot)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// refused sends a command and returns the first word of the error that it must be.
func refused(t *testing.T, r *Redis, args ...string) string {
	t.Helper()
	_, err := r.Do(soon(t), args...)
	answer := new(rueidis.RedisError)
	if !errors.As(err, &answer) {
		t.Fatalf("%s: got %v, want an error of Redis", strings.Join(args, " "), err)
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

func TestAClusterMovesASlotWithItsKeys(t *testing.T) {
	t.Parallel()
	c := startCluster(t, RedisOptions{Password: "secret"})
	slot := slotOf(t, c, "{tag}")
	from := primaryOf(t, c, slot)
	to := c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	const keys = 250
	for i := range keys {
		do(t, from, "SET", fmt.Sprintf("{tag}%d", i), strconv.Itoa(i))
	}

	m, err := c.BeginMigration(soon(t), slot, to)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := m.Move(soon(t), 100)
	if err != nil || moved != 100 {
		t.Fatalf("moved %d, %v; want 100", moved, err)
	}
	// Half way: some keys are here, some there, new ones only there.
	if got := []string{
		do(t, from, "CLUSTER", "COUNTKEYSINSLOT", strconv.Itoa(slot)), do(t, to, "CLUSTER", "COUNTKEYSINSLOT", strconv.Itoa(slot)),
		refused(t, from, "GET", "{tag}new"), refused(t, to, "GET", "{tag}new"),
	}; !cmp.Equal(got, []string{"150", "100", "ASK", "MOVED"}) {
		t.Errorf("half way: got %q", got)
	}

	if err := m.Finish(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := primaryOf(t, c, slot); got != to {
		t.Errorf("the primary after the move: got %s, want %s", got.Address(), to.Address())
	}
	for i := range keys {
		if got := do(t, to, "GET", fmt.Sprintf("{tag}%d", i)); got != strconv.Itoa(i) {
			t.Errorf("key %d after the move: got %q", i, got)
		}
	}
	if got := refused(t, from, "GET", "{tag}0"); got != "MOVED" {
		t.Errorf("the old primary: got %s, want MOVED", got)
	}
	if err := c.MigrateSlot(soon(t), slot, from); err != nil {
		t.Fatal(err)
	}
	if got := do(t, from, "GET", "{tag}249"); got != "249" {
		t.Errorf("moved back: got %q, want 249", got)
	}
}

func TestAClustersReplicaTakesOverWhenItsPrimaryIsKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, RedisOptions{})
	slot := slotOf(t, c, "key")
	old := primaryOf(t, c, slot)
	do(t, old, "SET", "key", "value")
	do(t, old, "WAIT", "1", "5000")
	promoted, err := c.FailOver(soon(t), slot)
	if err != nil {
		t.Fatal(err)
	}
	if got := do(t, promoted, "GET", "key"); got != "value" {
		t.Errorf("after the failover: got %q, want the value", got)
	}
	if err := old.Restart(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitWhole(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := primaryOf(t, c, slot); got != promoted {
		t.Errorf("after the old one came back: got %s, want %s", got.Address(), promoted.Address())
	}
}

func TestAClusterSpeaksTLS(t *testing.T) {
	t.Parallel()
	certificates, err := NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, RedisOptions{TLS: certificates, Username: "admin", Password: "secret"})
	slot := slotOf(t, c, "key")
	from := primaryOf(t, c, slot)
	do(t, from, "SET", "key", "value")
	to := c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	if err := c.MigrateSlot(soon(t), slot, to); err != nil {
		t.Fatal(err)
	}
	if got := do(t, to, "GET", "key"); got != "value" {
		t.Errorf("after the move: got %q, want the value", got)
	}
}

package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// primaryName is the name of the primary that a Sentinel watches.
const primaryName = "primary"

// A sentinel watches a primary and its only replica.
type sentinel struct {
	server  *redis
	replica *redis
}

// startSentinel starts a primary with a replica that has copied it, and a Sentinel that watches
// both and decides alone.
func startSentinel(program string) (*redis, error) {
	primary, err := startRedis(program, "")
	if err != nil {
		return nil, err
	}
	primary.sentinel = &sentinel{server: new(redis), replica: new(redis)}
	if err := primary.watch(); err != nil {
		primary.end()
		return nil, err
	}
	return primary, nil
}

func (r *redis) watch() error {
	replica, err := startRedis(r.program, fmt.Sprintf("--replicaof 127.0.0.1 %d --repl-diskless-sync-delay 0", r.port))
	if err != nil {
		return err
	}
	r.sentinel.replica = replica
	if err := replica.await("INFO replication", "master_link_status:up"); err != nil {
		return err
	}
	settings := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 1\nsentinel down-after-milliseconds %[1]s 1000\nsentinel failover-timeout %[1]s 3000\n",
		primaryName, r.port)
	file := filepath.Join(r.directory, "sentinel.conf")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return err
	}
	if r.sentinel.server, err = startRedis(r.program, fmt.Sprintf("%q --sentinel", file)); err != nil {
		return err
	}
	return r.sentinel.server.await("SENTINEL REPLICAS "+primaryName, replica.address())
}

// failOver ends the primary, if it runs, and waits until the Sentinel names the replica. The
// replica has all writes that the primary had answered.
func (r *redis) failOver() error {
	if r.sentinel == nil {
		return errors.New("the runner has no Sentinel")
	}
	if r.process.alive() {
		// WAIT is for the writes of its connection, so there must be one.
		if err := r.await("SET rls-conformance 1\r\nWAIT 1 1000", ":1"); err != nil {
			return err
		}
		r.process.kill()
	}
	name := fmt.Sprintf("$%d\r\n%[2]d", len(fmt.Sprint(r.sentinel.replica.port)), r.sentinel.replica.port)
	if err := r.sentinel.server.await("SENTINEL GET-MASTER-ADDR-BY-NAME "+primaryName, name); err != nil {
		return err
	}
	return r.sentinel.replica.await("INFO replication", "role:master")
}

// await sends commands in their inline form, again and again, until the answers have that part, 20
// seconds at most.
func (r *redis) await(commands, part string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		answer, err := r.answer(ctx, commands, part)
		if strings.Contains(answer, part) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: the answer to %q has no %q, but is %q: %w", r.program, commands, part, answer, errors.Join(ctx.Err(), err))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// answer returns the answers of a tenth of a second, or up to that part.
func (r *redis) answer(ctx context.Context, commands, part string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", r.address())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "%s\r\n", commands); err != nil {
		return "", err
	}
	var text []byte
	for buffer := make([]byte, 4096); err == nil && !bytes.Contains(text, []byte(part)); {
		var n int
		n, err = conn.Read(buffer)
		text = append(text, buffer[:n]...)
	}
	return string(text), err
}

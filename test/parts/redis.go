package parts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoRedis says that there is no Redis or Valkey on this machine and that none could be fetched.
var ErrNoRedis = errors.New("no Redis")

// errPortTaken says that a port was free when it was chosen and is not any more.
var errPortTaken = errors.New("the port is taken")

// FindRedis returns the path of a redis-server, 6.2 or newer, as scripts/redis.sh of the repository at root finds it: $REDIS_SERVER,
// else redis-server or valkey-server on the PATH, else a copy that it fetches into .cache once. An error wraps ErrNoRedis and is one
// line that says what is missing.
func FindRedis(ctx context.Context, root string) (string, error) {
	_ = os.Getenv("REDIS_SERVER") // the script reads it; this tells `go test` that a result in its cache depends on it
	return find(ctx, root, "redis.sh", ErrNoRedis)
}

// A Redis is a redis-server (or valkey-server, or Sentinel) on 127.0.0.1 that answers, or did until it was stopped, paused or killed.
// It is safe for concurrent use, but for Restart beside Stop or Kill. Make one with StartRedis; whoever starts one ends it, with Stop
// or Kill.
type Redis struct {
	binary, dir string
	options     RedisOptions
	sentinel    bool
	port        int
	socket      string // "" means none

	mu      sync.Mutex // guards process
	process *Process
}

// StartRedis runs the redis-server at binary and waits until it answers. It keeps its files in dir, each with the port in its name, so
// that several can share one.
func StartRedis(ctx context.Context, binary, dir string, options RedisOptions) (*Redis, error) {
	return startRedis(ctx, &Redis{binary: binary, dir: dir, options: options}, (*Redis).config)
}

// startRedis starts r on a port of its own with what config says, and tries another port when somebody was faster to take one.
func startRedis(ctx context.Context, r *Redis, config func(*Redis) []string) (*Redis, error) {
	for {
		if r.port = r.options.Port; r.port == 0 {
			port, err := freePort()
			if err != nil {
				return nil, fmt.Errorf("starting redis: %w", err)
			}
			r.port = port
		}
		r.socket = filepath.Join(r.dir, fmt.Sprintf("redis-%d.sock", r.port))
		if len(r.socket) > maxSocketPath {
			r.socket = ""
		}
		text := strings.Join(append(config(r), r.options.Config...), "\n") + "\n"
		if err := os.WriteFile(r.configPath(), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("starting redis: %w", err)
		}
		err := r.start(ctx)
		if err == nil {
			return r, nil
		}
		if !errors.Is(err, errPortTaken) || r.options.Port != 0 || ctx.Err() != nil {
			return nil, err
		}
	}
}

// maxSocketPath is how long the path of a Unix socket may be everywhere; Redis silently cuts what is longer than its system allows.
const maxSocketPath = 100

// Ports lie below those that Linux gives to outgoing connections (32768 and above), so that none of these takes the port of a Redis
// that is about to come back. A cluster node has a second port, its bus, busOffset above the first.
const (
	firstPort = 12000
	ports     = 10000
	busOffset = 10000
)

// freePort returns a port that is free, and so is the one busOffset above it, at this moment.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := firstPort + rand.N(ports)
		if err = probe(port); err == nil {
			if err = probe(port + busOffset); err == nil {
				return port, nil
			}
		}
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", firstPort, firstPort+ports-1, err)
}

// probe returns why nobody can listen on a port.
func probe(port int) error {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return listener.Close()
}

// loopback is host:port of a port of this machine.
func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// configPath is the file that the server reads, and Sentinel also writes.
func (r *Redis) configPath() string {
	return filepath.Join(r.dir, fmt.Sprintf("redis-%d.conf", r.port))
}

// start runs the server with the config file as it is and waits until it answers.
func (r *Redis) start(ctx context.Context) error {
	args := []string{r.configPath()}
	name, listens := "redis "+r.Address(), "Ready to accept connections"
	if r.sentinel {
		args = append(args, "--sentinel")
		name, listens = "sentinel "+r.Address(), "Sentinel ID is"
	}
	process, err := Start(name, r.binary, args...)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.process = process
	r.mu.Unlock()
	_, _, err = process.Await(ctx, 0, func(line string) bool { return strings.Contains(line, listens) })
	if err == nil {
		_, err = r.Do(ctx, "PING")
	}
	if err != nil {
		process.Kill()
		if strings.Contains(process.Tail(20), "Address already in use") {
			err = fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return err
	}
	return nil
}

// Address is its host:port, the same after a Restart.
func (r *Redis) Address() string { return loopback(r.port) }

// Port is the port in Address.
func (r *Redis) Port() int { return r.port }

// Socket is the path of its Unix socket, "" when the path of its folder is too long to have one.
func (r *Redis) Socket() string { return r.socket }

// Process is the running program, or the last one; Restart makes another.
func (r *Redis) Process() *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// Tail returns the last n lines of its log.
func (r *Redis) Tail(n int) string { return r.Process().Tail(n) }

// Running reports whether the program has not ended. A paused one is running.
func (r *Redis) Running() bool {
	select {
	case <-r.Process().Exited():
		return false
	default:
		return true
	}
}

// Stop asks it to end and waits until it has; see Process.Stop.
func (r *Redis) Stop(ctx context.Context) error {
	if err := r.Continue(); err != nil {
		return err
	}
	return r.Process().Stop(ctx)
}

// Kill ends it with SIGKILL and waits until it is gone: its clients get a reset. It can be ended already.
func (r *Redis) Kill() { r.Process().Kill() }

// Restart kills it, if it still runs, and starts it again on the same port: empty, unless Config says otherwise. A node of a cluster
// remembers the cluster, and what CONFIG REWRITE wrote counts.
func (r *Redis) Restart(ctx context.Context) error {
	r.Kill()
	return r.start(ctx)
}

// Pause stops it with SIGSTOP and waits until it stands still: connections stay open and new ones are taken, but nobody answers.
func (r *Redis) Pause(ctx context.Context) error {
	process := r.Process()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	stat := fmt.Sprintf("/proc/%d/stat", process.cmd.Process.Pid)
	return poll(ctx, "redis to stand still", func() error {
		text, err := os.ReadFile(stat)
		if err != nil {
			return nil // no such file where this is not Linux: the signal has to do
		}
		// pid (name) state …
		if _, rest, _ := strings.Cut(string(text), ") "); !strings.HasPrefix(rest, "T") {
			return errors.New("it runs")
		}
		return nil
	})
}

// Continue lets it go on after Pause.
func (r *Redis) Continue() error { return r.Process().Signal(syscall.SIGCONT) }

// poll calls done every few milliseconds until it returns nil. When ctx is done before that, the error says what was waited for and
// what done said last.
func poll(ctx context.Context, what string, done func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; %w", what, context.Cause(ctx), err)
		}
	}
}

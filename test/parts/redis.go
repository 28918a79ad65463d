package parts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoRedis says that this machine has no Redis or Valkey, and that the download failed.
var ErrNoRedis = errors.New("no Redis")

// errPortTaken says that another process has taken the chosen port.
var errPortTaken = errors.New("the port is taken")

// FindRedis returns the path of a redis-server, 6.2 or newer, from scripts/redis.sh of the
// repository at root. The script takes $REDIS_SERVER, else redis-server or valkey-server on the
// PATH, else downloads a copy into .cache. An error wraps ErrNoRedis, and names the missing part in
// one line.
func FindRedis(ctx context.Context, root string) (string, error) {
	_ = os.Getenv("REDIS_SERVER") // for the script; tells `go test` that a cached result depends on the variable
	return find(ctx, root, "redis.sh", ErrNoRedis)
}

// A Redis is a redis-server (or valkey-server, or Sentinel) on 127.0.0.1. Make one with StartRedis,
// and end it with Stop or Kill. All methods are safe for concurrent use, but not Restart beside
// Stop or Kill.
type Redis struct {
	binary, dir string
	options     RedisOptions
	sentinel    bool
	port        int
	socket      string // "": no socket

	mu      sync.Mutex // guards the fields below
	process *Process
	paused  bool // since Pause
}

// StartRedis runs the redis-server at binary, and waits until the server answers. The files in dir
// have the port in their names, so that several servers can share dir.
func StartRedis(ctx context.Context, binary, dir string, options RedisOptions) (*Redis, error) {
	return startRedis(ctx, &Redis{binary: binary, dir: dir, options: options}, (*Redis).config)
}

// startRedis starts r with config on a free port, and tries another port when another process has
// taken the port.
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

// maxSocketPath is the longest path of a Unix socket on all systems. Redis silently shortens a
// longer path.
const maxSocketPath = 100

// loopback returns host:port of a port on 127.0.0.1.
func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// configPath returns the path of the config file. A Sentinel writes the file, too.
func (r *Redis) configPath() string {
	return filepath.Join(r.dir, fmt.Sprintf("redis-%d.conf", r.port))
}

// start runs the server with the present config file, and waits until the server answers.
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
	r.process, r.paused = process, false
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

// Address returns host:port, which a Restart keeps.
func (r *Redis) Address() string { return loopback(r.port) }

// Port returns the port in Address.
func (r *Redis) Port() int { return r.port }

// Socket returns the path of the Unix socket, or "" when the path of the folder is too long for a
// socket.
func (r *Redis) Socket() string { return r.socket }

// Process returns the running process, or the last one. Restart makes another.
func (r *Redis) Process() *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// Tail returns the last n lines of the log.
func (r *Redis) Tail(n int) string { return r.Process().Tail(n) }

// Running reports whether the process has not ended. A paused process is running.
func (r *Redis) Running() bool {
	select {
	case <-r.Process().Exited():
		return false
	default:
		return true
	}
}

// Stop asks the process to end, and waits for the end; see Process.Stop.
func (r *Redis) Stop(ctx context.Context) error {
	if err := r.Continue(); err != nil {
		return err
	}
	return r.Process().Stop(ctx)
}

// Kill ends the process with SIGKILL, and waits for the end. Clients get a reset. A second Kill
// does nothing.
func (r *Redis) Kill() { r.Process().Kill() }

// Restart kills the process, if the process runs, and starts another on the same port. Without
// persistence in Config the new server is empty. A node of a cluster keeps its view of the cluster,
// and changes by CONFIG REWRITE stay.
func (r *Redis) Restart(ctx context.Context) error {
	r.Kill()
	return r.start(ctx)
}

// Pause stops the process with SIGSTOP, and waits for the stop. Connections stay open and the
// kernel accepts new ones, without answers.
func (r *Redis) Pause(ctx context.Context) error {
	process := r.Process()
	r.setPaused(true)
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	stat := fmt.Sprintf("/proc/%d/stat", process.cmd.Process.Pid)
	return poll(ctx, "redis to stop", func() error {
		text, err := os.ReadFile(stat)
		if err != nil {
			return nil // only Linux has the file
		}
		// pid (name) state …
		if _, rest, _ := strings.Cut(string(text), ") "); !strings.HasPrefix(rest, "T") {
			return errors.New("the process runs")
		}
		return nil
	})
}

// Continue resumes the process after Pause.
func (r *Redis) Continue() error {
	r.setPaused(false)
	return r.Process().Signal(syscall.SIGCONT)
}

func (r *Redis) setPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// isPaused reports whether Pause was called, and not Continue since.
func (r *Redis) isPaused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// poll calls done every 10 ms until done returns nil. When ctx ends first, the error has the
// description, the cause of the end and the last error of done.
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

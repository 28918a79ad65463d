package runner

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// A redis is a server that the runner started for a target.
type redis struct {
	program   string
	port      int
	directory string
	process   *process
	sentinel  *sentinel // nil: there is no failover
}

// startRedis starts an empty redis-server on a free port, with more options of its command line.
func startRedis(program, options string) (*redis, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	r := &redis{program: program, port: port}
	if r.directory, err = os.MkdirTemp("", "rls-conformance-redis-"); err != nil {
		return nil, err
	}
	if err := r.run(options); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

func (r *redis) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

func (r *redis) run(options string) error {
	p, err := start(fmt.Sprintf("%q %s --port %d --bind 127.0.0.1 --save '' --appendonly no --dir %q", r.program, options, r.port, r.directory), nil)
	if err != nil {
		return err
	}
	r.process = p
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var dialer net.Dialer
	for {
		if c, err := dialer.DialContext(ctx, "tcp", r.address()); err == nil {
			return c.Close()
		}
		if !p.alive() || ctx.Err() != nil {
			return fmt.Errorf("%s did not start:\n%s", r.program, p.output.lastLines(5))
		}
		<-time.After(10 * time.Millisecond)
	}
}

// act does the action of a step.
func (r *redis) act(action string) error {
	switch action {
	case "pause":
		return r.process.signal(syscall.SIGSTOP)
	case "resume":
		return r.process.signal(syscall.SIGCONT)
	case "kill":
		r.process.kill()
		return nil
	case "start":
		return r.run("")
	case "failover":
		return r.failOver()
	default:
		return fmt.Errorf("redis %q is not known", action)
	}
}

func (r *redis) end() {
	if r.sentinel != nil {
		r.sentinel.replica.end()
		r.sentinel.server.end()
	}
	if r.process != nil {
		r.process.kill()
	}
	_ = os.RemoveAll(r.directory)
}

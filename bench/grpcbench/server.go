package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// server is a process that serves gRPC.
type server struct {
	*parts.Process
	grpc, http string // host:port; the bare server has no HTTP
}

// bench is the servers of a run.
type bench struct {
	o       options
	dir     string
	servers []*server
	redis   *parts.Redis // nil: none
}

// end stops all servers.
func (b *bench) end() {
	for _, s := range b.servers {
		s.Kill()
	}
	if b.redis != nil {
		b.redis.Kill()
	}
}

// start builds and starts the servers and prepares their requests. The caller must end the servers, also after an error.
func (b *bench) start(ctx context.Context) ([]contender, error) {
	if err := b.write("rules.yaml", []byte(ruleFile)); err != nil {
		return nil, err
	}
	var err error
	if b.o.sidecar, err = program.Sidecar(ctx, b.o.sidecar); err != nil {
		return nil, err
	}
	// Servers have the environment of this process.
	if err := os.Unsetenv("GOGC"); err != nil {
		return nil, err
	}
	process, err := program.StartBare(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	bare := &server{process.Process, process.GRPC, ""}
	b.servers = append(b.servers, bare)
	if b.o.gogc != "" {
		if err := os.Setenv("GOGC", b.o.gogc); err != nil {
			return nil, err
		}
	}
	weir, err := b.sidecar(ctx)
	if err != nil {
		return nil, err
	}
	all := []contender{{name: "bare grpc-go", server: bare, path: "/search", want: codeOK}}
	denied := contender{name: "weir, over limit", server: weir, path: "/login", want: codeOverLimit}
	if !b.o.redis {
		library, err := b.sidecar(ctx, "--grpc-server=grpc")
		if err != nil {
			return nil, err
		}
		all = append(all, contender{name: "weir, allowed", server: weir, path: "/search", want: codeOK}, denied,
			contender{name: "with grpc-go", server: library, path: "/search", want: codeOK})
	} else {
		shared, pid, err := b.sharing(ctx)
		if err != nil {
			return nil, err
		}
		denied.name = "over, in memory"
		all = append(all,
			contender{name: "fixed_window", server: shared, redis: pid, path: "/search", want: codeOK},
			contender{name: "token_bucket", server: shared, redis: pid, path: "/bucket", want: codeOK},
			contender{name: "over limit", server: shared, redis: pid, path: "/login", want: codeOverLimit},
			denied)
	}
	if b.o.load.keys > 1 {
		all = slices.DeleteFunc(all, func(c contender) bool { return c.want == codeOverLimit })
	}
	for i := range all {
		c := &all[i]
		c.body = filepath.Join(b.dir, filepath.Base(c.path))
		text, err := body(c.path)
		if err := errors.Join(err, b.write(filepath.Base(c.path), text)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (b *bench) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(b.dir, name), text, 0o600)
}

// sidecar starts a sidecar, with further arguments.
func (b *bench) sidecar(ctx context.Context, more ...string) (*server, error) {
	args := []string{
		"--rules=" + filepath.Join(b.dir, "rules.yaml"), "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=",
	}
	if b.o.rules != "" {
		args = append(args, "--rules="+b.o.rules)
	}
	process, err := parts.StartSidecar(ctx, b.o.sidecar, slices.Concat(args, more, b.o.more)...)
	if err != nil {
		return nil, err
	}
	s := &server{process.Process, process.GRPC, process.HTTP}
	b.servers = append(b.servers, s)
	return s, nil
}

// sharing starts Redis and a sidecar that keeps its counts there, and returns that and the process of Redis.
func (b *bench) sharing(ctx context.Context) (*server, int, error) {
	binary, err := program.Redis(ctx)
	if err != nil {
		return nil, 0, err
	}
	if b.redis, err = parts.StartRedis(ctx, binary, b.dir, parts.RedisOptions{}); err != nil {
		return nil, 0, err
	}
	info, err := b.redis.Info(ctx, "server")
	if err != nil {
		return nil, 0, err
	}
	pid, err := strconv.Atoi(info["process_id"])
	if err != nil {
		return nil, 0, fmt.Errorf("the process of Redis: %w", err)
	}
	s, err := b.sidecar(ctx, "--store=redis", "--redis-url=redis://"+b.redis.Address(), "--redis-timeout="+b.o.redisTimeout.String())
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return s, pid, drive.AwaitRedis(ctx, s.http)
}

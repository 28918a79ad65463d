package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// server is a process that serves gRPC.
type server struct {
	*parts.Process
	grpc   string // host:port; "" with a socket
	socket string // path of a Unix socket, or ""
	http   string // host:port; the bare server has no HTTP
	tls    bool
}

// bench is the servers of a run.
type bench struct {
	o        options
	dir      string
	h2load   string             // path; "": missing
	nghttpd  string             // the same
	servers  map[string]*server // by kind
	redis    *parts.Redis       // nil: none
	redisPID int                // 0: none
	certs    *parts.Certificates
	envoy    *parts.Envoy // nil: none
}

// end stops all servers.
func (b *bench) end() {
	if b.envoy != nil {
		b.envoy.Kill()
	}
	for _, s := range b.servers {
		s.Kill()
	}
	if b.redis != nil {
		b.redis.Kill()
	}
}

// start builds and starts the servers of the contenders that the options choose, and prepares their
// requests. The caller must end the servers, also after an error.
func (b *bench) start(ctx context.Context, stderr io.Writer) ([]contender, error) {
	var err error
	if b.o.sidecar, err = program.Sidecar(ctx, b.o.sidecar); err != nil {
		return nil, err
	}
	if b.o.network == "tls" {
		if b.certs, err = parts.NewCertificates(b.dir); err != nil {
			return nil, err
		}
	}
	// A sidecar watches the directory of its rules, so no other file may change there during a turn.
	if err := os.Mkdir(filepath.Join(b.dir, "rules"), 0o700); err != nil {
		return nil, err
	}
	if err := b.write("rules/bench.yaml", []byte(ruleFile)); err != nil {
		return nil, err
	}
	var missing error
	b.nghttpd, missing = exec.LookPath("nghttpd")
	all := b.all()
	first := all[0].name
	all = slices.DeleteFunc(all, func(c contender) bool {
		if c.kind == "nghttpd" && missing != nil && b.o.servers.MatchString(c.name) {
			fmt.Fprintln(stderr, "without nghttpd, which is missing: install the package nghttp2-server (Debian, Ubuntu) or nghttp2 (others)")
			return true
		}
		return c.kind != "bare" && c.kind != "" && c.name != first && !b.o.servers.MatchString(c.name)
	})
	for i := range all {
		c := &all[i]
		if c.server, err = b.server(ctx, c.kind); err != nil {
			return nil, err
		}
		if c.path == "" {
			continue
		}
		c.body = filepath.Join(b.dir, filepath.Base(c.path))
		text, err := body(c.path)
		if err := errors.Join(err, b.write(filepath.Base(c.path), text)); err != nil {
			return nil, err
		}
	}
	if b.o.envoy {
		return all, b.startEnvoy(ctx, all)
	}
	return all, nil
}

func (b *bench) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(b.dir, name), text, 0o600)
}

// server returns the server of a kind, which is the first one to start: contenders share servers.
func (b *bench) server(ctx context.Context, kind string) (*server, error) {
	if s := b.servers[kind]; s != nil || kind == "" {
		return s, nil
	}
	var s *server
	var err error
	switch kind {
	case "bare":
		s, err = b.bare(ctx, "bare", program.StartBare)
	case "floor":
		s, err = b.bare(ctx, "floor", program.StartFloor)
	case "grpc", "lane":
		s, err = b.sidecar(ctx, b.o.sidecar, "--grpc-server="+kind)
	case "pair":
		s, err = b.sidecar(ctx, cmp.Or(b.o.pair, b.o.sidecar), "--grpc-server=lane")
	case "net.Conn":
		var binary string
		if binary, err = program.Portable(ctx, b.dir); err == nil {
			s, err = b.sidecar(ctx, binary, "--grpc-server=lane")
		}
	case "redis grpc", "redis lane":
		s, err = b.sharing(ctx, kind[len("redis "):])
	case "exact lane", "leased lane":
		s, err = b.sharing(ctx, "lane", "--sharing="+strings.TrimSuffix(kind, " lane"))
	case "nghttpd":
		s, err = b.startNghttpd(ctx)
	default:
		err = fmt.Errorf("no server is called %q", kind)
	}
	if s != nil {
		b.servers[kind] = s
	}
	return s, err
}

// bare starts a server that answers a constant.
func (b *bench) bare(ctx context.Context, name string, start func(context.Context, ...string) (*program.Bare, error)) (*server, error) {
	// Servers have the environment of this process.
	if err := os.Unsetenv("GOGC"); err != nil {
		return nil, err
	}
	var args []string
	if b.o.network == "unix" {
		args = []string{"-socket=" + filepath.Join(b.dir, name+".sock")}
	}
	process, err := start(ctx, args...)
	if err != nil {
		return nil, err
	}
	if b.o.network == "unix" {
		return &server{Process: process.Process, socket: process.GRPC}, nil
	}
	return &server{Process: process.Process, grpc: process.GRPC}, nil
}

// sidecar starts a sidecar, with further arguments.
func (b *bench) sidecar(ctx context.Context, binary string, more ...string) (*server, error) {
	if b.o.gogc != "" {
		if err := os.Setenv("GOGC", b.o.gogc); err != nil {
			return nil, err
		}
	}
	args := []string{
		"--rules=" + filepath.Join(b.dir, "rules", "bench.yaml"), "--grpc-address=127.0.0.1:0",
		"--http-address=127.0.0.1:0", "--admin-address=", "--pprof",
	}
	switch b.o.network {
	case "unix":
		args = append(args, "--grpc-address=", "--grpc-socket="+filepath.Join(b.dir, strconv.Itoa(len(b.servers))+".sock"))
	case "tls":
		args = append(args, "--grpc-tls-cert="+b.certs.ServerCert, "--grpc-tls-key="+b.certs.ServerKey)
	}
	if b.o.idle > 0 {
		args = append(args, "--max-connections="+strconv.Itoa(b.o.idle+b.o.idle/10+100))
	}
	if b.o.rules != "" {
		args = append(args, "--rules="+b.o.rules)
	}
	process, err := parts.StartSidecar(ctx, binary, slices.Concat(args, more, b.o.more)...)
	if err != nil {
		return nil, err
	}
	return &server{process.Process, process.GRPC, process.Socket, process.HTTP, b.o.network == "tls"}, nil
}

// sharing starts a sidecar that keeps its counts in Redis, and the Redis before the first one.
func (b *bench) sharing(ctx context.Context, grpcServer string, more ...string) (*server, error) {
	if b.redis == nil {
		binary, err := program.Redis(ctx)
		if err != nil {
			return nil, err
		}
		if b.redis, err = parts.StartRedis(ctx, binary, b.dir, parts.RedisOptions{}); err != nil {
			return nil, err
		}
		info, err := b.redis.Info(ctx, "server")
		if err != nil {
			return nil, err
		}
		if b.redisPID, err = strconv.Atoi(info["process_id"]); err != nil {
			return nil, fmt.Errorf("the process of Redis: %w", err)
		}
	}
	more = append([]string{
		"--grpc-server=" + grpcServer, "--store=redis", "--redis-url=redis://" + b.redis.Address(),
		"--redis-timeout=" + b.o.redisTimeout.String(),
	}, more...)
	s, err := b.sidecar(ctx, b.o.sidecar, more...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return s, drive.AwaitRedis(ctx, s.http)
}

// startNghttpd starts nghttpd, which answers with a file that is as long as an answer of the bare
// server. The server sends no trailers.
func (b *bench) startNghttpd(ctx context.Context) (*server, error) {
	response, err := b.servers["bare"].ask(ctx, b.certs, "/search")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "htdocs", ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, make([]byte, 5+proto.Size(response)), 0o600); err != nil {
		return nil, err
	}
	address, err := parts.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	process, err := parts.Start("nghttpd", b.nghttpd, "--no-tls", "--address=127.0.0.1", "--htdocs="+filepath.Join(b.dir, "htdocs"), port)
	if err != nil {
		return nil, err
	}
	s := &server{Process: process, grpc: address}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := new(net.Dialer).DialContext(ctx, "tcp", address); err == nil {
			return s, conn.Close()
		}
		select {
		case <-tick.C:
		case <-process.Exited():
			return nil, fmt.Errorf("nghttpd has ended: %s", process.Tail(5))
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

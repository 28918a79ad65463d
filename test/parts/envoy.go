package parts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ErrNoEnvoy says that there is no Envoy on this machine and that none could be fetched.
var ErrNoEnvoy = errors.New("no Envoy")

// FindEnvoy returns the path of an Envoy binary: $ENVOY, else envoy on the PATH, else a copy in
// .cache that the first call fetches. The script scripts/envoy.sh of the repository at root
// searches. An error wraps ErrNoEnvoy and names the missing part in one line.
func FindEnvoy(ctx context.Context, root string) (string, error) {
	return find(ctx, root, "envoy.sh", ErrNoEnvoy)
}

// An Envoy is a running Envoy that said it is live.
type Envoy struct {
	*Process
	Admin string // host:port of its admin page
}

// StartEnvoy runs the Envoy at binary with the bootstrap config and waits until it is live:
// clusters known, the first health checks done, listeners open. StartEnvoy keeps a file in dir.
// Ports may be 0 in the bootstrap; Listener tells which they became. An Envoy that takes part in
// hot restarts has args for them.
func StartEnvoy(ctx context.Context, binary, config, dir string, args ...string) (*Envoy, error) {
	addressFile := filepath.Join(dir, "envoy-admin-address")
	if err := os.Remove(addressFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("starting envoy: %w", err)
	}
	if len(args) == 0 {
		args = []string{"--disable-hot-restart"}
	}
	process, err := Start("envoy", binary, append([]string{
		"--config-path", config, "--admin-address-path", addressFile,
		"--concurrency", "2", "--log-level", "warning", "--file-flush-interval-msec", "50",
	}, args...)...)
	if err != nil {
		return nil, err
	}
	e := &Envoy{Process: process}
	if err := e.awaitLive(ctx, addressFile); err != nil {
		process.Kill()
		return nil, err
	}
	return e, nil
}

// awaitLive polls until Envoy says that it is live.
func (e *Envoy) awaitLive(ctx context.Context, addressFile string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if address, err := os.ReadFile(addressFile); err == nil && len(address) > 0 {
			e.Admin = string(address)
			if body, err := e.Get(ctx, "/ready"); err == nil && strings.TrimSpace(body) == "LIVE" {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-e.Exited():
			return e.endError()
		case <-ctx.Done():
			return fmt.Errorf("waiting for envoy to be live: %w; its last lines:\n%s", context.Cause(ctx), e.Tail(20))
		}
	}
}

// Get returns a page of Envoy's admin interface. Anything but a 200 is an error.
func (e *Envoy) Get(ctx context.Context, path string) (string, error) {
	answer, text, err := Page(ctx, http.MethodGet, "http://"+e.Admin+path, "")
	if err != nil {
		return "", fmt.Errorf("envoy admin %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("envoy admin %s: %s: %s", path, answer.Status, text)
	}
	return text, nil
}

// Listener returns the loopback host:port of the listener with that name.
func (e *Envoy) Listener(ctx context.Context, name string) (string, error) {
	body, err := e.Get(ctx, "/listeners?format=json")
	if err != nil {
		return "", err
	}
	var page struct {
		Statuses []struct {
			Name         string `json:"name"`
			LocalAddress struct {
				SocketAddress struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		return "", fmt.Errorf("envoy admin /listeners: %w", err)
	}
	for _, status := range page.Statuses {
		if status.Name == name {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(status.LocalAddress.SocketAddress.Port)), nil
		}
	}
	return "", fmt.Errorf("envoy has no listener %q: %s", name, body)
}

// Stat returns the counter or gauge with that name, 0 when Envoy has none (it makes most of them on
// first use).
func (e *Envoy) Stat(ctx context.Context, name string) (int64, error) {
	body, err := e.Get(ctx, "/stats")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(body) {
		if value, found := strings.CutPrefix(line, name+": "); found {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("envoy stat %s: %w", name, err)
			}
			return n, nil
		}
	}
	return 0, nil
}

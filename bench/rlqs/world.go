package main

import (
	"context"
	_ "embed" // block.yaml
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"

	"github.com/weirproxy/weir/test/parts"
)

const envoys = 8

// blockFilter is a filter before the one of RLQS.
//
//go:embed block.yaml
var blockFilter string

// world is a sidecar and the Envoys before it, each behind a proxy.
type world struct {
	o    *options
	dir  string
	args []string // of the sidecar

	address string // of the sidecar's gRPC, which outlives a restart
	end     []func()

	mu       sync.Mutex // guards the rest; the lengths stay
	sidecar  *parts.Sidecar
	proxies  []*parts.Proxy
	envoys   []*parts.Envoy
	epochs   []int
	versions []int    // of the clusters of an Envoy
	urls     []string // of the Envoys, which outlive a restart
}

// startSidecar starts a sidecar with rules.
func (w *world) startSidecar(ctx context.Context, rules string) (err error) {
	path := filepath.Join(w.dir, "rules.yaml")
	if w.address, err = parts.FreeAddress(); err != nil {
		return err
	}
	w.args = append([]string{"--grpc-address=" + w.address, "--rules=" + path, "--http-address=127.0.0.1:0", "--admin-address="}, w.o.more...)
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		return err
	}
	if err := w.restartSidecar(ctx); err != nil {
		return err
	}
	w.end = append(w.end, func() { w.sidecar.Kill() })
	return nil
}

// start starts a world with rules. close must be called, also after an error.
func start(ctx context.Context, root, dir, rules string, o *options) (*world, error) {
	w := &world{o: o, dir: dir, envoys: make([]*parts.Envoy, envoys), epochs: make([]int, envoys), versions: make([]int, envoys)}
	if err := w.startSidecar(ctx, rules); err != nil {
		return w, err
	}
	text, err := os.ReadFile(filepath.Join(root, "test", "e2e", "testdata", "rlqs.yaml.tmpl"))
	if err != nil {
		return w, err
	}
	for i := range envoys {
		proxy, err := parts.StartProxy(w.address)
		if err != nil {
			return w, err
		}
		w.proxies, w.end = append(w.proxies, proxy), append(w.end, proxy.Close)
		listen, err := parts.FreeAddress()
		if err != nil {
			return w, err
		}
		w.urls = append(w.urls, "http://"+listen)
		config, err := configure(string(text), listen, proxy.Address(), w.clusters(i))
		if err != nil {
			return w, err
		}
		if err := errors.Join(os.WriteFile(w.config(i), []byte(config), 0o600), w.writeClusters(i, nil)); err != nil {
			return w, err
		}
		if err := w.restartEnvoy(ctx, i, false); err != nil {
			return w, err
		}
		w.end = append(w.end, func() { w.envoys[i].Kill() })
	}
	return w, nil
}

func (w *world) config(i int) string { return filepath.Join(w.dir, fmt.Sprint("envoy-", i, ".yaml")) }

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// configure returns the bootstrap of an Envoy. A request with the header x-block occupies its
// thread for so many milliseconds. More clusters come from a file.
func configure(text, listen, server, clusters string) (string, error) {
	const ingress = "- name: ingress\n    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }"
	dynamic := fmt.Sprintf("node: { id: rlqs, cluster: rlqs }\ndynamic_resources: { cds_config: { path_config_source: { path: %q } } }\n", clusters)
	const filter = "- name: envoy.filters.http.rate_limit_quota"
	of, err := template.New("bootstrap").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	address := fmt.Sprintf("{ socket_address: { address: 127.0.0.1, port_value: %s } }", port(server))
	if err := of.Execute(&b, []string{address}); err != nil {
		return "", err
	}
	return dynamic + strings.NewReplacer(ingress, strings.Replace(ingress, "port_value: 0", "port_value: "+port(listen), 1),
		filter, blockFilter+"          "+filter).Replace(b.String()), nil
}

// restartSidecar kills the sidecar and starts another one at its address.
func (w *world) restartSidecar(ctx context.Context) error {
	if w.sidecar != nil {
		w.sidecar.Kill()
	}
	next, err := parts.StartSidecar(ctx, w.o.sidecar, w.args...)
	if err == nil {
		w.mu.Lock()
		w.sidecar = next
		w.mu.Unlock()
	}
	return err
}

// restartEnvoy starts an Envoy in place of the one before. hot takes over its sockets; else the one
// before is killed first.
func (w *world) restartEnvoy(ctx context.Context, i int, hot bool) error {
	dir := filepath.Join(w.dir, fmt.Sprint("envoy-", i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	baseFile := filepath.Join(dir, "base")
	before := w.envoys[i]
	base := []string{"--use-dynamic-base-id", "--base-id-path", baseFile}
	switch {
	case hot:
		id, err := os.ReadFile(baseFile)
		if err != nil {
			return err
		}
		w.epochs[i]++
		base = []string{"--base-id", strings.TrimSpace(string(id)), "--restart-epoch", strconv.Itoa(w.epochs[i])}
	case before != nil:
		before.Kill()
		w.epochs[i] = 0
	}
	next, err := parts.StartEnvoy(ctx, w.o.envoy, w.config(i), dir, append(base, "--drain-time-s", "2", "--parent-shutdown-time-s", "4")...)
	if err != nil {
		return errors.Join(fmt.Errorf("Envoy %d", i), err)
	}
	if hot {
		w.end = append(w.end, func() { before.Kill() })
	}
	w.envoys[i] = next
	return nil
}

func (w *world) close() {
	for _, end := range slices.Backward(w.end) {
		end()
	}
}

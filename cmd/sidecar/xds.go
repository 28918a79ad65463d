package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/serving"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/xds"
)

// xdsConfig is the settings of rules that come by xDS.
type xdsConfig struct {
	Address         string // "" for off
	NodeID          string
	NodeCluster     string
	NodeMetadata    map[string]any
	Delta           bool
	Headers         []xds.Header
	MaxMessageBytes int
	Required        bool
	TLS             bool // also when a file or a name is given
	CAFile          string
	CertFile        string
	KeyFile         string
	ServerName      string
}

// table returns the settings of xDS.
func (x *xdsConfig) table() []setting {
	return []setting{
		{"xds-address", text(&x.Address, "target", xdsAddress), "", `host:port of an xDS server (ADS) that rules come from, beside --rules ("" = off)`, false},
		{"xds-node-id", text(&x.NodeID, "id", nil), xds.DefaultNodeID, "id of this node for the xDS server", false},
		{"xds-node-cluster", text(&x.NodeCluster, "name", nil), "", "cluster of this node for the xDS server", false},
		{"xds-node-metadata", metadata(&x.NodeMetadata), "", "metadata of this node for the xDS server: a JSON object, or key=value,key=value", false},
		{"xds-delta", boolean(&x.Delta), "false", "ask for what changes alone (incremental xDS), not for the state of the world", false},
		{"xds-header", headers(&x.Headers), "", "name=value to send to the xDS server as a header (gRPC metadata); in a file or the environment, a list of processes does not show it; repeatable", false},
		{"xds-max-message-bytes", number(&x.MaxMessageBytes, 1<<30), decimal(xds.DefaultMaxMessageBytes), "largest response of the xDS server", false},
		{"xds-required", boolean(&x.Required), "true", "say not ready until rules have come from the xDS server", false},
		{"xds-tls", boolean(&x.TLS), "false", "TLS to the xDS server; also when one of the four below is given", false},
		{"xds-tls-ca", text(&x.CAFile, "file", nil), "", `certificates that sign the xDS server's, PEM ("" = those of the system); it, the certificate and the key are read for each connection`, false},
		{"xds-tls-cert", text(&x.CertFile, "file", nil), "", "certificate to show to the xDS server, PEM", false},
		{"xds-tls-key", text(&x.KeyFile, "file", nil), "", "its key, PEM", false},
		{"xds-tls-server-name", text(&x.ServerName, "name", nil), "", `name (SAN) that the xDS server's certificate must have ("" = the host of --xds-address)`, false},
	}
}

// check returns what is wrong with settings that are right one by one. given is config.given.
func (x *xdsConfig) check(given map[string]string) []error {
	if x.Address == "" {
		var idle []string
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if strings.HasPrefix(name, "xds-") && name != "xds-address" {
				idle = append(idle, given[name])
			}
		}
		if len(idle) == 0 {
			return nil
		}
		return []error{fmt.Errorf("%s: rules do not come by xDS: name the server with --xds-address", strings.Join(idle, ", "))}
	}
	secure := x.secure()
	if secure == nil {
		return nil
	}
	var errs []error
	if err := secure.Check(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, fmt.Errorf("xds: %s", line))
		}
	}
	return errs
}

// secure returns how the connection is secured, nil when it is not.
func (x *xdsConfig) secure() *xds.TLS {
	t := xds.TLS{CA: x.CAFile, Cert: x.CertFile, Key: x.KeyFile, ServerName: x.ServerName}
	if !x.TLS && t == (xds.TLS{}) {
		return nil
	}
	return &t
}

// source names the xDS server among the sources of rules.
func (x *xdsConfig) source() []string {
	if x.Address == "" {
		return nil
	}
	return []string{xds.Prefix + x.Address}
}

// newFeed returns what brings rules from the xDS server that the settings name, nil when they name none, and registers its
// metrics.
func newFeed(c *config, r *reload.Reloader, l *limiter.Limiter, registry prometheus.Registerer, logger *slog.Logger) (*serving.Feed, error) {
	x := &c.XDS
	if x.Address == "" {
		return nil, nil //nolint:nilnil // a nil Feed is one that brings no rules
	}
	return serving.NewFeed(xds.Options{
		Address:           x.Address,
		Node:              xds.Node{ID: x.NodeID, Cluster: x.NodeCluster, Metadata: x.NodeMetadata},
		Delta:             x.Delta,
		Headers:           x.Headers,
		TLS:               x.secure(),
		MaxMessageBytes:   x.MaxMessageBytes,
		MaxMessageSetting: "--xds-max-message-bytes",
		Push:              r.Push,
		Logger:            logger,
	}, x.Required, l, registry)
}

// xdsAddress accepts host:port, a Unix socket, and nothing at all.
func xdsAddress(s string) error {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s, "dns:///"))
	if s == "" || strings.HasPrefix(s, "unix:") && len(s) > len("unix:") || err == nil && host != "" && port != "" && !strings.Contains(host, "/") {
		return nil
	}
	return errors.New(`must be host:port, such as 127.0.0.1:18000, or unix:///path, or "" for off`)
}

// metadata is an object: in JSON, or as texts by name.
func metadata(to *map[string]any) value {
	var pairs []string
	v := list(&pairs, "metadata", nil)
	read := v.store
	v.items = false // as text it is one
	v.store = func(raw any) error {
		if s, ok := raw.(string); ok && strings.HasPrefix(strings.TrimSpace(s), "{") {
			var object map[string]any
			if err := json.Unmarshal([]byte(s), &object); err != nil {
				return fmt.Errorf("must be a JSON object, or key=value,key=value: %w", err)
			}
			*to = object
			return nil
		}
		if err := read(raw); err != nil {
			return err
		}
		var errs []error
		object := make(map[string]any)
		for _, pair := range pairs {
			key, text, ok := strings.Cut(pair, "=")
			if !ok || key == "" {
				errs = append(errs, fmt.Errorf("%q: must be key=value", pair))
				continue
			}
			object[key] = text
		}
		if *to = object; len(object) == 0 {
			*to = nil
		}
		return errors.Join(errs...)
	}
	return v
}

// headers is a list of name=value. No message shows the values, which may be secrets.
func headers(to *[]xds.Header) value {
	var pairs []string
	v := list(&pairs, "name=value", nil)
	read := v.store
	v.store = func(raw any) error {
		if read(raw) != nil {
			return errors.New("must be name=value or a list of such texts")
		}
		var errs []error
		var all []xds.Header
		for i, pair := range pairs {
			name, text, ok := strings.Cut(pair, "=")
			h := xds.Header{Name: strings.TrimSpace(name), Value: strings.TrimSpace(text)}
			if !ok {
				errs = append(errs, fmt.Errorf("header %d: must be name=value", i+1))
			} else if err := h.Check(); err != nil {
				errs = append(errs, err)
			}
			all = append(all, h)
		}
		*to = all
		return errors.Join(errs...)
	}
	return v
}

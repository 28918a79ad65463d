package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/settings"
)

func xdsSettings(c *config) []setting {
	x := &c.XDS
	return []setting{
		{
			"xds-address", "", settings.Text(&x.Address, "target", xdsAddress),
			`host:port of an xDS server (ADS) that rules come from, beside --rules ("" = off)`,
		},
		{
			"xds-node-id", xds.DefaultNodeID, settings.Text(&x.Node.ID, "id", nil),
			"id of this node for the xDS server",
		},
		{
			"xds-node-cluster", "", settings.Text(&x.Node.Cluster, "name", nil),
			"cluster of this node for the xDS server",
		},
		{
			"xds-node-metadata", "", metadata(&x.Node.Metadata),
			"metadata of this node for the xDS server: a JSON object, or key=value,key=value",
		},
		{
			"xds-delta", "false", settings.Bool(&x.Delta),
			"ask for changes only (incremental xDS), not for the state of the world",
		},
		{
			"xds-header", "", headers(&x.Headers),
			"name=value, a header (gRPC metadata) for the xDS server; put secrets into a file or the " +
				"environment; repeatable",
		},
		{
			"xds-required", "true", settings.Bool(&c.XDSRequired),
			"not ready until rules have come from the xDS server",
		},
		{
			"xds-tls", "false", settings.Bool(&c.XDSUsesTLS),
			"TLS to the xDS server; also when one of the four below is given",
		},
		{
			"xds-tls-ca", "", settings.Text(&c.XDSTLS.Authorities.Path, "file", nil),
			`authorities of the xDS server's certificate, PEM ("" = the system's); read for each ` +
				`connection, as are certificate and key`,
		},
		{
			"xds-tls-cert", "", settings.Text(&c.XDSTLS.Certificate.Path, "file", nil),
			"certificate to show to the xDS server, PEM",
		},
		{
			"xds-tls-key", "", settings.Text(&c.XDSTLS.Key.Path, "file", nil),
			"its key, PEM",
		},
		{
			"xds-tls-server-name", "", settings.Text(&c.XDSTLS.ServerName, "name", nil),
			`name (SAN) that the xDS server's certificate must have ("" = the host of --xds-address)`,
		},
	}
}

// completeXDS decides whether xDS is on and with TLS. The result is every mistake.
func (c *config) completeXDS() []error {
	x := &c.XDS
	if x.Address == "" {
		if idle := c.givenWith("xds-"); idle != "" {
			return []error{fmt.Errorf("%s: rules do not come by xDS: name the server with --xds-address", idle)}
		}
		return nil
	}
	if !c.XDSUsesTLS && c.XDSTLS == (xds.TLS{}) {
		return nil
	}
	x.TLS = &c.XDSTLS
	return settings.Mistakes("xds", x.TLS.Check())
}

// xdsAddress accepts host:port, a Unix socket, and nothing at all.
func xdsAddress(s string) error {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s, "dns:///"))
	if s == "" || strings.HasPrefix(s, "unix:") && len(s) > len("unix:") ||
		err == nil && host != "" && port != "" && !strings.Contains(host, "/") {
		return nil
	}
	return errors.New(`must be host:port, such as 127.0.0.1:18000, or unix:///path, or "" for off`)
}

// metadata is an object: in JSON, or as texts by name.
func metadata(to *map[string]any) settings.Value {
	var pairs []string
	v := settings.List(&pairs, "metadata", nil)
	read := v.Set
	v.List = false // as text it is one
	v.Set = func(raw any) error {
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
func headers(to *[]xds.Header) settings.Value {
	var pairs []string
	v := settings.List(&pairs, "name=value", nil)
	read := v.Set
	v.Set = func(raw any) error {
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

package main

import (
	"bytes"
	"context"
	_ "embed"
	"net"
	"path/filepath"
	"text/template"

	"github.com/weirproxy/weir/test/parts"
)

//go:embed envoy.yaml.tmpl
var bootstrap string

// startEnvoy starts an Envoy of two workers with a listener for each contender.
func (b *bench) startEnvoy(ctx context.Context, all []contender) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	binary, err := parts.FindEnvoy(ctx, root)
	if err != nil {
		return err
	}
	type listener struct{ Name, Port string } // the port is of the server, "" without the filter
	config := struct {
		Backend   string // path of a Unix socket
		Listeners []listener
	}{filepath.Join(b.dir, "backend.sock"), make([]listener, len(all))}
	for i, c := range all {
		config.Listeners[i].Name = c.name
		if c.server != nil {
			if _, config.Listeners[i].Port, err = net.SplitHostPort(c.server.grpc); err != nil {
				return err
			}
		}
	}
	t, err := template.New("envoy").Parse(bootstrap)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, config); err != nil {
		return err
	}
	if err := b.write("envoy.yaml", text.Bytes()); err != nil {
		return err
	}
	if b.envoy, err = parts.StartEnvoy(ctx, binary, filepath.Join(b.dir, "envoy.yaml"), b.dir); err != nil {
		return err
	}
	for i := range all {
		if all[i].envoy, err = b.envoy.Listener(ctx, all[i].name); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// A port is an address that a part of the demo listens on, as its configuration says.
type port struct {
	address string // host:port; an empty host is every address of the machine
	owner   string // the part that needs it
}

// ports are the ports of deploy/envoy.yaml and the sidecar's defaults.
func ports() []port {
	return []port{
		{":10000", "Envoy"},
		{"127.0.0.1:9901", "Envoy's admin page"},
		{":8081", "the sidecar's gRPC"},
		{":8080", "the sidecar's HTTP"},
		{"127.0.0.1:8082", "the sidecar's admin service"},
		{"127.0.0.1:18080", "the backend"},
	}
}

// checkFree returns an error that names every port that somebody else listens on already. Envoy
// would otherwise share a port with an Envoy that runs already, and the demo would talk to either.
func checkFree(ports []port) error {
	var taken []error
	for _, p := range ports {
		listener, err := net.Listen("tcp", p.address)
		if err != nil {
			taken = append(taken, fmt.Errorf("%s is not free, and %s needs it: %w", p.address, p.owner, err))
			continue
		}
		if err := listener.Close(); err != nil {
			taken = append(taken, fmt.Errorf("%s: %w", p.address, err))
		}
	}
	return errors.Join(taken...)
}

// secondPorts are the ports of the second Envoy.
func secondPorts() []port {
	return []port{{":10001", "the second Envoy"}, {"127.0.0.1:9902", "the second Envoy's admin page"}}
}

// secondEnvoy returns the bootstrap of a second Envoy: the first one with other ports and another
// name.
func secondEnvoy(first string) string {
	return strings.NewReplacer("port_value: 10000", "port_value: 10001", "port_value: 9901", "port_value: 9902", "edge-1", "edge-2").Replace(first)
}

package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCheckFreeNamesEveryTakenPortAndWhoNeedsIt(t *testing.T) {
	var taken []port
	for _, owner := range []string{"Envoy", "the sidecar"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		taken = append(taken, port{listener.Addr().String(), owner})
	}
	if err := checkFree([]port{{"127.0.0.1:0", "nobody"}}); err != nil {
		t.Errorf("a free port: got %v, want no error", err)
	}
	err := checkFree(append([]port{{"127.0.0.1:0", "nobody"}}, taken...))
	if err == nil {
		t.Fatal("two taken ports: got no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(taken) {
		t.Fatalf("got %q, want one line for each of %d ports", lines, len(taken))
	}
	for i, p := range taken {
		if !strings.Contains(lines[i], p.address) || !strings.Contains(lines[i], p.owner) {
			t.Errorf("got %q, want the address %s and its owner, %s", lines[i], p.address, p.owner)
		}
	}
}

func TestTheSecondEnvoyDiffersInItsPortsAndItsName(t *testing.T) {
	first, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rlqs", "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var changed []string
	second := strings.Split(secondEnvoy(string(first)), "\n")
	for i, line := range strings.Split(string(first), "\n") {
		if second[i] != line {
			changed = append(changed, strings.TrimSpace(second[i]))
		}
	}
	want := []string{
		"address: { socket_address: { address: 127.0.0.1, port_value: 9902 } }",
		"address: { socket_address: { address: 0.0.0.0, port_value: 10001 } }",
		"- { key: x-weir-envoy, value: edge-2 }",
	}
	if !slices.Equal(changed, want) {
		t.Errorf("got %q, want %q", changed, want)
	}
}

package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// deployed returns the path of a file of deploy/.
func deployed(t *testing.T, elements ...string) string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{root, "deploy"}, elements...)...)
}

// withPorts returns a bootstrap of deploy/ with only two changes: free ports, of which one is the
// backend's at host:port, and timeouts that are long enough for a busy machine.
func withPorts(t *testing.T, backend, file string, replacements ...string) string {
	t.Helper()
	return onFreePorts(t, backend, file, append(replacements, "timeout: 0.050s", "timeout: 10s")...)
}

// onFreePorts is withPorts for a bootstrap without a timeout.
func onFreePorts(t *testing.T, backend, file string, replacements ...string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(backend)
	if err != nil {
		t.Fatal(err)
	}
	replacements = append(replacements,
		"address: 0.0.0.0, port_value: 10000", "address: 127.0.0.1, port_value: 0",
		"port_value: 9901", "port_value: 0",
		"port_value: 18080", "port_value: "+port,
	)
	text := ""
	for line := range strings.Lines(parts.Read(t, deployed(t, file))) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			text += line
		}
	}
	for i := 0; i < len(replacements); i += 2 {
		if n := strings.Count(text, replacements[i]); n != 1 {
			t.Fatalf("%s has %q %d times, want once", file, replacements[i], n)
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	return text
}

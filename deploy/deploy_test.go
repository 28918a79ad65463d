// Package deploy holds examples of how to run Weir: Envoy bootstraps, rules, Kubernetes manifests,
// a Dockerfile. The tests check each example with its reader: Envoy, Weir, the API types of
// Kubernetes. That they work together is shown by test/e2e.
package deploy

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// readYAML returns the content of a YAML file.
func readYAML(t *testing.T, file string) any {
	t.Helper()
	content := parts.Read(t, file)
	var v any
	if err := yaml.Unmarshal([]byte(content), &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// at returns the value at a path of map keys and list indices, and fails when there is no value.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			l, _ := v.([]any)
			if step >= len(l) {
				t.Fatalf("nothing at %v", path[:i+1])
			}
			v = l[step]
		}
		if v == nil {
			t.Fatalf("nothing at %v", path[:i+1])
		}
	}
	return v
}

func TestEnvoyAcceptsEveryBootstrap(t *testing.T) {
	t.Parallel()
	envoy := parts.NeedEnvoy(t, parts.RootFor(t)) // nothing else knows all that it refuses
	for _, file := range []string{"envoy.yaml", "envoy-uds.yaml", "k8s/envoy.yaml", "central/envoy.yaml", "llm/envoy.yaml", "concurrency/envoy.yaml", "rlqs/envoy.yaml"} {
		t.Run(file, func(t *testing.T) {
			validate := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "--log-level", "warning", "--config-path", file)
			out, err := validate.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "deprecated") || strings.Contains(line, "unknown") {
					t.Errorf("Envoy warns: %s", line)
				}
			}
		})
	}
}

func TestSocketFormDiffersFromTCPFormInTheEndpointOnly(t *testing.T) {
	t.Parallel()
	endpoint := []any{"static_resources", "clusters", 0, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint"}
	tcp, uds := readYAML(t, "envoy.yaml"), readYAML(t, "envoy-uds.yaml")
	pipe := map[string]any{"pipe": map[string]any{"path": "/run/weir/rls.sock"}}
	if diff := cmp.Diff(pipe, at(t, uds, append(endpoint, "address")...)); diff != "" {
		t.Errorf("address of the socket form (-want +got):\n%s", diff)
	}
	if tcpEndpoint, ok := at(t, tcp, endpoint...).(map[string]any); ok {
		tcpEndpoint["address"] = pipe
	}
	if diff := cmp.Diff(tcp, uds); diff != "" {
		t.Errorf("apart from the address (-tcp +socket):\n%s", diff)
	}

	// The pod has a second listener, on which the kubelet asks how Envoy is.
	pod := readYAML(t, filepath.Join("k8s", "envoy.yaml"))
	for _, name := range []string{"admin", "layered_runtime"} {
		if diff := cmp.Diff(at(t, uds, name), at(t, pod, name)); diff != "" {
			t.Errorf("%s (-socket +pod):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(at(t, uds, "static_resources", "listeners", 0), at(t, pod, "static_resources", "listeners", 0)); diff != "" {
		t.Errorf("the first listener (-socket +pod):\n%s", diff)
	}
	for i, cluster := range []string{"rls", "backend"} {
		if diff := cmp.Diff(at(t, uds, "static_resources", "clusters", i), at(t, pod, "static_resources", "clusters", i+1)); diff != "" {
			t.Errorf("cluster %s (-socket +pod):\n%s", cluster, diff)
		}
	}
}

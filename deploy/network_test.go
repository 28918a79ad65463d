package deploy

import (
	"path/filepath"
	"slices"
	"testing"
)

// debugPort shows all rules, and nobody asks for a token there.
const debugPort = 6070

// The debug port is reached by kubectl port-forward alone. Every other port of a pod is reached by
// pods of the cluster, as before.
func TestANetworkPolicyKeepsTheDebugPortClosed(t *testing.T) {
	t.Parallel()
	for _, folder := range folders(t) {
		m := buildManifests(t, folder)
		if m.deployment == nil && m.network == nil {
			continue
		}
		t.Run(folder, func(t *testing.T) {
			if m.network == nil {
				t.Fatal("has no NetworkPolicy")
			}
			pods := m
			if pods.deployment == nil { // Envoy Gateway makes it
				pods = readManifests(t, filepath.Join("envoy-gateway", "testdata", "deployment.yaml"))
			}
			template := pods.deployment.Spec.Template
			for key, value := range m.network.Spec.PodSelector.MatchLabels {
				if template.Labels[key] != value {
					t.Errorf("selects %s=%s, which the pods do not have", key, value)
				}
			}
			if m.network.Namespace != pods.deployment.Namespace {
				t.Errorf("is in the namespace %q, the pods are in %q", m.network.Namespace, pods.deployment.Namespace)
			}
			var open []int32
			for _, rule := range m.network.Spec.Ingress {
				for _, p := range rule.Ports {
					open = append(open, p.Port.IntVal)
				}
				if len(rule.Ports) == 0 {
					t.Error("a rule admits all ports")
				}
			}
			if slices.Contains(open, debugPort) || slices.Contains(open, 0) {
				t.Errorf("admits the ports %v", open)
			}
			for _, container := range pods.containers() {
				for _, p := range container.Ports {
					if p.ContainerPort != debugPort && p.Name != "envoy-ready" && !slices.Contains(open, p.ContainerPort) {
						t.Errorf("port %d of %s is closed", p.ContainerPort, container.Name)
					}
				}
			}
		})
	}
}

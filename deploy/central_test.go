package deploy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

func TestTheCentralServiceIsScaledAndKeptByWhatSelectsIt(t *testing.T) {
	t.Parallel()
	m := buildManifests(t, "central")
	labels := m.deployment.Spec.Template.Labels
	a := m.autoscaler
	want := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: m.deployment.Name}
	if diff := cmp.Diff(want, a.Spec.ScaleTargetRef); diff != "" {
		t.Errorf("what is scaled (-want +got):\n%s", diff)
	}
	if m.deployment.Spec.Replicas != nil {
		t.Errorf("replicas: got %d, want none: `kubectl apply` would undo what the autoscaler did", *m.deployment.Spec.Replicas)
	}
	if a.Spec.MinReplicas == nil || *a.Spec.MinReplicas < 2 || a.Spec.MaxReplicas <= *a.Spec.MinReplicas {
		t.Errorf("replicas: got %v to %d, want two at least and room above", a.Spec.MinReplicas, a.Spec.MaxReplicas)
	}
	if len(a.Spec.Metrics) != 1 || a.Spec.Metrics[0].Resource == nil || a.Spec.Metrics[0].Resource.Name != corev1.ResourceCPU {
		t.Errorf("what it is scaled by: got %v, want CPU", a.Spec.Metrics)
	}
	if m.budget.Spec.Selector == nil { // which would be nothing
		t.Fatal("the budget selects no pods")
	}
	if diff := cmp.Diff(labels, m.budget.Spec.Selector.MatchLabels); diff != "" {
		t.Errorf("what is kept from disruption (-pod +budget):\n%s", diff)
	}
	// A disruption takes at most one replica at a time.
	if most := m.budget.Spec.MaxUnavailable; most == nil || most.IntVal != 1 || m.budget.Spec.MinAvailable != nil {
		t.Errorf("disruptions: got %v, want one at a time", most)
	}
	if r := m.deployment.Spec.Strategy.RollingUpdate; r == nil || r.MaxUnavailable.IntVal != 0 || r.MaxSurge.IntVal != 1 {
		t.Errorf("rolling update: got %v, want none fewer and one more", r)
	}
	spread := m.deployment.Spec.Template.Spec.TopologySpreadConstraints
	var keys []string
	for _, constraint := range spread {
		keys = append(keys, constraint.TopologyKey)
		for name, value := range constraint.LabelSelector.MatchLabels {
			if labels[name] != value {
				t.Errorf("spread over %s: selects %s=%s, which the pod is not", constraint.TopologyKey, name, value)
			}
		}
	}
	if !slices.Equal(keys, []string{corev1.LabelTopologyZone, corev1.LabelHostname}) {
		t.Errorf("spread over: got %v, want zones and nodes", keys)
	}
}

func TestEnvoyKnowsEveryReplicaOfTheCentralService(t *testing.T) {
	t.Parallel()
	m := buildManifests(t, "central")
	if got := m.service.Spec.ClusterIP; got != corev1.ClusterIPNone {
		t.Errorf("clusterIP: got %q, want None: Envoy needs the address of each pod", got)
	}
	if m.service.Spec.PublishNotReadyAddresses {
		t.Error("addresses of pods that are not ready are told")
	}
	cluster := at(t, readYAML(t, "central/envoy.yaml"), "static_resources", "clusters", 0)
	if got := at(t, cluster, "type"); got != "STRICT_DNS" {
		t.Errorf("type: got %v, want STRICT_DNS: the other takes one address at a time", got)
	}
	address := at(t, cluster, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "socket_address")
	want := map[string]any{"address": fmt.Sprintf("%s.%s.svc.cluster.local", m.service.Name, m.service.Namespace), "port_value": 8081}
	if diff := cmp.Diff(any(want), address); diff != "" {
		t.Errorf("address of the service (-manifests +Envoy):\n%s", diff)
	}
	for _, object := range []string{m.deployment.Namespace, m.autoscaler.Namespace, m.budget.Namespace, m.configMaps[0].Namespace} {
		if object != m.service.Namespace {
			t.Errorf("namespace: got %q beside %q", object, m.service.Namespace)
		}
	}
}

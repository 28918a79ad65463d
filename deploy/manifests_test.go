package deploy

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/weirproxy/weir/test/parts"
)

// manifests are the objects that `kubectl apply` would send: at most one of each kind, but many
// ConfigMaps and custom resources.
type manifests struct {
	deployment *appsv1.Deployment
	service    *corev1.Service
	autoscaler *autoscalingv2.HorizontalPodAutoscaler
	budget     *policyv1.PodDisruptionBudget
	network    *networkingv1.NetworkPolicy
	account    *corev1.ServiceAccount
	configMaps []*corev1.ConfigMap
	custom     []string // YAML documents, of custom resources and of the ConfigMaps, for crds
}

// buildManifests builds the kustomization of a folder.
func buildManifests(t *testing.T, folder string) manifests {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatal(err)
	}
	var m manifests
	for _, resource := range resources.Resources() {
		document, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		m.add(t, resource.CurId().String(), document)
	}
	return m
}

// readManifests reads the objects of a file.
func readManifests(t *testing.T, file string) manifests {
	t.Helper()
	content := parts.Read(t, file)
	var m manifests
	for i, document := range strings.Split(content, "\n---\n") {
		if i > 0 || strings.Contains(document, "\nkind: ") { // else only comments stand before the first
			m.add(t, file, []byte(document))
		}
	}
	return m
}

// add decodes an object into its Kubernetes type. A field that the type does not have, a duplicate
// one, and a second object of its kind, are failures.
func (m *manifests) add(t *testing.T, name string, document []byte) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, autoscalingv2.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(document, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		m.custom = append(m.custom, string(document))
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	second := false
	switch object := object.(type) {
	case *appsv1.Deployment:
		second, m.deployment = m.deployment != nil, object
	case *corev1.Service:
		second, m.service = m.service != nil, object
	case *autoscalingv2.HorizontalPodAutoscaler:
		second, m.autoscaler = m.autoscaler != nil, object
	case *policyv1.PodDisruptionBudget:
		second, m.budget = m.budget != nil, object
	case *networkingv1.NetworkPolicy:
		second, m.network = m.network != nil, object
	case *corev1.ServiceAccount:
		second, m.account = m.account != nil, object
	case *corev1.ConfigMap:
		m.configMaps = append(m.configMaps, object)
		m.custom = append(m.custom, string(document))
	default:
		t.Errorf("%s: nothing checks objects of this kind", name)
	}
	if second {
		t.Errorf("%s: a second object of its kind: only one of them would be checked", name)
	}
}

// containers returns all containers of the pod, sidecars included.
func (m manifests) containers() []corev1.Container {
	pod := m.deployment.Spec.Template.Spec
	return append(slices.Clone(pod.InitContainers), pod.Containers...)
}

// container returns the container with that name.
func (m manifests) container(t *testing.T, name string) corev1.Container {
	t.Helper()
	for _, container := range m.containers() {
		if container.Name == name {
			return container
		}
	}
	t.Fatalf("the pod has no container %q", name)
	return corev1.Container{}
}

// configMap returns the ConfigMap with that name.
func (m manifests) configMap(t *testing.T, name string) *corev1.ConfigMap {
	t.Helper()
	for _, configMap := range m.configMaps {
		if configMap.Name == name {
			return configMap
		}
	}
	t.Fatalf("there is no ConfigMap %q", name)
	return nil
}

// folders returns all folders that have a kustomization.
func folders(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range found {
		found[i] = filepath.Dir(file)
	}
	return found
}

// TestEveryObjectIsOfItsKind builds and decodes all there is.
func TestEveryObjectIsOfItsKind(t *testing.T) {
	t.Parallel()
	all := folders(t)
	if len(all) < 8 {
		t.Errorf("got %d folders, want the many that there are", len(all))
	}
	for _, folder := range all {
		t.Run(folder, func(t *testing.T) {
			m := buildManifests(t, folder)
			for _, configMap := range m.configMaps {
				if len(configMap.Data) == 0 {
					t.Errorf("ConfigMap %s is empty", configMap.Name)
				}
			}
			if m.deployment == nil {
				return
			}
			for _, container := range m.containers() {
				if name, _, _ := strings.Cut(container.Image, ":"); name == "weir" && container.Image != "weir:latest" {
					t.Errorf("image of %s: got %q, want the one that `make image` makes", container.Name, container.Image)
				}
			}
		})
	}
}

package deploy

import (
	"cmp"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirproxy/weir/test/parts"
)

// buildPod builds a folder with an app behind Envoy: a Deployment, a Service, and the ConfigMaps of
// Weir and of Envoy.
func buildPod(t *testing.T, folder string) manifests {
	t.Helper()
	m := buildManifests(t, folder)
	if m.deployment == nil || m.service == nil || len(m.configMaps) != 2 {
		t.Fatalf("got deployment %t, service %t, %d ConfigMaps; want both and 2", m.deployment != nil, m.service != nil, len(m.configMaps))
	}
	return m
}

func TestEveryContainerIsLockedDownAndBounded(t *testing.T) {
	t.Parallel()
	m := buildPod(t, "k8s")
	if c := m.deployment.Spec.Template.Spec.SecurityContext; c == nil || c.RunAsUser == nil || *c.RunAsUser == 0 {
		t.Errorf("the pod's security context: got %v, want a user", c)
	}
	if got, want := len(m.containers()), 3; got != want {
		t.Errorf("containers: got %d, want %d: the app, Envoy and Weir", got, want)
	}
	checkLockedDown(t, m)
}

// checkLockedDown holds that nothing in a pod may do more than it has to, or take more than it is
// given.
func checkLockedDown(t *testing.T, m manifests) {
	t.Helper()
	pod := m.deployment.Spec.Template.Spec
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	if !is(pod.AutomountServiceAccountToken, false) {
		t.Error("the pod has a service account token that nobody needs")
	}
	for _, container := range m.containers() {
		t.Run(container.Name, func(t *testing.T) {
			// The pod's security context fills gaps of a container's.
			own, whole := container.SecurityContext, pod.SecurityContext
			if own == nil {
				own = new(corev1.SecurityContext)
			}
			if whole == nil {
				whole = new(corev1.PodSecurityContext)
			}
			nonRoot, profile := cmp.Or(own.RunAsNonRoot, whole.RunAsNonRoot), cmp.Or(own.SeccompProfile, whole.SeccompProfile)
			if !is(nonRoot, true) || profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("security context: got non-root %v and seccomp %v, want true and RuntimeDefault", nonRoot, profile)
			}
			if !is(own.ReadOnlyRootFilesystem, true) || !is(own.AllowPrivilegeEscalation, false) ||
				own.Capabilities == nil || !slices.Equal(own.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(own.Capabilities.Add) != 0 {
				t.Errorf("security context: got %v, want a read-only root, no escalation, no capability", own)
			}
			for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				limit, request := container.Resources.Limits[resource], container.Resources.Requests[resource]
				if limit.IsZero() || request.IsZero() || request.Cmp(limit) > 0 {
					t.Errorf("%s: got a request of %v and a limit of %v, want both and the request within the limit", resource, &request, &limit)
				}
			}
			if _, tag, _ := strings.Cut(container.Image, ":"); tag == "" {
				t.Errorf("image: got %q, want a tag", container.Image)
			}
		})
	}
}

func TestWeirIsANativeSidecarThatIsProbed(t *testing.T) {
	t.Parallel()
	m := buildPod(t, "k8s")
	pod := m.deployment.Spec.Template.Spec
	if len(pod.InitContainers) != 1 || pod.InitContainers[0].Name != "weir" {
		t.Fatalf("init containers: got %d, want weir alone", len(pod.InitContainers))
	}
	weir := pod.InitContainers[0]
	if weir.RestartPolicy == nil || *weir.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("restartPolicy: got %v, want Always: that is what makes it a sidecar", weir.RestartPolicy)
	}
	// Start and life must not depend on Redis, on which readiness may.
	probes := map[string]*corev1.Probe{"/readyz": weir.ReadinessProbe, "/livez": weir.LivenessProbe, "/livez, to start": weir.StartupProbe}
	for name, probe := range probes {
		path, _, _ := strings.Cut(name, ",")
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port != intstr.FromString("weir-http") {
			t.Errorf("probe of %s: got %v, want a GET on port weir-http", name, probe)
		}
	}
	if got, want := weir.Ports[0].ContainerPort, int32(8080); got != want || !slices.Contains(weir.Args, "--http-address=:8080") {
		t.Errorf("port weir-http: got %d with args %v, want %d on both sides", got, weir.Args, want)
	}
	envoy := m.container(t, "envoy")
	if envoy.StartupProbe == nil || envoy.ReadinessProbe == nil || envoy.LivenessProbe == nil {
		t.Error("Envoy has not all of its three probes")
	}
	if grace := m.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds; grace == nil || *grace < 20 {
		t.Errorf("grace period: got %v, want room for Envoy's sleep and Weir's drain", grace)
	}
}

func TestWeirUnderstandsItsArguments(t *testing.T) {
	t.Parallel()
	binary := program(t, "sidecar")
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), binary, append(args, "--help")...).CombinedOutput()
		return string(out), err
	}
	for _, folder := range []string{"k8s", "k8s-redis"} {
		weir := buildPod(t, folder).container(t, "weir")
		if out, err := run(weir.Args...); err != nil {
			t.Errorf("%s: %v: %v\n%s", folder, weir.Args, err, out)
		}
	}
	if _, err := run("serve", "--no-such-flag"); err == nil {
		t.Error("an unknown flag is accepted: the test shows nothing")
	}
}

func TestPodMountsWhatTheConfigMapsHold(t *testing.T) {
	t.Parallel()
	m := buildPod(t, "k8s")
	pod := m.deployment.Spec.Template.Spec
	held := map[string]*corev1.ConfigMap{}
	for _, configMap := range m.configMaps {
		held[configMap.Name] = configMap
	}
	mounted := map[string]string{} // by name of volume
	for _, volume := range pod.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		if held[volume.ConfigMap.Name] == nil {
			t.Errorf("volume %s is made of ConfigMap %q, which is not there", volume.Name, volume.ConfigMap.Name)
			continue
		}
		mounted[volume.Name] = volume.ConfigMap.Name
	}
	for name, file := range map[string]string{"weir-rules": "k8s/rules/edge.yaml", "envoy-config": "k8s/envoy.yaml"} {
		want := parts.Read(t, file)
		configMap := held[mounted[name]]
		if configMap == nil {
			t.Errorf("no volume %s of a ConfigMap", name)
			continue
		}
		if diff := gocmp.Diff(want, configMap.Data[filepath.Base(file)]); diff != "" {
			t.Errorf("%s of volume %s (-file +ConfigMap):\n%s", filepath.Base(file), name, diff)
		}
	}
	// A change of the rules must reach pods that run, so their ConfigMap keeps its name, and no
	// subPath stops the files from changing.
	if held["weir-rules"] == nil {
		t.Error("the ConfigMap of the rules has a name that changes")
	}
	for _, mount := range m.container(t, "weir").VolumeMounts {
		if mount.SubPath != "" {
			t.Errorf("%s is mounted with a subPath: it would never change", mount.Name)
		}
	}
	// One directory of both holds the socket, and both say the same path.
	const socket = "/run/weir/rls.sock"
	if args := m.container(t, "weir").Args; !slices.Contains(args, "--grpc-socket="+socket) {
		t.Errorf("Weir's arguments: got %v, want the socket %s", args, socket)
	}
	// Envoy connects, and puts no file there.
	for name, readOnly := range map[string]bool{"weir": false, "envoy": true} {
		if !slices.ContainsFunc(m.container(t, name).VolumeMounts, func(v corev1.VolumeMount) bool {
			return v.Name == "weir-socket" && v.MountPath == filepath.Dir(socket) && v.ReadOnly == readOnly
		}) {
			t.Errorf("%s does not mount the socket's directory with readOnly %v", name, readOnly)
		}
	}
}

func TestPodsThatShareTheirCountsDifferInWhereTheseAre(t *testing.T) {
	t.Parallel()
	alone, shared := buildPod(t, "k8s"), buildPod(t, "k8s-redis")
	weir := &shared.deployment.Spec.Template.Spec.InitContainers[0]
	before := alone.container(t, "weir")
	more := weir.Args[len(before.Args):]
	if !slices.Contains(more, "--store=redis") || !slices.ContainsFunc(more, func(arg string) bool { return strings.HasPrefix(arg, "--redis-url=") }) {
		t.Errorf("Weir's further arguments: got %v, want the store and its URL", more)
	}

	// The password is a file of a secret, which Weir's user may read through its group.
	i := slices.IndexFunc(weir.Args, func(arg string) bool { return strings.HasPrefix(arg, "--redis-password-file=") })
	if i < 0 {
		t.Fatalf("Weir's arguments: got %v, want a file with the password", weir.Args)
	}
	password := strings.TrimPrefix(weir.Args[i], "--redis-password-file=")
	mount := weir.VolumeMounts[len(weir.VolumeMounts)-1]
	pod := &shared.deployment.Spec.Template.Spec
	volume := pod.Volumes[len(pod.Volumes)-1]
	if mount.MountPath != filepath.Dir(password) || !mount.ReadOnly || mount.Name != volume.Name || volume.Secret == nil {
		t.Fatalf("%s: got mount %v of volume %v, want a secret there", password, mount, volume)
	}
	if mode := volume.Secret.DefaultMode; mode == nil || *mode != 0o440 || pod.SecurityContext.FSGroup == nil {
		t.Errorf("mode of the secret: got %v, want 0440 and a group", mode)
	}

	// All else is the same.
	weir.Args = weir.Args[:len(before.Args)]
	weir.VolumeMounts = weir.VolumeMounts[:len(weir.VolumeMounts)-1]
	pod.Volumes = pod.Volumes[:len(pod.Volumes)-1]
	if diff := gocmp.Diff(alone.deployment, shared.deployment); diff != "" {
		t.Errorf("what else differs (-alone +shared):\n%s", diff)
	}
}

func TestServiceLeadsToEnvoy(t *testing.T) {
	t.Parallel()
	m := buildPod(t, "k8s")
	if diff := gocmp.Diff(m.deployment.Spec.Template.Labels, m.service.Spec.Selector); diff != "" {
		t.Errorf("labels of the pod and selector of the service (-pod +service):\n%s", diff)
	}
	port := m.service.Spec.Ports[0]
	for _, p := range m.container(t, "envoy").Ports {
		if p.Name == port.TargetPort.StrVal {
			if got, want := p.ContainerPort, int32(10000); got != want {
				t.Errorf("port %s of Envoy: got %d, want %d, where it listens", p.Name, got, want)
			}
			return
		}
	}
	t.Errorf("Envoy has no port %v", port.TargetPort)
}

package deploy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// withValues renders the chart with values of YAML.
func withValues(t *testing.T, text string) manifests {
	t.Helper()
	values, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return release(t, weirChart, values)
}

func TestANullTakesTheUserOfThePodAway(t *testing.T) {
	t.Parallel()
	m := release(t, weirChart, chartValues(t)["openshift"])
	pod := m.deployment.Spec.Template.Spec
	if c := pod.SecurityContext; c.RunAsUser != nil || c.RunAsGroup != nil || c.FSGroup != nil || c.RunAsNonRoot == nil || !*c.RunAsNonRoot {
		t.Errorf("got %+v, want no user and no group, and still not root", c)
	}
	if m.account == nil || m.account.Name != pod.ServiceAccountName || m.account.Name != m.deployment.Name {
		t.Errorf("account %v, and the pod has %q; want the name of the deployment", m.account, pod.ServiceAccountName)
	}
	if other := withValues(t, "podSecurityContext: {fsGroup: 7}\nsecurityContext: {runAsUser: 8}"); *other.deployment.Spec.Template.Spec.SecurityContext.FSGroup != 7 ||
		*other.container(t, "weir").SecurityContext.RunAsUser != 8 || !*other.container(t, "weir").SecurityContext.ReadOnlyRootFilesystem {
		t.Error("a field of a security context must replace one default, and leave the others")
	}
}

func TestAServiceAccountIsTheOneThatTheValuesName(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]struct{ name, made string }{
		"{}":                           {},
		"serviceAccount: {name: mine}": {name: "mine"},
		"serviceAccount: {create: true, name: a}":                     {name: "a", made: "a"},
		"serviceAccount: {create: true, annotations: {role: reader}}": {name: "edge-weir", made: "edge-weir"},
	} {
		m := withValues(t, values)
		made := ""
		if m.account != nil {
			made = m.account.Name
		}
		if got := m.deployment.Spec.Template.Spec.ServiceAccountName; got != want.name || made != want.made {
			t.Errorf("%s: the pod has %q and the chart makes %q, want %q and %q", values, got, made, want.name, want.made)
		}
	}
}

func TestVolumesProbesAndPlacesOfTheUserReachThePod(t *testing.T) {
	t.Parallel()
	m := release(t, weirChart, chartValues(t)["tls"])
	weir, pod := m.container(t, "weir"), m.deployment.Spec.Template.Spec
	if m.volume(t, "grpc-tls").Secret.SecretName != "weir-grpc" {
		t.Error("the pod must have the secret")
	}
	if p := weir.LivenessProbe; p.PeriodSeconds != 20 || p.HTTPGet.Path != "/livez" || p.FailureThreshold != 3 {
		t.Errorf("liveness: got %+v, want another period alone", p)
	}
	if got := m.deployment.Spec.Strategy.RollingUpdate.MaxSurge; *got != intstr.FromString("25%") {
		t.Errorf("surge: got %v, want 25%%", got)
	}
	if got := *pod.TerminationGracePeriodSeconds; got != 45 {
		t.Errorf("grace: got %d s, want 45", got)
	}
	if s := pod.TopologySpreadConstraints; len(s) != 1 || s[0].WhenUnsatisfiable != corev1.DoNotSchedule {
		t.Errorf("spread: got %+v, want the user's alone", s)
	}
	if got := withValues(t, "store: memory\nreplicas: 1").deployment.Spec.Strategy.Type; got != "Recreate" {
		t.Errorf("strategy in memory: got %s, want Recreate: two pods would admit twice as much", got)
	}
	app := release(t, appChart, map[string]any{"weir": map[string]any{
		"extraVolumes":      []any{map[string]any{"name": "more", "emptyDir": map[string]any{}}},
		"extraVolumeMounts": []any{map[string]any{"name": "more", "mountPath": "/more"}},
	}})
	mounts := app.container(t, "weir").VolumeMounts
	if diff := cmp.Diff(corev1.VolumeMount{Name: "more", MountPath: "/more"}, mounts[len(mounts)-1]); diff != "" || app.volume(t, "more").EmptyDir == nil {
		t.Errorf("sidecar (-want +got):\n%s", diff)
	}
}

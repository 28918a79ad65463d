package deploy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A fleet that starts while Redis is away divides limits by the number of its replicas. A container
// that restarts goes on from its last counts.
func TestAFleetOnRedisAssumesItsReplicasAndKeepsItsLastCounts(t *testing.T) {
	t.Parallel()
	chart := func(values map[string]any) manifests { return release(t, weirChart, values) }
	for name, test := range map[string]struct {
		of        manifests
		container string
		size      string
	}{
		"k8s-redis":         {buildPod(t, "k8s-redis"), "weir", "2"},
		"central":           {buildManifests(t, "central"), "ratelimit", "10"},
		"istio":             {buildManifests(t, "istio"), "ratelimit", "2"},
		"chart":             {chart(nil), "weir", "10"},
		"chart, most":       {chart(map[string]any{"autoscaling": map[string]any{"maxReplicas": 30}}), "weir", "30"},
		"chart, fixed":      {chart(map[string]any{"replicas": 3, "autoscaling": map[string]any{"enabled": false}}), "weir", "3"},
		"chart, by setting": {chart(map[string]any{"redis": map[string]any{"fleetSize": 7}}), "weir", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.of.container(t, test.container)
			if got := settingOf(c, "--fleet-size=", "WEIR_FLEET_SIZE"); got != test.size {
				t.Errorf("the number of replicas: got %q, want %q", got, test.size)
			}
			if name == "istio" { // adds no volume to the sample
				return
			}
			dir := settingOf(c, "--state-dir=", "WEIR_STATE_DIR")
			for _, mount := range c.VolumeMounts {
				if mount.MountPath == dir && !mount.ReadOnly {
					return
				}
			}
			t.Errorf("the directory of the last counts: got %q, which is no volume", dir)
		})
	}
}

// settingOf returns the value of an argument, or of a variable, of a container.
func settingOf(c corev1.Container, argument, variable string) (value string) {
	for _, arg := range c.Args {
		if text, is := strings.CutPrefix(arg, argument); is {
			value = text
		}
	}
	for _, env := range c.Env {
		if env.Name == variable {
			value = env.Value
		}
	}
	return value
}

package deploy

import (
	"context"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/test/parts"
)

// variables returns the environment of a container; secrets are the values of its Secrets, by
// NAME/KEY.
func variables(t *testing.T, c corev1.Container, secrets map[string]string) map[string]string {
	t.Helper()
	env := make(map[string]string)
	for _, v := range c.Env {
		if _, twice := env[v.Name]; twice {
			t.Errorf("%s is set twice", v.Name)
		}
		env[v.Name] = v.Value
		if from := v.ValueFrom; from != nil && from.SecretKeyRef != nil {
			env[v.Name] = secrets[from.SecretKeyRef.Name+"/"+from.SecretKeyRef.Key]
		} else if from != nil {
			t.Errorf("%s: nothing says what %v is here", v.Name, from)
		}
	}
	return env
}

// surroundings are the files and secrets that a container of `ratelimit` finds in the test.
type surroundings struct {
	secrets map[string]string            // values of Secrets for variables, by NAME/KEY
	volumes map[string]map[string]string // contents of mounted Secrets, by the name of the volume and of the file
	with    map[string]string            // variables that have to be others here
}

// A service is a container of `ratelimit` that runs as a process.
type service struct {
	*parts.Ratelimit
}

// startService runs the container of a Deployment: with its environment, and its files where they
// can be here. Only ports and where these files are differ.
func startService(t *testing.T, m manifests, in surroundings) *service {
	t.Helper()
	c := m.ratelimit(t)
	if len(c.Args) > 0 {
		t.Fatalf("got arguments %q, want none", c.Args)
	}
	root := t.TempDir()
	for _, mount := range c.VolumeMounts {
		layVolume(t, filepath.Join(root, mount.MountPath), m.files(t, mount.Name, in))
	}
	env := variables(t, c, in.secrets)
	for name, value := range env {
		if strings.HasPrefix(value, "/") {
			env[name] = root + value
		}
	}
	for _, name := range []string{"PORT", "GRPC_PORT", "DEBUG_PORT", "PROMETHEUS_ADDR", "LOG_FORMAT", "WEIR_FLEET_SIZE"} {
		delete(env, name) // the test has others
	}
	maps.Copy(env, in.with)
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	binary := program(t, filepath.Base(c.Command[0])) // before the time of soon begins
	r, err := parts.StartRatelimit(parts.Soon(t), binary, environ...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("last lines of ratelimit:\n%s", r.Tail(30))
		}
	})
	for _, address := range []*string{&r.GRPC, &r.HTTP} {
		_, port, err := net.SplitHostPort(*address)
		if err != nil {
			t.Fatal(err)
		}
		*address = net.JoinHostPort("127.0.0.1", port) // "::" is both
	}
	return &service{r}
}

// files returns the files of a volume of the pod.
func (m manifests) files(t *testing.T, volume string, in surroundings) map[string]string {
	t.Helper()
	for _, v := range m.deployment.Spec.Template.Spec.Volumes {
		switch {
		case v.Name != volume:
		case v.ConfigMap != nil && v.ConfigMap.Optional != nil && *v.ConfigMap.Optional && len(m.configMaps) == 0:
			return nil
		case v.ConfigMap != nil:
			return m.configMap(t, v.ConfigMap.Name).Data
		case v.Secret != nil:
			return in.volumes[volume]
		case v.EmptyDir != nil:
			return nil
		}
	}
	t.Fatalf("the pod has no volume %q", volume)
	return nil
}

// layVolume lays out files as the kubelet does: links to links, so that all of them change in one
// step.
func layVolume(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	const generation = "..2026_11_21_06_41_45.1"
	if err := os.MkdirAll(filepath.Join(dir, generation), 0o755); err != nil {
		t.Fatal(err)
	}
	link := func(to, name string) {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(generation, "..data")
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, generation, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		link("..data/"+name, name)
	}
}

// awaitPage waits until a page has that code and a text in it.
func awaitPage(t *testing.T, url string, code int, part string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(parts.Within); ; <-tick.C {
		got, text, err := parts.Page(parts.Soon(t), http.MethodGet, url, "")
		if err == nil && got.StatusCode == code && strings.Contains(text, part) {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s: got %v %q, %v; want %d and %q", url, got, text, err, code, part)
		}
	}
}

// checkProbes sends the probes of the kubelet.
func (s *service) checkProbes(t *testing.T, c corev1.Container) {
	t.Helper()
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		checkPage(t, "http://"+s.HTTP+probe.HTTPGet.Path, http.StatusOK)
	}
}

// checkPage holds that a page has that code.
func checkPage(t *testing.T, url string, code int) {
	t.Helper()
	got, text, err := parts.Page(parts.Soon(t), http.MethodGet, url, "")
	if err != nil {
		t.Fatal(err)
	}
	if got.StatusCode != code {
		t.Errorf("%s: got %d %q, want %d", url, got.StatusCode, text, code)
	}
}

// end tells it to stop, as the kubelet does, and holds that it ends by itself in the time that its
// pod has.
func (s *service) end(t *testing.T, m manifests) {
	t.Helper()
	grace := time.Duration(*m.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	if c := m.ratelimit(t); c.Lifecycle != nil {
		grace -= time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// portOf returns the port of an address.
func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package deploy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirproxy/weir/test/parts"
)

// services returns all Deployments that run `ratelimit` for others: folders that are applied as
// they are, and the Deployments of Envoy Gateway with our settings.
func services(t *testing.T) map[string]manifests {
	t.Helper()
	all := make(map[string]manifests)
	for _, folder := range []string{"central", "istio", "contour", "ai-gateway"} {
		all[folder] = buildManifests(t, folder)
	}
	for _, file := range []string{"deployment", "deployment-memory"} {
		all["envoy-gateway "+file] = readManifests(t, filepath.Join("envoy-gateway", "testdata", file+".yaml"))
	}
	return all
}

// ratelimit returns the one container of a Deployment of services.
func (m manifests) ratelimit(t *testing.T) corev1.Container {
	t.Helper()
	if m.deployment == nil || len(m.containers()) != 1 {
		t.Fatal("want a Deployment of one container")
	}
	return m.containers()[0]
}

// Every platform names the command, so that the one image does for all: the Dockerfile has the
// program where they look for it.
func TestEveryServiceRunsRatelimitOfTheImageLockedDown(t *testing.T) {
	t.Parallel()
	for name, m := range services(t) {
		t.Run(name, func(t *testing.T) {
			c := m.ratelimit(t)
			if !slices.Equal(c.Command, []string{"/bin/ratelimit"}) || c.Image != "weir:latest" {
				t.Errorf("got command %q of image %q, want /bin/ratelimit of weir:latest", c.Command, c.Image)
			}
			checkLockedDown(t, m)
			for _, mount := range c.VolumeMounts {
				if mount.ReadOnly == (mount.Name == "state") || mount.SubPath != "" {
					t.Errorf("%s: got %v, want a directory that nobody writes but that of the counts", mount.Name, mount)
				}
			}
			if cpu := c.Resources.Limits[corev1.ResourceCPU]; cpu.MilliValue() < 1000 {
				t.Errorf("CPU limit: got %v, want 1 at least: less stops it for longer than Envoy waits", &cpu)
			}
			if diff := cmp.Diff(m.deployment.Spec.Template.Labels, m.service.Spec.Selector); diff != "" {
				t.Errorf("labels of the pod and selector of the service (-pod +service):\n%s", diff)
			}
			if diff := cmp.Diff(m.deployment.Spec.Selector.MatchLabels, m.service.Spec.Selector); diff != "" {
				t.Errorf("selector of the deployment and of the service (-deployment +service):\n%s", diff)
			}
		})
	}
}

// number returns the number of a port that may be a name.
func number(t *testing.T, c corev1.Container, port intstr.IntOrString) int32 {
	t.Helper()
	if port.Type == intstr.Int {
		return port.IntVal
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return p.ContainerPort
		}
	}
	t.Fatalf("the container has no port %q", port.StrVal)
	return 0
}

func TestServicesAndProbesLeadToWhereRatelimitListens(t *testing.T) {
	t.Parallel()
	for name, m := range services(t) {
		t.Run(name, func(t *testing.T) {
			c := m.ratelimit(t)
			env := variables(t, c, nil)
			// Where it listens unless it is told otherwise.
			for variable, port := range map[string]string{"PORT": "8080", "GRPC_PORT": "8081", "DEBUG_PORT": "6070"} {
				if got, set := env[variable]; set && got != port {
					t.Errorf("%s: got %s, want %s, as the ports below say", variable, got, port)
				}
			}
			listens := []int32{8080, 8081, 6070}
			if address, set := env["PROMETHEUS_ADDR"]; set {
				_, port, _ := regexpCut(address, `^(.*):([0-9]+)$`)
				n, err := strconv.ParseInt(port, 10, 32)
				if err != nil {
					t.Fatalf("PROMETHEUS_ADDR: %q", address)
				}
				listens = append(listens, int32(n))
			}
			for _, port := range c.Ports {
				if !slices.Contains(listens, port.ContainerPort) {
					t.Errorf("port %s: nothing listens on %d", port.Name, port.ContainerPort)
				}
			}
			grpc := false
			for _, port := range m.service.Spec.Ports {
				target := port.TargetPort
				if target == (intstr.IntOrString{}) {
					target = intstr.FromInt32(port.Port)
				}
				if got := number(t, c, target); got != port.Port {
					t.Errorf("port %d of the service: leads to %d", port.Port, got)
				}
				grpc = grpc || port.Port == 8081
			}
			if !grpc {
				t.Errorf("ports of the service: got %v, want 8081 among them", m.service.Spec.Ports)
			}
			for kind, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
				if probe == nil || probe.HTTPGet == nil || number(t, c, probe.HTTPGet.Port) != 8080 {
					t.Errorf("%s: got %v, want a GET on 8080", kind, probe)
				}
			}
		})
	}
}

// The pages are on a port that every pod of the cluster reaches, and /json asks for no credentials.
func TestNobodyChargesByJSONInACluster(t *testing.T) {
	t.Parallel()
	for name, m := range services(t) {
		if got := variables(t, m.ratelimit(t), nil)["WEIR_HTTP_JSON"]; got != "off" {
			t.Errorf("%s: WEIR_HTTP_JSON: got %q, want off", name, got)
		}
	}
	for _, folder := range []string{"k8s", "k8s-redis"} {
		if args := buildPod(t, folder).container(t, "weir").Args; !slices.Contains(args, "--http-json=off") {
			t.Errorf("%s: got %v, want --http-json=off", folder, args)
		}
	}
}

// regexpCut returns the two groups of an expression.
func regexpCut(text, expression string) (before, after string, found bool) {
	m := regexp.MustCompile(expression).FindStringSubmatch(text)
	if len(m) != 3 {
		return "", "", false
	}
	return m[1], m[2], true
}

// drain returns the most time from SIGTERM to the end of `ratelimit`, as it has it itself.
func drain(t *testing.T) time.Duration {
	t.Helper()
	source := parts.Read(t, "../cmd/ratelimit/main.go")
	m := regexp.MustCompile(`const drainTimeout = ([0-9]+) \* time\.Second`).FindStringSubmatch(source)
	if m == nil {
		t.Fatal("cmd/ratelimit/main.go does not say how long it drains")
	}
	seconds, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds) * time.Second
}

func TestAPodHasTheTimeToEnd(t *testing.T) {
	t.Parallel()
	for name, m := range services(t) {
		t.Run(name, func(t *testing.T) {
			pod, sleep := m.deployment.Spec.Template.Spec, time.Duration(0)
			if c := m.ratelimit(t); c.Lifecycle != nil {
				// There is no program to run in the image: the kubelet sleeps by itself.
				sleep = time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
			}
			if pod.TerminationGracePeriodSeconds == nil {
				t.Fatal("the pod does not say how long it may take")
			}
			grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
			if need := sleep + drain(t) + 5*time.Second; grace < need {
				t.Errorf("grace period: got %v, want %v of sleep, %v of drain and some: %v", grace, sleep, drain(t), need)
			}
		})
	}
}

func TestReplicasShareTheirCountsOrThereIsOne(t *testing.T) {
	t.Parallel()
	for name, m := range services(t) {
		t.Run(name, func(t *testing.T) {
			env := variables(t, m.ratelimit(t), nil)
			inRedis := env["REDIS_URL"] != "" && env["BACKEND_TYPE"] != "memory"
			replicas := m.deployment.Spec.Replicas
			one := replicas != nil && *replicas == 1 && m.autoscaler == nil
			if one == inRedis {
				t.Errorf("counts in Redis: %t; one replica: %t", inRedis, one)
			}
		})
	}
}

func TestWhatEnvoyGatewayDeploysIsWhatItsSettingsSay(t *testing.T) {
	t.Parallel()
	for folder, file := range map[string]string{"envoy-gateway": "deployment.yaml", "envoy-gateway-memory": "deployment-memory.yaml"} {
		t.Run(folder, func(t *testing.T) {
			settings := readYAML(t, filepath.Join(folder, "envoy-gateway.yaml"))
			deployed := readYAML(t, filepath.Join("envoy-gateway", "testdata", file)) // the first document
			const kubernetes = "kubernetes"
			want := at(t, settings, "provider", kubernetes, "rateLimitDeployment", "container")
			got := at(t, deployed, "spec", "template", "spec", "containers", 0)
			for _, key := range []string{"image", "resources", "securityContext"} {
				if diff := cmp.Diff(at(t, want, key), at(t, got, key)); diff != "" {
					t.Errorf("%s (-settings +deployed); generate.sh writes the latter anew:\n%s", key, diff)
				}
			}
			asked, _ := at(t, want, "env").([]any)
			env, _ := at(t, got, "env").([]any)
			for _, variable := range asked {
				if !slices.ContainsFunc(env, func(v any) bool { return cmp.Equal(v, variable) }) {
					t.Errorf("%v is not deployed", variable)
				}
			}
			url := map[string]any{"name": "REDIS_URL", "value": at(t, settings, "rateLimit", "backend", "redis", "url")}
			if !slices.ContainsFunc(env, func(v any) bool { return cmp.Equal(v, any(url)) }) {
				t.Errorf("%v is not deployed", url)
			}
		})
	}
}

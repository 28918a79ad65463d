package deploy

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/test/parts"
)

// The chart, and an example of a chart that depends on it.
const (
	weirChart = "helm/weir"
	appChart  = "helm/examples/app"
)

// chartValues returns the documented sets of values by name: no values, each file of the examples,
// and each --set of docs/helm.md.
func chartValues(t *testing.T) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{"defaults": {}}
	files, err := filepath.Glob("helm/examples/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("got %v, %v; want two files with values at least", files, err)
	}
	documented := parts.Read(t, "../docs/helm.md")
	for _, file := range files {
		values, err := chartutil.ReadValuesFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(documented, "(../deploy/"+file+")") {
			t.Errorf("docs/helm.md does not have %s", file)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = values
	}
	for _, file := range regexp.MustCompile(`deploy/(helm/examples/\w+\.yaml)`).FindAllStringSubmatch(documented, -1) {
		if !slices.Contains(files, file[1]) {
			t.Errorf("docs/helm.md has %s, which is not there", file[1])
		}
	}
	for _, set := range regexp.MustCompile(`--set (\w\S*?)='(\S+)'`).FindAllStringSubmatch(documented, -1) {
		values, err := strvals.Parse(set[1] + "=" + set[2])
		if err != nil {
			t.Fatal(err)
		}
		all["set "+set[1]] = values
	}
	return all
}

// loadChart loads a chart. The chart appChart gets the chart of Weir, as `helm dependency update`
// would put it there.
func loadChart(t *testing.T, dir string) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if dir == appChart {
		c.AddDependency(loadChart(t, weirChart))
	}
	return c
}

// render renders a chart as `helm template edge` does, with the release's namespace limits.
func render(t *testing.T, dir string, values map[string]any) (map[string]string, error) {
	t.Helper()
	return renderAs(t, "edge", dir, values)
}

// renderAs is render for a release of that name.
func renderAs(t *testing.T, name, dir string, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := loadChart(t, dir)
	if err := chartutil.ProcessDependencies(c, values); err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	options := chartutil.ReleaseOptions{Name: name, Namespace: "limits", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(c, all)
}

// release renders a chart and decodes all of its objects.
func release(t *testing.T, dir string, values map[string]any) manifests {
	t.Helper()
	files, err := render(t, dir, values)
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, files)
}

// decoded decodes the objects of a rendered chart.
func decoded(t *testing.T, files map[string]string) manifests {
	t.Helper()
	var m manifests
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if text := files[name]; filepath.Ext(name) == ".yaml" && strings.TrimSpace(text) != "" {
			m.add(t, name, []byte(text))
		}
	}
	return m
}

func TestTheChartRendersToObjectsOfTheirKinds(t *testing.T) {
	t.Parallel()
	want := map[string]struct{ scaled, page, monitored bool }{
		"defaults": {scaled: true}, "set redis.urls": {scaled: true}, "memory": {}, "production": {scaled: true, page: true, monitored: true},
		"openshift": {scaled: true}, "tls": {scaled: true},
	}
	for name, values := range chartValues(t) {
		t.Run(name, func(t *testing.T) {
			want, known := want[name]
			if !known {
				t.Fatal("nothing says which objects these values make")
			}
			m := release(t, weirChart, values)
			if m.deployment == nil || m.service == nil || m.budget == nil || m.network == nil || len(m.configMaps) == 0 {
				t.Fatalf("got %+v; want a deployment, a service, a budget, a network policy and rules", m)
			}
			if got := m.autoscaler != nil; got != want.scaled {
				t.Errorf("autoscaler: got %t, want %t", got, want.scaled)
			}
			if b := m.budget.Spec; b.MinAvailable != nil || b.MaxUnavailable == nil || b.MaxUnavailable.IntVal != 1 {
				t.Errorf("budget: got %+v; want one unavailable pod, so that the drain of a node with the only pod does not wait", b)
			}
			checkLockedDown(t, m)
			checkSelectors(t, m)
			weir := m.container(t, "weir")
			if got := slices.Contains(weir.Args, "--admin-address=:8082"); got != want.page {
				t.Errorf("the page is on the pod's address: got %t, want %t", got, want.page)
			}
			if got := len(m.network.Spec.Ingress) == 3; got != want.page {
				t.Errorf("peers: got %v; want some of the page: %t", m.network.Spec.Ingress, want.page)
			}
			if got := len(m.custom) > 1; got != want.monitored { // one is the ConfigMap of the rules
				t.Fatalf("custom objects: got %q, want a ServiceMonitor: %t", m.custom, want.monitored)
			}
			if want.monitored {
				checkMonitor(t, m)
				checkAlertsAndBoard(t, m)
			}
			grace, sleep := *m.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds, weir.Lifecycle.PreStop.Sleep.Seconds
			if !slices.Contains(weir.Args, "--drain-timeout=10s") || grace < sleep+10+5 {
				t.Errorf("grace period: got %d s, want %d s of sleep, 10 s of drain and some", grace, sleep)
			}
		})
	}
}

// checkSelectors holds that the objects of a release select its pods.
func checkSelectors(t *testing.T, m manifests) {
	t.Helper()
	labels := m.deployment.Spec.Template.Labels
	selectors := map[string]map[string]string{
		"deployment": m.deployment.Spec.Selector.MatchLabels, "service": m.service.Spec.Selector,
		"budget": m.budget.Spec.Selector.MatchLabels, "network policy": m.network.Spec.PodSelector.MatchLabels,
	}
	for _, spread := range m.deployment.Spec.Template.Spec.TopologySpreadConstraints {
		selectors[spread.TopologyKey] = spread.LabelSelector.MatchLabels
	}
	for name, selector := range selectors {
		if len(selector) != 2 {
			t.Errorf("%s: selects %v, want the name and the release", name, selector)
		}
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s: selects %s=%s, which the pod is not", name, key, value)
			}
		}
	}
	if m.autoscaler != nil && (m.autoscaler.Spec.ScaleTargetRef.Name != m.deployment.Name || m.deployment.Spec.Replicas != nil) {
		t.Errorf("the autoscaler scales %v, and the deployment says %v replicas", m.autoscaler.Spec.ScaleTargetRef, m.deployment.Spec.Replicas)
	}
	ports := m.container(t, "weir").Ports
	for _, port := range m.service.Spec.Ports {
		if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool {
			return p.Name == port.TargetPort.StrVal && p.ContainerPort == port.Port
		}) {
			t.Errorf("port %s of the service leads nowhere", port.Name)
		}
	}
	for _, rule := range m.network.Spec.Ingress {
		for _, port := range rule.Ports {
			if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == port.Port.StrVal }) {
				t.Errorf("the network policy admits to the port %v, which the container does not have", port.Port)
			}
		}
	}
}

// checkMonitor decodes the ServiceMonitor strictly, and holds that it selects the service.
func checkMonitor(t *testing.T, m manifests) {
	t.Helper()
	for _, document := range m.custom {
		if !strings.Contains(document, "kind: ServiceMonitor") {
			continue
		}
		var monitor monitoringv1.ServiceMonitor
		if err := yaml.UnmarshalStrict([]byte(document), &monitor); err != nil {
			t.Fatal(err)
		}
		for key, value := range monitor.Spec.Selector.MatchLabels {
			if m.service.Labels[key] != value {
				t.Errorf("the monitor selects %s=%s, which the service is not", key, value)
			}
		}
		if got := monitor.Spec.Endpoints[0]; got.Port != "http" || got.Path != "/metrics" || monitor.Labels["release"] != "prometheus" {
			t.Errorf("port %q, path %q and labels %v, want http, /metrics and the release of Prometheus", got.Port, got.Path, monitor.Labels)
		}
	}
}

// checkAlertsAndBoard holds that the chart has the alerts and the board of this repository, whole.
func checkAlertsAndBoard(t *testing.T, m manifests) {
	t.Helper()
	found := false
	for _, document := range m.custom {
		if !strings.Contains(document, "kind: PrometheusRule") {
			continue
		}
		found = true
		var object monitoringv1.PrometheusRule
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		var want monitoringv1.PrometheusRuleSpec
		if err := yaml.UnmarshalStrict([]byte(parts.Read(t, "prometheus/weir.rules.yaml")), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, object.Spec); diff != "" || len(want.Groups) < 3 || object.Labels["release"] != "prometheus" {
			t.Errorf("labels %v, and alerts (-file +chart):\n%s", object.Labels, diff)
		}
	}
	board := m.configMap(t, "edge-weir-board")
	if !found || board.Labels["grafana_dashboard"] != "1" || board.Data["weir.json"] != parts.Read(t, "grafana/weir.json") {
		t.Errorf("PrometheusRule: %t; the board has labels %v and %d bytes, want grafana/weir.json", found, board.Labels, len(board.Data["weir.json"]))
	}
}

func TestTheChartPassesHelmsLint(t *testing.T) {
	t.Parallel()
	for name, values := range chartValues(t) {
		linter := lint.All(weirChart, values, "limits", true)
		for _, message := range linter.Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, message)
			}
		}
	}
}

func TestALargeNumberInRulesOfTheChartStaysANumber(t *testing.T) {
	t.Parallel()
	m := release(t, weirChart, chartValues(t)["production"])
	rules := m.configMap(t, "edge-weir-rules").Data["edge.yaml"]
	if !strings.Contains(rules, "requests_per_unit: 10000000\n") {
		t.Errorf("got the rules %s; want 10000000", rules)
	}
}

// TestTheContainersOfTheChartStart runs the containers as processes, and asks the kubelet's probes.
func TestTheContainersOfTheChartStart(t *testing.T) {
	t.Parallel()
	all := chartValues(t)
	releases := map[string]manifests{"app": release(t, appChart, map[string]any{})}
	for name, values := range all {
		releases[name] = release(t, weirChart, values)
	}
	shared, err := chartutil.ReadValues([]byte("weir: {sidecar: {store: redis, stateVolume: weir-state}, redis: {existingSecret: weir-redis}}"))
	if err != nil {
		t.Fatal(err)
	}
	releases["app on Redis"] = release(t, appChart, shared)
	releases["rules of Windows"] = release(t, weirChart, map[string]any{
		"store": "memory",
		"rules": map[string]any{"edge.yaml": "\ufeffdomain: edge\r\ndescriptors:\r\n- key: client\r\n  rate_limit: {unit: day, requests_per_unit: 5}\r\n"},
	})
	for name, m := range releases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.service == nil {
				checkLockedDown(t, m)
				if c := m.deployment.Spec.Template.Spec.InitContainers[0]; c.Name != "weir" || c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
					t.Errorf("init container %s: got restartPolicy %v, want Always: that makes weir a sidecar", c.Name, c.RestartPolicy)
				}
				rules := parts.Read(t, "k8s/rules/edge.yaml")
				m.configMaps = []*corev1.ConfigMap{{Data: map[string]string{"edge.yaml": rules}}}
				m.configMaps[0].Name = "weir-rules"
			}
			c := m.container(t, "weir")
			s := startContainer(t, m, c)
			for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				checkProbePort(t, c, probe)
				awaitPage(t, "http://"+s.HTTP+probe.HTTPGet.Path, 200, "OK")
			}
		})
	}
}

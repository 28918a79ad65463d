package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// TestTheChartRefusesWrongValues names the place of each mistake, as Helm reports it.
func TestTheChartRefusesWrongValues(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ values, message string }{
		"a misspelled key":              {"autoscalling: {enabled: false}", "'autoscalling' not allowed"},
		"a store":                       {"store: disk", "/store"},
		"another database":              {"redis: {urls: [\"http://redis\"]}", "/redis/urls/0"},
		"a password in a URL":           {"redis: {urls: [\"redis://:secret@redis\"]}", "/redis/urls/0"},
		"two URLs in one":               {"redis: {urls: [\"redis://a\\n--admin-address=:1\"]}", "/redis/urls/0"},
		"no URL":                        {"redis: {urls: []}", "/redis/urls"},
		"a number of replicas":          {"replicas: 0", "/replicas"},
		"a text for a number":           {"replicas: \"1\"", "/replicas': got string, want integer"},
		"a text for a switch":           {"autoscaling: {enabled: \"false\"}", "/autoscaling/enabled': got string, want boolean"},
		"a number for a text":           {"image: {tag: 1.10}", "/image/tag': got number, want string"},
		"a text for a list":             {"redis: {urls: \"redis://redis\"}", "/redis/urls': got string, want array"},
		"a number for a label":          {"podLabels: {team: 7}", "/podLabels/team': got number, want string"},
		"a rule file's name":            {"rules: {edge: {domain: edge}}", "/rules': additional properties 'edge' not allowed"},
		"a rule file in another folder": {"rules: {\"../edge.yaml\": {domain: edge}}", "/rules': additional properties '../edge.yaml' not allowed"},
		"rules that are a list":         {"rules: {edge.yaml: [1]}", "/rules/edge.yaml"},
		"rules that are nothing":        {"rules: {edge.yaml: null}", "/rules/edge.yaml': got null"},
		"rules of two places":           {"rules: {edge.yaml: {domain: edge}}\nexistingRules: mine", "rules and existingRules are both set"},
		"a level":                       {"logLevel: loud", "/logLevel"},
		"an argument":                   {"extraArgs: [pprof]", "/extraArgs/0"},
		"a host with a port":            {"admin: {hosts: [\"weir:80\"]}", "/admin/hosts/0"},
		"a digest":                      {"image: {digest: \"sha256:12\"}", "/image/digest"},
		"resources without them":        {"resources: {requests: {cpu: 1}, limit: {}}", "'limit' not allowed"},
		"a name with a dot":             {"fullnameOverride: weir.edge", "/fullnameOverride"},
		"a name with a digit first":     {"fullnameOverride: \"2weir\"", "/fullnameOverride"},
		"a name of 64 letters":          {"fullnameOverride: " + strings.Repeat("a", 64), "/fullnameOverride"},
		"a label with a space":          {"nameOverride: a b", "/nameOverride"},
		"a label of the selector":       {"podLabels: {app.kubernetes.io/name: x}", "podLabels has app.kubernetes.io/name, by which"},
		"a label of the board":          {"board: {labels: {helm.sh/chart: x}}", "board.labels has helm.sh/chart"},
		"a label of the alerts":         {"prometheusRule: {labels: {helm.sh/chart: x}}", "prometheusRule.labels has helm.sh/chart"},
		"a volume without a name":       {"extraVolumes: [{emptyDir: {}}]", "/extraVolumes/0': missing property 'name'"},
		"a mount without a path":        {"extraVolumeMounts: [{name: tls}]", "/extraVolumeMounts/0': missing property 'mountPath'"},
		"a word in a probe":             {"livenessProbe: {period: 3}", "/livenessProbe': additional properties 'period' not allowed"},
		"a strategy":                    {"strategy: {type: Rolling}", "/strategy/type"},
		"no time for the drain":         {"terminationGracePeriodSeconds: 10", "/terminationGracePeriodSeconds"},
		"an account's name":             {"serviceAccount: {name: Weir}", "/serviceAccount/name"},
		"a spread without its skew":     {"topologySpreadConstraints: [{topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]", "missing property 'maxSkew'"},
		"a label of the chart":          {"serviceMonitor: {labels: {helm.sh/chart: x}}", "serviceMonitor.labels has helm.sh/chart"},
		"a socket in the root":          {"sidecar: {socket: /rls.sock}", "/sidecar/socket"},
		"a socket with a long path":     {"sidecar: {socket: /run/" + strings.Repeat("a", 110) + "}", "/sidecar/socket"},
		"a volume's name":               {"sidecar: {rulesVolume: Rules}", "/sidecar/rulesVolume"},
		"fewest above most":             {"autoscaling: {minReplicas: 20}", "autoscaling.minReplicas is 20, must be at most autoscaling.maxReplicas, 10"},
		"no request to scale by":        {"resources: {requests: {cpu: null}}", "autoscaling needs resources.requests.cpu"},
	} {
		parsed, err := chartutil.ReadValues([]byte(row.values))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render(t, weirChart, parsed); err == nil || !strings.Contains(err.Error(), row.message) {
			t.Errorf("%s: got %v, want %s", name, err, row.message)
		}
	}
}

// TestTheChartMissesEachValueByName takes away each value, which a null of the user does, also in a
// map. In objects of Kubernetes a null takes a default away.
func TestTheChartMissesEachValueByName(t *testing.T) {
	t.Parallel()
	c := loadChart(t, weirChart)
	var remove func(at []string, values map[string]any)
	remove = func(at []string, values map[string]any) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			path := append(slices.Clone(at), key)
			text := strings.Join(path, ": {") + ": null" + strings.Repeat("}", len(at))
			parsed, err := chartutil.ReadValues([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := render(t, weirChart, parsed); err == nil || !strings.Contains(err.Error(), "missing property '"+key+"'") {
				t.Errorf("%s: got %v, want the name of the missing value", text, err)
			}
			whole := strings.HasSuffix(key, "Probe") || strings.HasSuffix(strings.ToLower(key), "securitycontext") ||
				slices.Contains([]string{"requests", "limits", "strategy"}, key) || path[0] == "board"
			if inner, ok := values[key].(map[string]any); ok && !whole {
				remove(path, inner)
			}
		}
	}
	var values map[string]any
	for _, file := range c.Raw {
		if file.Name == "values.yaml" {
			if err := yaml.Unmarshal(file.Data, &values); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(values) < 20 {
		t.Fatalf("got %d values, want many", len(values))
	}
	remove(nil, values)
}

func TestEveryValueOfTheChartHasASchema(t *testing.T) {
	t.Parallel()
	c := loadChart(t, weirChart)
	if err := chartutil.ValidateAgainstSingleSchema(c.Values, c.Schema); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	var schema map[string]any
	if err := yaml.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	properties, _ := schema["properties"].(map[string]any)
	delete(properties, "global") // which Helm adds
	if diff := cmp.Diff(slices.Sorted(maps.Keys(c.Values)), slices.Sorted(maps.Keys(properties))); diff != "" {
		t.Errorf("values and schema (-values +schema):\n%s", diff)
	}
}

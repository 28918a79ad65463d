package deploy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chartutil"
)

// Kubernetes allows names such as 123 and 1e5, which are numbers to YAML.
func TestNamesThatLookLikeNumbersStayTexts(t *testing.T) {
	t.Parallel()
	values, err := chartutil.ReadValues([]byte(`
nameOverride: "123"
existingRules: "1234"
priorityClassName: "true"
image: {pullSecrets: ["1e5"]}
redis: {existingSecret: "12", caSecret: "0x1f"}
admin: {existingSecret: "7"}
`))
	if err != nil {
		t.Fatal(err)
	}
	m := release(t, weirChart, values)
	checkSelectors(t, m)
	pod := m.deployment.Spec.Template
	got := []string{pod.Labels["app.kubernetes.io/name"], pod.Spec.PriorityClassName, pod.Spec.ImagePullSecrets[0].Name}
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil {
			got = append(got, v.ConfigMap.Name)
		} else if v.Secret != nil {
			got = append(got, v.Secret.SecretName)
		}
	}
	if diff := cmp.Diff([]string{"123", "true", "1e5", "1234", "7", "12", "0x1f"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// Rule files may be any text: a block of YAML takes its indentation from the first line, unless it
// is told.
func TestRuleFilesOfTheChartStayAsTheyAre(t *testing.T) {
	t.Parallel()
	files := map[string]any{
		"indented.yaml": "  domain: edge\n  descriptors: []\n# a comment at the margin\n",
		"quotes.csv":    "value,requests_per_unit\n\"a: 'b', #c\",5\n{{ .Values }},6\n",
		"empty.csv":     "",
		"lines.csv":     "a,1\n\n\nb,2\n",
		"windows.csv":   "\ufeffa,1\r\nb,2\r\n",
		"spaces.csv":    "\ta,1  \n\n\n",
		"texts.yaml":    "a: \"<&>\\n\" # \u2028 é 漢\n",
	}
	m := release(t, weirChart, map[string]any{"rules": files})
	got := make(map[string]any)
	for name, text := range m.configMaps[0].Data {
		got[name] = text
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestAnAnnotationOfTheUserReplacesOneOfTheChart(t *testing.T) {
	t.Parallel()
	m := release(t, weirChart, map[string]any{
		"podAnnotations": map[string]any{"prometheus.io/port": "9000", "team": "edge"}, "podLabels": map[string]any{"app.kubernetes.io/version": "7"},
	})
	want := map[string]string{
		"kubectl.kubernetes.io/default-container": "weir", "prometheus.io/scrape": "true", "prometheus.io/port": "9000",
		"prometheus.io/path": "/metrics", "team": "edge",
	}
	if diff := cmp.Diff(want, m.deployment.Spec.Template.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if got := m.deployment.Spec.Template.Labels["app.kubernetes.io/version"]; got != "7" {
		t.Errorf("label: got %q, want 7", got)
	}
}

func TestTheSidecarOfTheChartTakesAnyPath(t *testing.T) {
	t.Parallel()
	m := release(t, appChart, map[string]any{"weir": map[string]any{"sidecar": map[string]any{"socket": "/run/a: b, c/rls.sock"}}})
	weir := m.container(t, "weir")
	if got := weir.Args[3]; got != "--grpc-socket=/run/a: b, c/rls.sock" {
		t.Errorf("argument %q", got)
	}
	if got := weir.VolumeMounts[1].MountPath; got != "/run/a: b, c" {
		t.Errorf("directory %q", got)
	}
}

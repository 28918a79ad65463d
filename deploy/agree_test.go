package deploy

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// readAll returns all documents of a YAML file.
func readAll(t *testing.T, file string) list {
	t.Helper()
	return documents(t, file, parts.Read(t, file))
}

// documents returns all documents of a YAML text.
func documents(t *testing.T, name, text string) list {
	t.Helper()
	var all list
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var document any
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		all = append(all, document)
	}
}

func TestRulesOfThePlatformsLoadAndTheirPodsMountThem(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"central", "istio", "contour"} {
		t.Run(folder, func(t *testing.T) {
			load(t, filepath.Join(folder, "rules"))
			m := buildManifests(t, folder)
			volume := m.deployment.Spec.Template.Spec.Volumes[0]
			files, err := filepath.Glob(filepath.Join(folder, "rules", "*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("got %v, %v; want one file of rules", files, err)
			}
			want := parts.Read(t, files[0])
			data := m.configMap(t, volume.ConfigMap.Name).Data
			if diff := cmp.Diff(map[string]string{filepath.Base(files[0]): want}, data); diff != "" {
				t.Errorf("what is mounted (-file +ConfigMap):\n%s", diff)
			}
		})
	}
}

func TestEnvoyFiltersNameTheServiceAndItsDomain(t *testing.T) {
	t.Parallel()
	m, rules := buildManifests(t, "istio"), load(t, filepath.Join("istio", "rules"))
	filters := readAll(t, "istio/envoyfilters.yaml")
	filter := at(t, filters[0], "spec", "configPatches", 0, "patch", "value", "typed_config")
	if domain := as[string](t, filter, "domain"); rules.Domain(domain) == nil {
		t.Errorf("domain: there are no rules for %q", domain)
	}
	host := fmt.Sprintf("%s.%s.svc.cluster.local", m.service.Name, m.service.Namespace)
	want := table{"cluster_name": "outbound|8081||" + host, "authority": host}
	if diff := cmp.Diff(any(want), at(t, filter, "rate_limit_service", "grpc_service", "envoy_grpc")); diff != "" {
		t.Errorf("where it is (-Service +EnvoyFilter):\n%s", diff)
	}
	// By the name of the port Istio knows the protocol.
	if port := m.service.Spec.Ports[1]; port.Port != 8081 || !strings.HasPrefix(port.Name, "grpc-") {
		t.Errorf("port %d of the service: got name %q, want grpc-…", port.Port, port.Name)
	}
	if got := m.configMaps[0].Namespace; got != m.deployment.Namespace || got != m.service.Namespace {
		t.Errorf("namespaces: the ConfigMap's is %q, the Deployment's %q, the Service's %q", got, m.deployment.Namespace, m.service.Namespace)
	}
	gateway := at(t, filters[0], "spec", "workloadSelector")
	if diff := cmp.Diff(gateway, at(t, filters[1], "spec", "workloadSelector")); diff != "" {
		t.Errorf("whom they are for (-the filter +the descriptors):\n%s", diff)
	}
}

func TestContourIsToldWhereTheServiceIsAndItsDomain(t *testing.T) {
	t.Parallel()
	m, rules := buildManifests(t, "contour"), load(t, filepath.Join("contour", "rules"))
	told := at(t, readYAML(t, "contour/contour.yaml"), "rateLimitService")
	if domain := as[string](t, told, "domain"); rules.Domain(domain) == nil {
		t.Errorf("domain: there are no rules for %q", domain)
	}
	extension := readYAML(t, "contour/extensionservice.yaml")
	name := at(t, extension, "metadata", "name")
	if got, want := at(t, told, "extensionService"), fmt.Sprintf("%s/%s", m.service.Namespace, name); got != want {
		t.Errorf("extensionService: got %q, want %q", got, want)
	}
	want := list{table{"name": m.service.Name, "port": int(m.service.Spec.Ports[0].Port)}}
	if diff := cmp.Diff(any(want), at(t, extension, "spec", "services")); diff != "" {
		t.Errorf("services of the ExtensionService (-Service +ExtensionService):\n%s", diff)
	}
	if protocol, timeout := at(t, extension, "spec", "protocol"), at(t, extension, "spec", "timeoutPolicy", "response"); protocol != "h2c" || timeout != "100ms" {
		t.Errorf("got %v within %v, want h2c within 100ms", protocol, timeout)
	}

	// The ContourConfiguration says the same in another form.
	crd := as[table](t, readYAML(t, "contour/contourconfiguration.yaml"), "spec", "rateLimitService")
	crd["extensionService"] = fmt.Sprintf("%s/%s", at(t, crd, "extensionService", "namespace"), at(t, crd, "extensionService", "name"))
	if diff := cmp.Diff(told, any(crd)); diff != "" {
		t.Errorf("rate limit service (-contour.yaml +ContourConfiguration):\n%s", diff)
	}
}

// TestWhatEnvoyGatewayMakesOfThePolicyHasItsLimits holds that the files of testdata are of the
// policy as it is.
func TestWhatEnvoyGatewayMakesOfThePolicyHasItsLimits(t *testing.T) {
	t.Parallel()
	const policy, made = "envoy-gateway/policy.yaml", "envoy-gateway/testdata/rules.yaml"
	type limit struct {
		requests int
		unit     string
		shadow   bool
	}
	asked, found := []limit{}, []limit{}
	for _, rule := range as[list](t, readAll(t, policy)[3], "spec", "rateLimit", "global", "rules") {
		requests, _ := at(t, rule, "limit", "requests").(int)
		asked = append(asked, limit{requests, strings.ToUpper(as[string](t, rule, "limit", "unit")), as[table](t, rule)["shadowMode"] == true})
	}
	var walk func(v any)
	walk = func(v any) {
		m, _ := v.(table)
		if l, ok := m["rate_limit"].(table); ok {
			requests, _ := l["requests_per_unit"].(int)
			unit, _ := l["unit"].(string)
			found = append(found, limit{requests, unit, m["shadow_mode"] == true})
		}
		below, _ := m["descriptors"].(list)
		for _, descriptor := range below {
			walk(descriptor)
		}
	}
	for _, document := range readAll(t, made) {
		walk(document)
	}
	if diff := cmp.Diff(asked, found, cmp.AllowUnexported(limit{})); diff != "" {
		t.Errorf("limits (-policy +rules); generate.sh writes the latter anew:\n%s", diff)
	}

	// All files of testdata have the version whose types check the policy.
	version := versionOf(t, "github.com/envoyproxy/gateway")
	files, err := filepath.Glob("envoy-gateway/testdata/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("got %v, %v; want four files", files, err)
	}
	for _, file := range files {
		content := parts.Read(t, file)
		if first, _, _ := strings.Cut(content, "\n"); first != "# Written by generate.sh with Envoy Gateway "+version+"." {
			t.Errorf("%s: got %q, want it to be written with %q", file, first, version)
		}
	}
}

// versionOf returns the version of a module whose types crds uses.
func versionOf(t *testing.T, module string) string {
	t.Helper()
	mod := parts.Read(t, "crds/go.mod")
	_, version, found := strings.Cut(mod, "\t"+module+" ")
	if !found {
		t.Fatalf("crds/go.mod has no %s", module)
	}
	version, _, _ = strings.Cut(version, "\n")
	return version
}

func TestTheDocumentNamesTheVersionsThatAreTested(t *testing.T) {
	t.Parallel()
	text := parts.Read(t, "../docs/platforms.md")
	said := strings.Join(strings.Fields(text), " ")
	for name, module := range map[string]string{
		"Envoy Gateway v": "github.com/envoyproxy/gateway", "Istio ": "istio.io/api", "Contour ": "github.com/projectcontour/contour",
	} {
		numbers := strings.Split(strings.TrimPrefix(versionOf(t, module), "v"), ".")
		if want := name + numbers[0] + "." + numbers[1]; !strings.Contains(said, want) {
			t.Errorf("docs/platforms.md does not say %q", want)
		}
	}
}

package deploy

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// crds gives documents to the program of the folder crds and returns the program's output.
func crds(t *testing.T, documents ...string) string {
	t.Helper()
	run := exec.CommandContext(t.Context(), program(t, "crds"))
	run.Dir = "crds" // the program asks for the schemas there
	run.Stdin = strings.NewReader(strings.Join(documents, "\n---\n"))
	out, err := run.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}

// customDocuments returns all objects that are not Kubernetes' own: from the folders, and from the
// files beside them.
func customDocuments(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, folder := range folders(t) {
		all = append(all, buildManifests(t, folder).custom...)
	}
	for _, file := range []string{"envoy-gateway/policy.yaml", "envoy-gateway/holds.yaml", "ai-gateway/holds.yaml", "contour/httpproxy.yaml", "contour/contourconfiguration.yaml"} {
		all = append(all, readManifests(t, file).custom...)
	}
	contour := parts.Read(t, "contour/contour.yaml")
	return append(all, inConfigMap("contour.yaml", contour))
}

// inConfigMap returns a ConfigMap with a file.
func inConfigMap(name, text string) string {
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata:\n  " + name + ": |\n" + indented + "\n"
}

func TestEveryProjectReadsWhatIsForIt(t *testing.T) {
	t.Parallel()
	all := customDocuments(t)
	kinds := make(map[string]int)
	for _, document := range all {
		_, kind, _ := strings.Cut("\n"+document, "\nkind: ")
		kind, _, _ = strings.Cut(kind, "\n")
		kinds[kind]++
	}
	for kind, least := range map[string]int{
		"BackendTrafficPolicy": 1, "EnvoyPatchPolicy": 2, "HTTPRoute": 1, "Gateway": 1, "GatewayClass": 1, "EnvoyFilter": 2, "ExtensionService": 1, "HTTPProxy": 1,
		"ContourConfiguration": 1, "ConfigMap": 8,
	} {
		if kinds[kind] < least {
			t.Errorf("objects of kind %s: got %d, want %d at least", kind, kinds[kind], least)
		}
	}
	if said := crds(t, all...); said != "" {
		t.Error(said)
	}
}

// TestEveryProjectRefusesMistakes shows that the test above can fail: each mistake is one that
// reads well.
func TestEveryProjectRefusesMistakes(t *testing.T) {
	t.Parallel()
	whole := strings.Join(customDocuments(t), "\n---\n")
	tests := []struct{ right, wrong, said string }{
		{"unit: Hour", "unit: Hours", "should be one of [Second Minute Hour Day Week Month Year]"},
		{"op: add", "op: insert", "spec.jsonPatches[0].operation.op in body should be one of [add remove replace move copy test]"},
		{"shadowMode: true", "shadow: true", `unknown field "spec.rateLimit.global.rules[2].shadow"`},
		{"operation: INSERT_BEFORE", "operation: INSERT_ABOVE", "should be one of [INVALID MERGE ADD"},
		{"subFilter:", "subfilter:", `unknown field "subfilter"`},
		{"protocol: h2c", "protocol: h2x", "spec.protocol in body should be one of [h2 h2c]"},
		{"remoteAddress: {}", "remoteAdress: {}", `unknown field "spec.virtualhost.rateLimitPolicy.global.descriptors[0].entries[0].remoteAdress"`},
		{"enableXRateLimitHeaders: true", "enableXRatelimitHeaders: true", "field enableXRatelimitHeaders not found"},
		{"rateLimitHpa:", "rateLimitHPA:", `unknown field "provider.kubernetes.rateLimitHPA"`},
		{"kind: GatewayClass\n", "kind: GatewayClasses\n", "GatewayClasses eg: gateway.networking.k8s.io/v1: nothing checks objects of this kind"},
		// Envoy Gateway wants a Redis, also where nobody asks it (envoy-gateway-memory).
		{"url: redis.invalid:6379", "tls: {}", "exactly one of ratelimit redis url or urlRef must be set"},
	}
	for _, test := range tests {
		if !strings.Contains(whole, test.right) {
			t.Errorf("nothing says %q", test.right)
		}
		whole = strings.ReplaceAll(whole, test.right, test.wrong)
	}
	said := crds(t, whole)
	for _, test := range tests {
		if !strings.Contains(said, test.said) {
			t.Errorf("%s for %s: it does not say %q", test.wrong, test.right, test.said)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
}

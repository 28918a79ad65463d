package deploy

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TestNamesOfTheChartAreNamesOfKubernetes renders releases with each name that Helm allows: up to
// 53 characters of a-z, 0-9, - and dots.
func TestNamesOfTheChartAreNamesOfKubernetes(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"edge", "2.edge", "123", "1e5", "true", "a.b-c", strings.Repeat("a", 53), strings.Repeat("a-", 26) + "b", strings.Repeat("1.", 26) + "1"} {
		for name, values := range map[string]map[string]any{
			"nothing":               {},
			"a name":                {"nameOverride": "Limits.v2_x"},
			"a name that is part":   {"nameOverride": "e"},
			"a long name":           {"nameOverride": strings.Repeat("x.", 31) + "x"},
			"a full name":           {"fullnameOverride": "limits"},
			"a full name, in full":  {"fullnameOverride": strings.Repeat("a", 63)},
			"a full name of digits": {"fullnameOverride": "a1"},
		} {
			t.Run(fmt.Sprintf("%s with %s", release, name), func(t *testing.T) {
				files, err := renderAs(t, release, weirChart, values)
				if err != nil {
					t.Fatal(err)
				}
				m := decoded(t, files)
				checkSelectors(t, m)
				if mistakes := validation.IsDNS1035Label(m.service.Name); mistakes != nil {
					t.Errorf("service %s: %v", m.service.Name, mistakes)
				}
				for _, name := range []string{m.deployment.Name, m.autoscaler.Name, m.budget.Name, m.network.Name, m.configMaps[0].Name} {
					if mistakes := validation.IsDNS1123Subdomain(name); mistakes != nil {
						t.Errorf("%s: %v", name, mistakes)
					}
				}
				for key, value := range m.deployment.Labels {
					if mistakes := validation.IsValidLabelValue(value); mistakes != nil {
						t.Errorf("label %s: %v", key, mistakes)
					}
				}
			})
		}
	}
}

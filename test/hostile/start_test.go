package hostile

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// A start must fit below the limit of the chart. A reload has the old rules beside the new ones.
func TestAStartWithManyRulesTakesLittleMemory(t *testing.T) {
	const rules, most = 100_000, 150_000_000
	var doc strings.Builder
	doc.WriteString("domain: many\ndescriptors:\n")
	for i := range rules {
		fmt.Fprintf(&doc, "  - key: customer_identifier\n    value: customer-%08d\n    rate_limit:\n      unit: minute\n      requests_per_unit: %d\n",
			i, 1+i%1000)
	}
	file := filepath.Join(t.TempDir(), "many.yaml")
	writeFile(t, file, doc.String(), 0o600)
	s := start(t, "--rules="+file)
	t.Logf("%d rules in %.1f MB took up to %.1f MB", rules, float64(doc.Len())/1e6, float64(s.peak())/1e6)
	if got := s.peak(); got > most {
		t.Errorf("a start with %d rules took up to %d bytes, want at most %d", rules, got, most)
	}
}

package drive

import (
	"strings"
	"testing"
	"time"
)

func TestCPUTimeIsUserPlusSystem(t *testing.T) {
	const stat = "4711 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 20 0"
	got, err := cpuOf(stat)
	if want := 3 * time.Second; err != nil || got != want {
		t.Errorf("cpuOf: got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 1 2 3", strings.Replace(stat, "250", "x", 1)} {
		if got, err := cpuOf(bad); err == nil {
			t.Errorf("cpuOf(%q): got %v; want an error", bad, got)
		}
	}
}

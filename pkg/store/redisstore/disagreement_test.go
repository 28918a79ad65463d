package redisstore

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the name Redis gives to scripts
	"encoding/hex"
	"log/slog"
	"strings"
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// disagreeing returns a store whose script has a bug: one text of it is another.
func disagreeing(t *testing.T, text, other string) (*Store, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	s, _ := given(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(s.script, text) {
		t.Fatalf("the script has no %q", text)
	}
	s.script = strings.ReplaceAll(s.script, text, other)
	sum := sha1.Sum([]byte(s.script)) //nolint:gosec // see the import
	s.sha = hex.EncodeToString(sum[:])
	return s, &log
}

const fitsText = "local fits = hits <= 0 or count + hits <= requests"

func TestVerdictOfTheScriptCountsWherePackageAlgorithmsDisagrees(t *testing.T) {
	for _, tt := range []struct {
		name     string
		other    string // in place of fitsText
		admitted bool
	}{
		{"the_script_admits_more", "local fits = true", true},
		{"the_script_admits_less", "local fits = false", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, log := disagreeing(t, fitsText, tt.other)
			one, two := hit("one", perAge(algorithms.FixedWindow, 1)), hit("two", perAge(algorithms.FixedWindow, 100))
			two.Rule = 1
			if tt.admitted {
				wants(t, true, s, one)
			}
			n := uint64(0)
			for _, charges := range [][]store.Charge{{one}, {one, two}} {
				n++
				d := wants(t, tt.admitted, s, charges...)
				if got := store.Admitted(charges, d); got != tt.admitted {
					t.Errorf("%d charges: the decisions %+v say %v; want %v", len(charges), d, got, tt.admitted)
				}
				if !tt.admitted && d[0].RetryAfter <= 0 {
					t.Errorf("%d charges: denied with %+v; want a wait", len(charges), d[0])
				}
				if got := s.Stats().Disagreements; got != n {
					t.Errorf("%d disagreements; want %d", got, n)
				}
			}
			if got := strings.Count(log.String(), "decided differently"); got < 1 || got > 2 || !strings.Contains(log.String(), "level=WARN") {
				t.Errorf("logged %d lines; want one a second:\n%s", got, log)
			}
		})
	}
}

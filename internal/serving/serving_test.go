package serving

import (
	"testing"

	"github.com/weirproxy/weir/internal/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"pkg/...", "proto/...", "internal/durations", "internal/certificates"},
		Third: []string{
			"github.com/prometheus/client_golang/prometheus", "github.com/KimMachineGun/automemlimit/memlimit",
			"golang.org/x/sync/errgroup", "google.golang.org/grpc",
		},
		Never: []string{"testing", "github.com/spf13", "github.com/weirproxy/weir/pkg/statistics"},
	})
}

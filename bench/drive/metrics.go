package drive

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// Metrics are the values of a sidecar's page of metrics at one moment.
type Metrics struct{ page string }

// ReadMetrics reads the metrics of the sidecar with that HTTP address.
func ReadMetrics(ctx context.Context, address string) (Metrics, error) {
	_, page, err := parts.Page(ctx, http.MethodGet, "http://"+address+"/metrics", "")
	return Metrics{page}, err
}

// Sum adds the samples of a metric up, of all its labels.
func (m Metrics) Sum(name string) float64 {
	total := 0.0
	for line := range strings.Lines(m.page) {
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || line[:end] != name && !strings.HasPrefix(line, name+"{") {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64); err == nil {
			total += v
		}
	}
	return total
}

// AwaitRedis waits until the sidecar with that HTTP address asks Redis.
func AwaitRedis(ctx context.Context, address string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := ReadMetrics(ctx, address)
		if err != nil {
			return err
		}
		if m.Sum("weir_store_up") == 1 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the sidecar has not found Redis: %w", ctx.Err())
		}
	}
}

package drive

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// Metrics are a sidecar's page of metrics at one moment, in Prometheus's text format.
type Metrics string

// ReadMetrics reads the metrics of the sidecar with that HTTP address.
func ReadMetrics(ctx context.Context, address string) (Metrics, error) {
	_, page, err := parts.Page(ctx, http.MethodGet, "http://"+address+"/metrics", "")
	return Metrics(page), err
}

// Sum adds up the samples of a metric that have all these labels, each written as name="value".
func (m Metrics) Sum(name string, labels ...string) float64 {
	total := 0.0
	for line := range strings.Lines(string(m)) {
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || line[:end] != name && !strings.HasPrefix(line, name+"{") {
			continue
		}
		if slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(line[:end], label) }) {
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

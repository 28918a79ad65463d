// Package metrics makes Prometheus collectors: from a list of metrics, and a function that reads
// all values at each scrape. A collector never panics. A value of an unlisted metric, or with the
// wrong labels, becomes an error of that scrape.
package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/pkg/store"
)

// Metric is one metric of a collector.
type Metric struct {
	name, help string
	labels     []string
}

// New describes a metric by its name, without the prefix of the collector, its help, and the names
// of its labels.
func New(name, help string, labels ...string) Metric { return Metric{name, help, labels} }

// NewCollector returns a collector of metrics. All names get the prefix, and all series the labels
// always, which may be nil. read reads all values; scrapes may call it concurrently.
func NewCollector(prefix string, always prometheus.Labels, read func(Scrape), all ...Metric) prometheus.Collector {
	c := &collector{read: read, descs: make(map[string]*prometheus.Desc, len(all))}
	for _, m := range all {
		c.descs[m.name] = prometheus.NewDesc(prefix+m.name, m.help, m.labels, always)
	}
	return c
}

type collector struct {
	read  func(Scrape)
	descs map[string]*prometheus.Desc // by name
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) { c.read(Scrape{c.descs, to}) }

// Scrape takes the values of one scrape.
type Scrape struct {
	descs map[string]*prometheus.Desc
	to    chan<- prometheus.Metric
}

// Counter sets a counter. The labels are values, in the order of the metric's labels.
func (s Scrape) Counter(name string, value uint64, labels ...string) {
	s.constant(name, prometheus.CounterValue, float64(value), labels)
}

// Seconds sets a counter of seconds.
func (s Scrape) Seconds(name string, d time.Duration) {
	s.constant(name, prometheus.CounterValue, d.Seconds(), nil)
}

// Gauge sets a gauge. The labels are values, in the order of the metric's labels.
func (s Scrape) Gauge(name string, value float64, labels ...string) {
	s.constant(name, prometheus.GaugeValue, value, labels)
}

// Bool sets a gauge to 1 for true, else to 0. The labels are values, in the order of the metric's
// labels.
func (s Scrape) Bool(name string, value bool, labels ...string) {
	n := 0.0
	if value {
		n = 1
	}
	s.Gauge(name, n, labels...)
}

// Histogram sets a histogram. The labels are values, in the order of the metric's labels.
func (s Scrape) Histogram(name string, d store.Durations, labels ...string) {
	s.ScaledHistogram(name, d, 1, labels...)
}

// ScaledHistogram is [Scrape.Histogram] with seconds multiplied by scale.
func (s Scrape) ScaledHistogram(name string, d store.Durations, scale float64, labels ...string) {
	buckets := make(map[float64]uint64, len(d.Buckets))
	for bound, n := range d.Buckets {
		buckets[bound*scale] = n
	}
	s.send(name, func(desc *prometheus.Desc) (prometheus.Metric, error) {
		return prometheus.NewConstHistogram(desc, d.Count, d.Sum.Seconds()*scale, buckets, labels...)
	})
}

func (s Scrape) constant(name string, kind prometheus.ValueType, value float64, labels []string) {
	s.send(name, func(desc *prometheus.Desc) (prometheus.Metric, error) {
		return prometheus.NewConstMetric(desc, kind, value, labels...)
	})
}

// send sends a metric, or an error of the scrape.
func (s Scrape) send(name string, metric func(*prometheus.Desc) (prometheus.Metric, error)) {
	desc, ok := s.descs[name]
	if !ok {
		err := fmt.Errorf("metric %s: is not in the collector's list", name)
		s.to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	m, err := metric(desc)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	s.to <- m
}

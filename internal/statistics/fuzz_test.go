package statistics

import (
	"io"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/pkg/limiter"
)

// lines returns the lines of a counter and of a time.
func lines(t *testing.T, p *Reporter, name string) []string {
	t.Helper()
	here, there := net.Pipe()
	var text []byte
	var reading sync.WaitGroup
	reading.Go(func() { text, _ = io.ReadAll(there) })
	to := p.statsd(here)
	to.count(name, 7)
	to.time(name, 3*time.Millisecond, 1)
	if err := to.close(); err != nil {
		t.Errorf("writing %q: %v", name, err)
	}
	reading.Wait()
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// A metric is one line of the protocol with the right value, and a valid series of Prometheus, for
// any text in rules, requests and settings.
func FuzzAMetricIsOneLineWithItsValue(f *testing.F) {
	for _, s := range []string{"", "k_v", "a:b|c", "a\nb:1|c", "a,b#c@0.1", "é\xff\x00", "remote_address_10.0.0.1", "$1", "(.*)", "__a", "1", "le", ".__x=y"} {
		f.Add(s, "zone", "eu", "^(.*)$", "$1", "$0")
		f.Add("k", s, "eu", "^(.*)$", "$1", "$0")
		f.Add("k", "zone", s, "^(.*)$", "$1", "$0")
		f.Add("k", "zone", "eu", s, "x", "y")
		f.Add(s, "zone", "eu", "^(.*)$", s, s)
	}
	f.Add("k", "zone", "eu", "(x*)", "$1", "$1") // an empty group
	plain := regexp.MustCompile(`^[^:|\x00-\x1f]+:(7\|c|3\|ms)$`)
	dog := regexp.MustCompile(`^[^:|\x00-\x1f]+:(7\|c|3\.000000\|ms)\|#[^|\x00-\x1f]*$`)
	r := newFixture(f, one, limiter.Options{}).reader
	f.Fuzz(func(t *testing.T, level, tag, text, pattern, name, mogrified string) {
		if len(level)*(1+strings.Count(name+mogrified, "$"))+len(tag)+len(text)+len(name)+len(mogrified) > 300 {
			t.Skip() // a line of DogStatsD has at most 1432 bytes
		}
		tags := map[string]string{tag: text}
		path := key{domain: r.clean("d"), key1: r.clean(level)}.path() + ".total_hits"
		o := ReporterOptions{Address: "localhost:8125", TCP: true, Tags: tags, Logger: slog.New(slog.DiscardHandler)}
		p, err := r.NewReporter(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines(t, p, path) {
			if !plain.MatchString(line) {
				t.Errorf("StatsD gets %q", line)
			}
		}
		o.TCP, o.Dog = false, true
		if m, err := NewMogrifier(pattern, name, map[string]string{"t": mogrified}); err == nil {
			o.Mogrifiers = []Mogrifier{m}
		}
		if p, err = r.NewReporter(o); err != nil {
			t.Fatal(err)
		}
		for _, line := range lines(t, p, path) {
			if !dog.MatchString(line) {
				t.Errorf("DogStatsD gets %q", line)
			}
			_, rest, _ := strings.Cut(line, "|#")
			if all := strings.Split(rest, ","); len(all) > 1+len(o.Mogrifiers) {
				t.Errorf("DogStatsD gets the tags %q, want one and that of the mogrifier", all)
			}
		}
		labels, err := CollectorOptions{Tags: tags}.labels()
		if err != nil {
			return // a label of that name exists
		}
		registry := prometheus.NewPedanticRegistry()
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "c", Help: "A counter.", ConstLabels: labels})
		if err := registry.Register(counter); err != nil {
			t.Fatalf("tags %q: %v", tags, err)
		}
		if _, err := registry.Gather(); err != nil {
			t.Fatalf("tags %q: %v", tags, err)
		}
	})
}

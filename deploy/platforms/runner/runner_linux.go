// Package runner stands in for the package of that name in envoyproxy/ratelimit when its
// integration tests are built. So its functions have the signatures of that package, without
// errors. A Runner starts the program at $WEIR_RATELIMIT. The environment is the settings of a
// test. The program's counters become counters of a store of gostats.
package runner

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/envoyproxy/ratelimit/src/settings"
	gostats "github.com/lyft/gostats"
)

// metricsAddress is where the program shows its metrics to Prometheus.
const metricsAddress = "127.0.0.1:9090"

// A Runner runs the program once. Use Run in one goroutine, the rest in another.
type Runner struct {
	settings settings.Settings
	store    gostats.Store
	program  *exec.Cmd
	started  chan struct{} // closed when the program runs
	ended    chan struct{} // closed when the program has ended
}

// NewRunner prepares the program; nothing runs yet.
func NewRunner(s settings.Settings) Runner {
	program := exec.Command(os.Getenv("WEIR_RATELIMIT"))
	program.Env = append(environ(s), "SSL_CERT_FILE="+os.Getenv("SSL_CERT_FILE"))
	program.Stdout, program.Stderr = os.Stderr, os.Stderr
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return Runner{
		settings: s, store: gostats.NewStore(gostats.NewNullSink(), false), program: program,
		started: make(chan struct{}), ended: make(chan struct{}),
	}
}

// environ returns the settings that are not the defaults, as NAME=value. USE_STATSD is always
// there: the tests set the variable itself.
func environ(s settings.Settings) []string {
	all := []string{"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + metricsAddress}
	for field, value := range reflect.ValueOf(s).Fields() {
		name := field.Tag.Get("envconfig")
		text := format(value.Interface())
		if name == "" || text == field.Tag.Get("default") && name != "USE_STATSD" || value.IsZero() && field.Tag.Get("default") == "" {
			continue
		}
		if !strings.HasPrefix(name, "USE_PROMETHEUS") && !strings.HasPrefix(name, "PROMETHEUS_ADDR") {
			all = append(all, name+"="+text)
		}
	}
	return all
}

// format writes a value as the settings read it.
func format(v any) string {
	switch v := v.(type) {
	case []string:
		return strings.Join(v, ",")
	case map[string]string:
		var pairs []string
		for key, value := range v {
			pairs = append(pairs, key+":"+value)
		}
		return strings.Join(pairs, ",")
	}
	return fmt.Sprint(v)
}

// Run runs the program until Stop.
func (r *Runner) Run() {
	defer close(r.ended)
	err := r.program.Start()
	close(r.started)
	if err == nil {
		err = r.program.Wait()
	}
	if err != nil {
		fail(fmt.Errorf("%s: %w", r.program.Path, err))
	}
}

// fail ends the tests: their calls have no errors.
func fail(err error) {
	panic(err) //nolint:forbidigo // the calls have no errors
}

// Stop asks the program to end, and waits for the end.
func (r *Runner) Stop() {
	<-r.started
	_ = r.program.Process.Signal(syscall.SIGTERM)
	<-r.ended
}

// GetStatsStore returns a store with the values that the program has now. With extra tags each
// counter has the tags that the program shows to Prometheus.
func (r *Runner) GetStatsStore() gostats.Store {
	var tags map[string]string
	if len(r.settings.ExtraTags) > 0 {
		tags = shownTags(page("http://" + metricsAddress + "/metrics"))
	}
	debug := net.JoinHostPort("localhost", strconv.Itoa(r.settings.DebugPort))
	for line := range strings.Lines(page("http://" + debug + "/stats")) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		value, err := strconv.ParseUint(text, 10, 64)
		switch {
		case err != nil:
		case strings.HasPrefix(name, "ratelimit.localcache."):
			r.store.NewGauge(name).Set(value)
		case tags != nil:
			r.store.NewCounterWithTags(name, tags).Set(value)
		default:
			r.store.NewCounter(name).Set(value)
		}
	}
	return r.store
}

// shownTags returns the labels of a counter that has no other labels than the extra tags.
func shownTags(metrics string) map[string]string {
	tags := make(map[string]string)
	lines := bufio.NewScanner(strings.NewReader(metrics))
	for lines.Scan() {
		labels, found := strings.CutPrefix(lines.Text(), "ratelimit_service_config_load_success{")
		if !found {
			continue
		}
		for _, m := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(labels, -1) {
			tags[m[1]] = m[2]
		}
	}
	return tags
}

// page returns the text of a page. A program that has just opened its port for Envoy may open the
// port of the page a moment later.
func page(url string) string {
	const tries, interval = 100, 20 * time.Millisecond
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last error
	for range tries {
		text, err := get(url)
		if err == nil {
			return text
		}
		last = err
		<-tick.C
	}
	fail(last)
	return ""
}

// get returns the body of one answer.
func get(url string) (string, error) {
	answer, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

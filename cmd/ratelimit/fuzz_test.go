package main

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/statistics"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

type workshop struct {
	limiter *limiter.Limiter
	pages   *admin.Server
	logger  *slog.Logger
}

func newWorkshop(tb testing.TB) *workshop {
	tb.Helper()
	rules := must.First(descriptors.Load([]descriptors.Source{{Name: "r", Data: []byte(rules("d", "k", 1))}}, descriptors.Options{}))(tb)
	world := must.Get(lab.New(rules, memstore.Options{MaxKeys: 10}))(tb)
	tb.Cleanup(world.Close)
	w := &workshop{limiter: world.Limiter, logger: slog.New(slog.DiscardHandler)}
	registry := prometheus.NewRegistry()
	service := must.Get(server.New(server.Options{Limiter: w.limiter, Logger: w.logger, Registry: registry}))(tb)
	tb.Cleanup(service.Close)
	var err error
	if w.pages, err = admin.New(admin.Options{Limiter: w.limiter, Logger: w.logger, Registry: registry, Service: service}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.pages.Close)
	return w
}

// make makes what an environment without mistakes asks for, which must not fail; nothing of it is
// started.
func (w *workshop) make(t *testing.T, c *config) {
	t.Helper()
	o := c.XDS
	o.Push, o.Logger = func(context.Context, []descriptors.Source) error { return nil }, w.logger
	if _, err := xds.New(o); c.overXDS() && err != nil {
		t.Errorf("xDS: %v", err)
	}
	reader := must.Get(statistics.New(statistics.Options{Limiter: w.limiter}))(t)
	collector, err := reader.NewCollector(c.Statistics.Collector)
	if err != nil {
		t.Fatalf("Prometheus: %v", err)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(collector); err != nil {
		t.Fatalf("Prometheus: %v", err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 11 {
		t.Errorf("Prometheus: %d metrics, %v; want 11", len(families), err)
	}
	if statsd := c.Statistics.StatsD; statsd.Address != "" {
		statsd.Logger = w.logger
		if _, err := reader.NewReporter(statsd); err != nil {
			t.Errorf("StatsD: %v", err)
		}
	}
	if w.pages.Metrics(cmp.Or(c.MetricsPath, "/metrics")) == nil {
		t.Error("no page of metrics")
	}
	for _, e := range []app.Endpoint{c.GRPC, c.HTTP, c.Debug, c.Metrics, c.Admin} {
		if _, _, err := net.SplitHostPort(e.Address); e.Address != "" && err != nil {
			t.Errorf("%s: %v", e.Address, err)
		}
	}
}

// Whatever text a variable has: either it is a mistake, which is told on lines that begin with its
// name, or all that it is for can be made of it. Nothing panics.
func FuzzAVariableIsAMistakeOrMeansSomething(f *testing.F) {
	names := slices.Sorted(maps.Keys(variables(new(config))))
	names = append(names, "DOG_STATSD_MOGRIFIER_A_PATTERN", "DOG_STATSD_MOGRIFIER_A_NAME", "DOG_STATSD_MOGRIFIER_A_TAGS")
	texts := []string{
		"", " ", "0", "-1", "99999999999999999999", "true", "10s", "0.5", // and what only few are read as:
		"a:b,c:d", "a=b", ",", "$1", "(", "\x00", "\xff", "/a b", "//", "/a//b", "/{x}", "/../x", "/a/", "[::1]", "]", "a,redis:1", "redis://u:p@h:1/2", "host:1,",
		"-5s", "NaN", "le:x", "grpc-x:y", "a:\n",
	}
	for i, name := range names {
		of := texts[:8]
		if strings.Contains(name, "XDS") || strings.Contains(name, "DOG") || slices.Contains([]string{
			"EXTRA_TAGS", "PROMETHEUS_PATH", "PROMETHEUS_ADDR", "REDIS_URL", "REDIS_TYPE", "GRPC_HOST", "STATSD_HOST",
		}, name) {
			of = texts
		}
		for _, text := range of {
			f.Add(uint16(i), text)
		}
	}
	w := newWorkshop(f)
	f.Fuzz(func(t *testing.T, n uint16, text string) {
		name := names[int(n)%len(names)]
		environment := environ(
			"USE_PROMETHEUS=true", "USE_STATSD=true", "CONFIG_TYPE=GRPC_XDS_SOTW", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379",
			"USE_DOG_STATSD_MOGRIFIERS=a", "DOG_STATSD_MOGRIFIER_A_PATTERN=^(.*)$", "DOG_STATSD_MOGRIFIER_A_NAME=$1",
		)
		c, err := readConfig(append(environment, name+"="+text))
		if err == nil {
			err = c.finish()
		}
		if err == nil {
			w.make(t, &c)
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			begins := func(name string) bool { return strings.HasPrefix(line, name) }
			if !slices.ContainsFunc(names, begins) && !begins("DOG_STATSD_MOGRIFIER_") && !begins("xds: ") {
				t.Errorf("%s=%q: %q begins with the name of no variable", name, text, line)
			}
		}
	})
}

// Whatever is wrong with what names a Redis: no message shows a password.
func FuzzMistakesAboutRedisShowNoPassword(f *testing.F) {
	for i, url := range []string{
		"redis:6379", "/run/redis.sock", "a:1,b:2", "main,a:1,b:2", "main", "", "redis://:PASSWORD@h:1", "rediss://u:PASSWORD@h", "u:PASSWORD@h:1",
		"redis://:PASSWORD@h:x", "x://u:PASSWORD@h", "main,redis://:PASSWORD@a:1", "a:1,redis://:PASSWORD@b", "unix://u:PASSWORD@/run/x?db=y",
	} {
		f.Add(url, "user:PASSWORD", uint8(i), false)
		f.Add(url, "PASSWORD", uint8(i+1), true)
	}
	f.Fuzz(func(t *testing.T, url, auth string, kind uint8, tls bool) {
		const word = "Sesame"
		if strings.Contains(url+auth, word) {
			t.Skip()
		}
		// A password in a URL is what stands between the first colon after its scheme and an at sign;
		// elsewhere it is none.
		if before, after, found := strings.Cut(url, "PASSWORD"); found && !(strings.HasSuffix(before, ":") && strings.HasPrefix(after, "@")) {
			t.Skip()
		}
		fill := strings.NewReplacer("PASSWORD", word)
		environment := environ("BACKEND_TYPE=redis", "REDIS_URL="+fill.Replace(url), "REDIS_AUTH="+fill.Replace(auth), "REDIS_SENTINEL_AUTH="+fill.Replace(auth),
			"REDIS_SOCKET_TYPE="+[]string{"tcp", "unix"}[kind&1], "REDIS_TYPE="+[]string{"single", "cluster", "sentinel", "single"}[kind>>1&3])
		if tls {
			environment = append(environment, "REDIS_TLS=true")
		}
		c, err := readConfig(environment)
		if err == nil {
			err = c.finish()
		}
		if err != nil && strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v", environment, err)
		}
	})
}

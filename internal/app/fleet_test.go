package app

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// A process compares its time zones with the others as soon as a rule needs one.
func TestTimeZonesAreComparedWhereARuleNeedsOne(t *testing.T) {
	r := redisForLeases(t)
	var log logtest.Log
	o := redisstore.Options{Target: redisstore.Target{URLs: []string{"redis://" + r.Address()}}, Timeout: 5 * time.Second}
	s, err := NewStores(StoreOptions{Redis: &o, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	must.Do(t, s.Unfit(t.Context()))
	l := must.Get(limiter.New(s.Store, limiter.Options{Now: time.Now}))(t)
	s.follow(l)
	must.Get(r.Do(t.Context(), "SET", "weir:zones", fmt.Sprint("2000a ", time.Now().UnixMicro())))(t)
	for _, zone := range []string{"UTC", "Europe/Berlin"} {
		rules := must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(
			"domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: month, requests_per_unit: 1000, align: {to: calendar, zone: " + zone + "}}}]",
		)}}, descriptors.Options{}))(t)
		l.SetRules(rules)
	}
	log.Await(t, 0, logtest.Has("have other time zones"))
	want := fmt.Sprintf("zones=%s others=[2000a]", zones.Version)
	if text := log.String(); !strings.Contains(text, want) || s.redis.Stats().OtherZones != 1 {
		t.Errorf("%d other releases, and the log lacks %q:\n%s", s.redis.Stats().OtherZones, want, text)
	}
}

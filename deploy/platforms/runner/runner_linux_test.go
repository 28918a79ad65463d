package runner

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/google/go-cmp/cmp"
)

func TestTheEnvironmentHasTheSettingsThatAreNotDefaults(t *testing.T) {
	t.Parallel()
	s := settings.NewSettings()
	before := environ(s)
	s.RedisUrl, s.RedisPerSecond, s.LocalCacheSizeInBytes = "127.0.0.1:1", true, 1000
	s.ExtraTags = map[string]string{"tag": "value"}
	s.RedisPoolSize = 77
	added := slices.DeleteFunc(environ(s), func(pair string) bool { return slices.Contains(before, pair) })
	slices.Sort(added)
	want := []string{
		"EXTRA_TAGS=tag:value", "LOCAL_CACHE_SIZE_IN_BYTES=1000", "REDIS_PERSECOND=true", "REDIS_POOL_SIZE=77", "REDIS_URL=127.0.0.1:1",
	}
	if diff := cmp.Diff(want, added); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
}

func TestTheStoreHasTheValuesOfThePage(t *testing.T) {
	t.Parallel()
	hits := 3
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stats" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "ratelimit.service.rate_limit.basic.key1.total_hits: %d\nratelimit.localcache.entryCount: 2\nno number: x\n", hits)
	}))
	defer server.Close()
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRunner(settings.Settings{DebugPort: port})
	for range 2 { // a page has totals, not additions
		store := r.GetStatsStore()
		if got := store.NewCounter("ratelimit.service.rate_limit.basic.key1.total_hits").Value(); got != uint64(hits) {
			t.Errorf("counter: got %d, want %d", got, hits)
		}
		if got := store.NewGauge("ratelimit.localcache.entryCount").Value(); got != 2 {
			t.Errorf("gauge: got %d, want 2", got)
		}
		hits += 4
	}
}

func TestTagsAreTheLabelsOfACounterWithoutOthers(t *testing.T) {
	t.Parallel()
	got := shownTags(`ratelimit_service_rate_limit_total_hits{key1="one",a="wrong"} 1
ratelimit_service_config_load_success{a="b",zone="x y"} 1
`)
	if want := map[string]string{"a": "b", "zone": "x y"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// A stage holds the programs of the original's scenarios: Envoy, cmd/ratelimit, and a backend and
// two services behind them.
type stage struct {
	*ratelimit

	envoy *envoy
}

// startStage builds a stage whose counts are kept where environ says.
func startStage(t *testing.T, environ ...string) *stage {
	t.Helper()
	s := &stage{ratelimit: startRatelimit(t, append(environ, originalRules(t), "LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true")...)}
	backends := make(map[string]string)
	for _, name := range []string{"backend", "service_1", "service_2"} {
		backends[name] = tcpAddress(t, startBackendNamed(t, name))
	}
	s.envoy = startEnvoyOn(t, bootstrap(t, "original.yaml.tmpl", struct {
		Service  string
		Backends map[string]string
	}{tcpAddress(t, s.GRPC), backends}))
	return s
}

// The original plays these with scripts that mostly look at the last answer alone. Here every
// answer counts, with its headers.
func TestScenariosOfTheOriginalThroughEnvoy(t *testing.T) {
	t.Parallel()
	scenarios := map[string]func(*testing.T, *stage){
		"simple-get":              simpleGet,
		"trigger-ratelimit":       triggerRatelimit,
		"trigger-shadow-mode-key": triggerShadowModeKey,
		"replaces":                replaces,
		"quota":                   softQuota,
		"token-quota":             tokenQuota,
		"multiservice-tokenquota": multiserviceTokenQuota,
		"value-included-in-stats": valueIncludedInStats,
	}
	play := func(t *testing.T, s *stage) {
		t.Helper()
		s.awaitHealthy(t)
		for name, scenario := range scenarios {
			t.Run(name, func(t *testing.T) { scenario(t, s) })
		}
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		play(t, startStage(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t, parts.RedisOptions{})
		play(t, startStage(t, withRedis(r)...))
		keysOf(t, r)
	})
}

// get sends a request of a client and returns all parts of the answer about limits. The longest
// window has so many seconds:
//
//	<code> <body> | <Envoy's headers> | <ours> | <when it starts afresh>
func (s *stage) get(t *testing.T, path, client string, window int) string {
	t.Helper()
	a := s.envoy.get(t, path, "x-client: "+client)
	said := strings.TrimSpace(strconv.Itoa(a.code) + " " + a.body)
	all := []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
	told := 0
	for _, name := range all {
		told += len(a.header.Values(name))
	}
	reset, after := a.header.Get(all[2]), a.header.Get("retry-after")
	if told > 0 {
		said += fmt.Sprintf(" | %s left %s | %s left %s", a.header.Get(all[0]), a.header.Get(all[1]), a.header.Get(all[3]), a.header.Get(all[4]))
		if n, err := strconv.Atoi(reset); err == nil && n >= 1 && n <= window && a.header.Get(all[5]) == reset && told == len(all) {
			said += " | reset"
		} else {
			said += fmt.Sprintf(" | %v", a.header)
		}
	}
	switch after {
	case "":
	case reset:
		said += ", retry then"
	default:
		said += ", retry after " + after
	}
	if limited := a.header.Get("x-envoy-ratelimited"); (limited == "true") != (a.code == http.StatusTooManyRequests) {
		said += fmt.Sprintf(" | x-envoy-ratelimited: %q", limited)
	}
	return said
}

// plays runs a scenario until no run was disturbed, and compares the results line by line.
func (s *stage) plays(t *testing.T, want string, play func(client string) []string) {
	t.Helper()
	if diff := cmp.Diff(lines(want), undisturbed(t, s.ratelimit, play)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func simpleGet(t *testing.T, s *stage) {
	t.Helper()
	const asked = "ratelimit_server.ShouldRateLimit.total_requests"
	s.plays(t, `
		200 backend
		asked 0 times
	`, func(client string) []string {
		before := s.stat(t, asked)
		got := s.get(t, "/get", client, year)
		return []string{got, fmt.Sprintf("asked %d times", s.stat(t, asked)-before)}
	})
}

func triggerRatelimit(t *testing.T, s *stage) {
	t.Helper()
	s.plays(t, `
		200 backend | 3, 3;w=31536000 left 2 | 3 left 2 | reset
		200 backend | 3, 3;w=31536000 left 1 | 3 left 1 | reset
		200 backend | 3, 3;w=31536000 left 0 | 3 left 0 | reset
		429 | 3, 3;w=31536000 left 0 | 3 left 0 | reset, retry then
		429 | 3, 3;w=31536000 left 0 | 3 left 0 | reset, retry then
		200 backend | 3, 3;w=31536000 left 2 | 3 left 2 | reset
	`, func(client string) (got []string) {
		for range 5 {
			got = append(got, s.get(t, "/foo", client, year))
		}
		return append(got, s.get(t, "/foo", "other-than-"+client, year))
	})
}

func triggerShadowModeKey(t *testing.T, s *stage) {
	t.Helper()
	s.plays(t, `
		200 backend | 3, 3;w=31536000 left 2 | 3 left 2 | reset
		200 backend | 3, 3;w=31536000 left 1 | 3 left 1 | reset
		200 backend | 3, 3;w=31536000 left 0 | 3 left 0 | reset
		200 backend | 3, 3;w=31536000 left 0 | 3 left 0 | reset
		200 backend | 3, 3;w=31536000 left 0 | 3 left 0 | reset
		200 backend | 3, 3;w=31536000 left 0 | 3 left 0 | reset
		total_hits 6, within_limit 3, over_limit 3, shadow_mode 3
	`, func(client string) (got []string) {
		counted := s.counting(t, `domain="rl"`, `key1="bar"`)
		for range 6 {
			got = append(got, s.get(t, "/bar", client, year))
		}
		return append(got, counted("total_hits", "within_limit", "over_limit", "shadow_mode"))
	})
}

// counting returns a function that returns the growth of a rule's metrics, by the original's names.
func (s *stage) counting(t *testing.T, labels ...string) func(names ...string) string {
	t.Helper()
	read := func() func(name string) int {
		_, page := fetch(t, "http://"+s.Metrics+"/metrics")
		return func(name string) int { return sum(t, page, "ratelimit_service_rate_limit_"+name, labels...) }
	}
	before := read()
	return func(names ...string) string {
		now := read()
		var all []string
		for _, name := range names {
			all = append(all, fmt.Sprintf("%s %d", name, now(name)-before(name)))
		}
		return strings.Join(all, ", ")
	}
}

func replaces(t *testing.T, s *stage) {
	t.Helper()
	s.plays(t, `
		200 backend | 2, 2;w=31536000;name="basic" left 1 | 2 left 1 | reset
		200 backend | 4, 4;w=31536000;name="plus" left 3 | 4 left 3 | reset
		200 backend | 4, 4;w=31536000;name="plus" left 2 | 4 left 2 | reset
		200 backend | 4, 4;w=31536000;name="plus" left 1 | 4 left 1 | reset
		200 backend | 4, 4;w=31536000;name="plus" left 0 | 4 left 0 | reset
		429 | 4, 4;w=31536000;name="plus" left 0 | 4 left 0 | reset, retry then
		200 backend | 2, 2;w=31536000;name="basic" left 0 | 2 left 0 | reset
		429 | 2, 2;w=31536000;name="basic" left 0 | 2 left 0 | reset, retry then
		200 backend | 1, 1;w=31536000;name="trial" left 0 | 1 left 0 | reset
		429 | 1, 1;w=31536000;name="trial" left 0 | 1 left 0 | reset, retry then
		200 backend | 5, 5;w=31536000;name="pro" left 4 | 5 left 4 | reset
		200 backend | 5, 5;w=31536000;name="pro" left 3 | 5 left 3 | reset
		200 backend | 5, 5;w=31536000;name="pro" left 2 | 5 left 2 | reset
		200 backend | 5, 5;w=31536000;name="pro" left 1 | 5 left 1 | reset
		200 backend | 5, 5;w=31536000;name="pro" left 0 | 5 left 0 | reset
		429 | 5, 5;w=31536000;name="pro" left 0 | 5 left 0 | reset, retry then
	`, func(client string) (got []string) {
		for path := range strings.FieldsSeq("/basic /plus /plus /plus /plus /plus /basic /basic /trial /trial /pro /pro /pro /pro /pro /pro") {
			got = append(got, s.get(t, path, client, year))
		}
		return got
	})
}

func softQuota(t *testing.T, s *stage) {
	t.Helper()
	s.plays(t, `
		200 backend | 1, 1;w=1, 2;w=1 left 0 | 1 left 0 | reset
		200 backend | 1, 1;w=1, 2;w=1 left 0 | 1 left 0 | reset
		429 | 1, 1;w=1, 2;w=1 left 0 | 1 left 0 | reset, retry then
		in the next window: 200 backend | 1, 1;w=1, 2;w=1 left 0 | 1 left 0 | reset
	`, func(client string) (got []string) {
		began := time.Now()
		for range 3 {
			got = append(got, s.get(t, "/quota", client, 1))
		}
		over := began.Truncate(time.Second).Add(time.Second)
		if time.Now().After(over) {
			return nil // a window has ended meanwhile
		}
		// Denied until the window ends, and not longer. The clock of Redis and this one are the same, but
		// are not read at once.
		const slack = 50 * time.Millisecond
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for denied := got[2]; ; <-tick.C {
			asked := time.Now()
			answer := s.get(t, "/quota", client, 1)
			switch {
			case answer == denied && asked.Before(over.Add(slack)):
				continue
			case answer != denied && time.Now().Before(over.Add(-slack)):
				return append(got, "before its window has ended: "+answer)
			}
			return append(got, "in the next window: "+answer)
		}
	})
}

func valueIncludedInStats(t *testing.T, s *stage) {
	t.Helper()
	s.plays(t, `
		200 backend | 1, 1;w=31536000 left 0 | 1 left 0 | reset
		429 | 1, 1;w=31536000 left 0 | 1 left 0 | reset, retry then
		200 backend | 1, 1;w=31536000 left 0 | 1 left 0 | reset
		the first: over_limit 1, total_hits 2, within_limit 1
		the other: over_limit 0, total_hits 1, within_limit 1
		no value: over_limit 0, total_hits 0, within_limit 0
	`, func(client string) []string {
		other := "other-than-" + client
		got := []string{s.get(t, "/baz", client, year), s.get(t, "/baz", client, year), s.get(t, "/baz", other, year)}
		_, page := fetch(t, "http://"+s.Metrics+"/metrics")
		of := func(who, key string) string {
			named := func(name string) int {
				return sum(t, page, "ratelimit_service_rate_limit_"+name, `domain="rl"`, `key1="`+key+`"`, `key2=""`)
			}
			return fmt.Sprintf("%s: over_limit %d, total_hits %d, within_limit %d", who, named("over_limit"), named("total_hits"), named("within_limit"))
		}
		return append(got, of("the first", "baz_"+client), of("the other", "baz_"+other), of("no value", "baz"))
	})
}

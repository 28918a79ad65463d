package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// Every case is a row of the description of envoyproxy/ratelimit that this project keeps, by its
// section: 1.3 is gRPC, 1.4 HTTP, 1.5 health, 1.7 the local cache, 2.1 matching, 2.2 names in
// metrics, 2.4 statuses, 2.5 what several limits mean together, 2.6 headers and metadata, 2.7 what
// counts, 2.9 bad configurations. Where we differ on purpose the case says which row of
// docs/migrating-differences.md it shows.
func TestAnswersAreThoseOfTheReference(t *testing.T) {
	scripts := readScripts(t)
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		performAll(t, scripts, "memory", func() []string { return nil })
	})
	for _, keys := range []string{"ratelimit", "weir"} {
		t.Run("redis by the keys of "+keys, func(t *testing.T) {
			t.Parallel()
			redis := startRedis(t, parts.RedisOptions{})
			programs := 0
			performAll(t, scripts, keys, func() []string {
				programs++
				return []string{
					"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Address(), "REDIS_KEY_FORMAT=" + keys, fmt.Sprintf("CACHE_KEY_PREFIX=%d-", programs),
				}
			})
		})
	}
}

// performAll plays all cases that are for a store, which environment names, for each program one of
// its own. Programs end while the next ones run: each looks for a second whether somebody still
// asks.
func performAll(t *testing.T, scripts []*script, store string, environment func() []string) {
	t.Helper()
	var ending []*running
	for _, s := range scripts {
		for _, c := range s.cases {
			if len(c.stores) > 0 && !slices.Contains(c.stores, store) {
				continue
			}
			t.Run(c.title, func(t *testing.T) {
				var p *play
				for n := 0; ; n++ {
					p = perform(t, s, c, environment()...)
					if p.running != nil {
						ending = append(ending, p.running)
					}
					if store == "memory" || !p.missed {
						break
					}
					if n == 10 {
						t.Fatal("what Redis has denied is forgotten too soon again and again")
					}
				}
				for _, problem := range p.problems {
					t.Errorf("%s.txt: %s", s.name, problem)
				}
			})
		}
	}
	for _, r := range ending {
		r.awaitEnd(t)
	}
}

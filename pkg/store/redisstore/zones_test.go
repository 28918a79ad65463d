package redisstore

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
)

// zoned is processes that share Redis, with the releases of their time zones and their logs.
type zoned struct {
	all      []*Store
	releases []string
	logs     []*logtest.Log
	clock    *clock
}

func zonedOf(t *testing.T, urls []string, releases ...string) *zoned {
	t.Helper()
	z := &zoned{releases: releases, clock: newClock()}
	prefix := fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())
	for i := range releases {
		log := new(logtest.Log)
		s := open(t, urls, Options{Prefix: prefix, Logger: slog.New(slog.NewTextHandler(log, nil))})
		z.clock.drives(s)
		s.CompareZones(func() string { return z.releases[i] })
		z.all, z.logs = append(z.all, s), append(z.logs, log)
	}
	return z
}

// beat has some processes beat for as long as a release is known, and longer.
func (z *zoned) beat(t *testing.T, some ...*Store) {
	t.Helper()
	for range (zonesKnown + 2) * zonesPause / fleetBeat {
		for _, s := range some {
			s.fleet.beat(t.Context(), false)
		}
		z.clock.sleep(fleetBeat)
	}
}

// wants compares the releases of others that each process counts, and the lines about zones that
// each has logged since the last call.
func (z *zoned) wants(t *testing.T, others []int, lines ...string) {
	t.Helper()
	for i, s := range z.all {
		if got := s.Stats().OtherZones; got != others[i] {
			t.Errorf("process %d counts %d other releases, want %d", i, got, others[i])
		}
		var got []string
		for line := range strings.Lines(z.logs[i].Take()) {
			if strings.Contains(line, "time zones") {
				got = append(got, strings.TrimSpace(line[strings.Index(line, "zones=2"):]))
			}
		}
		if text := strings.Join(got, "; "); text != lines[i] {
			t.Errorf("process %d has logged %q, want %q", i, text, lines[i])
		}
	}
}

func TestAReleaseOfTimeZonesThatDiffersIsLoggedOnce(t *testing.T) {
	for name, urls := range map[string][]string{
		"single":  urlOf("redis", shared(t).Address()),
		"cluster": urlOf("redis-cluster", sharedCluster(t).Addresses()...),
	} {
		t.Run(name, func(t *testing.T) {
			z := zonedOf(t, urls, "2026f", "2026f", "")
			z.beat(t, z.all...)
			z.wants(t, []int{0, 0, 0}, "", "", "")

			z.releases[2] = "2026e" // a reload brings a rule with a zone
			z.beat(t, z.all...)
			z.wants(t, []int{1, 1, 1}, "zones=2026f others=[2026e]", "zones=2026f others=[2026e]", "zones=2026e others=[2026f]")
			z.beat(t, z.all...)
			z.wants(t, []int{1, 1, 1}, "", "", "")

			z.releases[1] = "2027a"
			z.beat(t, z.all...)
			z.wants(t, []int{2, 2, 2}, `zones=2026f others="[2026e 2027a]"`, `zones=2027a others="[2026e 2026f]"`, `zones=2026e others="[2026f 2027a]"`)

			z.releases[1], z.releases[2] = "", ""
			z.beat(t, z.all...)
			z.wants(t, []int{0, 0, 0}, "zones=2026f others=[]", "", "")
		})
	}
}

// A process that has ended, or needs no time zones any more, is soon forgotten. Without a rule
// that needs time zones a process asks nothing.
func TestReleasesOfTimeZonesAreForgotten(t *testing.T) {
	z := zonedOf(t, urlOf("redis", shared(t).Address()), "2026f", "2026e")
	z.beat(t, z.all...)
	z.logs[0].Take()
	z.logs[1].Take()
	z.beat(t, z.all[0])
	z.wants(t, []int{0, 1}, "zones=2026f others=[]", "")

	key := z.all[0].main.prefix + "zones"
	if left, err := command(t, z.all[0], "PTTL", key).AsInt64(); err != nil || left <= 0 || left > (zonesKnown*zonesPause).Milliseconds() {
		t.Errorf("the key lives for %d ms, %v", left, err)
	}
	z.releases[0], z.releases[1] = "", ""
	command(t, z.all[0], "DEL", key)
	z.beat(t, z.all...)
	z.wants(t, []int{0, 0}, "", "")
	if n, err := command(t, z.all[0], "EXISTS", key).AsInt64(); err != nil || n != 0 {
		t.Errorf("the key is there without rules that need it: %d, %v", n, err)
	}
}

// A value of another program does no harm, and a refusal is logged once.
func TestTheKeyOfTimeZonesMayHoldAnything(t *testing.T) {
	z := zonedOf(t, urlOf("redis", shared(t).Address()), "2026f")
	key := z.all[0].main.prefix + "zones"
	now := z.clock.now() / 1000
	many := ""
	for n := range 100 {
		many += fmt.Sprintf("%d %d ", 3000+n, now)
	}
	for value, want := range map[string]int{
		"": 0, "x": 0, "2026e": 0, "2026e 5": 0, "\x00\xff 12 \n": 0, strings.Repeat("z", 33) + fmt.Sprintf(" %d", now): 0, many: 16,
	} {
		z.releases[0] = ""
		z.all[0].fleet.beat(t.Context(), false) // forgets the last question
		z.releases[0] = "2026f"
		command(t, z.all[0], "SET", key, value)
		z.all[0].fleet.beat(t.Context(), false)
		if got := z.all[0].Stats().OtherZones; got != want {
			t.Errorf("%.20q: %d other releases, want %d", value, got, want)
		}
	}
	command(t, z.all[0], "DEL", key)
	command(t, z.all[0], "HSET", key, "a", "b")
	z.logs[0].Take()
	z.beat(t, z.all...)
	if log := z.logs[0].Take(); strings.Count(log, "cannot compare the time zones") != 1 {
		t.Errorf("want one line about the refusal, got:\n%s", log)
	}
}

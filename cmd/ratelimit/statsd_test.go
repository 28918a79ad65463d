package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/testing/must"
)

type statsD struct {
	environment []string // that names it

	mu   sync.Mutex     // guards told
	told map[string]int // counters, and how many times there were, by what stands beside the number: `name:|c|#tags`
}

func startStatsD(t *testing.T, network string) *statsD {
	t.Helper()
	s := &statsD{told: make(map[string]int)}
	var listening sync.WaitGroup
	var address string
	if network == "udp" {
		packets := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
		address = packets.LocalAddr().String()
		listening.Go(func() {
			packet := make([]byte, 64<<10)
			for {
				n, _, err := packets.ReadFrom(packet)
				if err != nil {
					return
				}
				s.read(bytes.NewReader(packet[:n]))
			}
		})
		t.Cleanup(func() { _ = packets.Close(); listening.Wait() })
	} else {
		l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		address = l.Addr().String()
		listening.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				listening.Go(func() { defer conn.Close(); s.read(conn) })
			}
		})
		t.Cleanup(func() { _ = l.Close(); listening.Wait() })
	}
	host, port, _ := net.SplitHostPort(address)
	s.environment = []string{"STATSD_HOST=" + host, "STATSD_PORT=" + port}
	return s
}

func (s *statsD) read(from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		number, kind, _ := strings.Cut(rest, "|")
		n, err := strconv.Atoi(number)
		if strings.HasPrefix(kind, "ms") {
			n, err = 1, nil
		}
		s.mu.Lock()
		if err == nil {
			s.told[name+":|"+kind] += n
		} else {
			s.told["malformed: "+lines.Text()]++
		}
		s.mu.Unlock()
	}
}

func (s *statsD) counters() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.told)
}

// await waits until a counter without tags has come to a number.
func (s *statsD) await(t *testing.T, name string, want int) {
	t.Helper()
	eventually(t, within, func() string {
		all := s.counters()
		if all[name+":|c"] == want {
			return ""
		}
		return fmt.Sprintf("StatsD was told %s: %d, want %d; of %q", name, all[name+":|c"], want, slices.Sorted(maps.Keys(all)))
	})
}

// What was counted is told when the process ends at the latest, all of it and once.
func TestStatsDIsTold(t *testing.T) {
	plain := func(tags, more string) map[string]int {
		return map[string]int{
			"ratelimit.service.config_load_success" + tags + ":|c" + more:                  1,
			"ratelimit.service.rate_limit.d.k.near_limit" + tags + ":|c" + more:            1,
			"ratelimit.service.rate_limit.d.k.over_limit" + tags + ":|c" + more:            1,
			"ratelimit.service.rate_limit.d.k.total_hits" + tags + ":|c" + more:            6,
			"ratelimit.service.rate_limit.d.k.within_limit" + tags + ":|c" + more:          5,
			"ratelimit.service.rate_limit.domain_not_found" + tags + ":|c" + more:          1,
			"ratelimit.service.call.should_rate_limit.service_error" + tags + ":|c" + more: 1,
			"ratelimit_server.ShouldRateLimit.total_requests" + tags + ":|c" + more:        4,
		}
	}
	tests := map[string]struct {
		network     string
		environment []string
		want        map[string]int // but for times
		times       string
	}{
		"StatsD, as it is by default": {"tcp", nil, plain("", ""), "ratelimit_server.ShouldRateLimit.response_time:|ms"},
		"StatsD over UDP, with tags": {
			"udp",
			[]string{"USE_STATSD=true", "STATSD_PROTOCOL=udp", "EXTRA_TAGS=zone:eu.1,app:rl"},
			plain(".__app=rl.__zone=eu_1", ""), "ratelimit_server.ShouldRateLimit.response_time.__app=rl.__zone=eu_1:|ms",
		},
		"DogStatsD with tags": {
			"udp",
			[]string{"USE_DOG_STATSD=true", "EXTRA_TAGS=zone:eu.1,app:rl"},
			plain("", "|#app:rl,zone:eu.1"), "ratelimit_server.ShouldRateLimit.response_time:|ms|#app:rl,zone:eu.1",
		},
		"DogStatsD with mogrifiers": {
			"udp",
			[]string{
				"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=rule,rest",
				`DOG_STATSD_MOGRIFIER_RULE_PATTERN=^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$`,
				"DOG_STATSD_MOGRIFIER_RULE_NAME=rls.$3", "DOG_STATSD_MOGRIFIER_RULE_TAGS=domain:$1,rule:$2",
				"DOG_STATSD_MOGRIFIER_REST_PATTERN=^ratelimit_server\\.(.*)\\.total_requests$", "DOG_STATSD_MOGRIFIER_REST_NAME=requests",
				"DOG_STATSD_MOGRIFIER_REST_TAGS=method:$1",
			},
			map[string]int{
				"ratelimit.service.config_load_success:|c":                  1,
				"rls.near_limit:|c|#domain:d,rule:k":                        1,
				"rls.over_limit:|c|#domain:d,rule:k":                        1,
				"rls.total_hits:|c|#domain:d,rule:k":                        6,
				"rls.within_limit:|c|#domain:d,rule:k":                      5,
				"ratelimit.service.rate_limit.domain_not_found:|c":          1,
				"ratelimit.service.call.should_rate_limit.service_error:|c": 1,
				"requests:|c|#method:ShouldRateLimit":                       4,
			},
			"ratelimit_server.ShouldRateLimit.response_time:|ms",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startStatsD(t, test.network)
			root := t.TempDir()
			lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 5)})
			r := launchWith(append(append(append(anyPort(), "RUNTIME_ROOT="+root, "STATS_FLUSH_INTERVAL=1h"), s.environment...), test.environment...), drainTimeout)
			r.connect(t, insecure.NewCredentials())
			for _, line := range []string{"d +5 | k=v", "d | k=v", "unknown | k=v", " | k=v"} {
				if _, err := r.ask(t, parseRequest(t, line)); err != nil && line[0] != ' ' {
					t.Error(err)
				}
			}
			if got := s.counters(); len(got) > 0 {
				t.Errorf("before its time StatsD was told %v", got)
			}
			r.stop()
			r.awaitEnd(t)
			eventually(t, within, func() string {
				got := s.counters()
				if got[test.times] == 0 {
					return "StatsD was told no " + test.times
				}
				delete(got, test.times)
				return cmp.Diff(test.want, got)
			})
		})
	}
}

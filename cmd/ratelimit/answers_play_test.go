package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
)

// A play is one performance of a case: the program, and what it was found to do wrong.
type play struct {
	*running
	t        *testing.T
	root     string              // RUNTIME_ROOT
	plane    *parts.ControlPlane // nil where rules come from files
	pushes   int
	counters map[string]uint64 // as they were after the last step
	problems []string
	missed   bool // it says nothing: what is remembered of Redis may have been forgotten
}

// perform plays a case with a program of its own and returns it. It has been told to stop, and
// whoever called waits for its end.
func perform(t *testing.T, s *script, c *scriptCase, environment ...string) *play {
	t.Helper()
	p := &play{t: t, root: t.TempDir()}
	files := c.begin.files
	if files == nil {
		files = s.begin.files
	}
	for name, text := range files {
		lay(t, p.root, map[string]string{"config/" + name: text})
	}
	all := append(anyPort(), "USE_STATSD=false", "USE_PROMETHEUS=true", "RUNTIME_ROOT="+p.root)
	all = append(append(append(all, environment...), s.begin.env...), c.begin.env...)
	for _, pair := range c.begin.env {
		if pair == "CONFIG_TYPE="+configXDS {
			p.plane = controlPlane(t)
			all = append(all, "CONFIG_GRPC_XDS_SERVER_URL="+p.plane.Address)
		}
	}
	awaitRoom()
	begun := time.Now()
	if c.steps[0].verb == "exit" {
		p.exit(c.steps[0], all)
		return p
	}
	p.running = launch(all)
	defer p.stop()
	p.connect(t, insecure.NewCredentials())
	if slices.ContainsFunc(environment, func(pair string) bool { return strings.HasPrefix(pair, "REDIS_URL=") }) {
		p.running.log.Await(t, 0, logtest.Has("its counts rule")) // "answers", or "is back" after a first connection that failed
	}
	p.counters = p.count()
	for _, step := range c.steps {
		p.step(step)
	}
	remembers := slices.ContainsFunc(c.begin.env, func(pair string) bool { return strings.HasPrefix(pair, "LOCAL_CACHE_SIZE_IN_BYTES=") })
	p.missed = remembers && time.Since(begun) > shared.DefaultDenials*3/4
	return p
}

func (p *play) problem(s *step, format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf("line %d: %s %s: %s", s.line, s.verb, s.text, fmt.Sprintf(format, args...)))
}

func (p *play) step(s *step) {
	p.t.Helper()
	want := maps.Clone(s.counters)
	switch s.verb {
	case "ask", "send":
		want["total_requests"] = 1
		p.ask(s)
	case "page":
		p.page(s)
	case "health":
		service, status, _ := strings.Cut(s.text, " ")
		if got := p.health(p.t, strings.Trim(service, `"`)).String(); got != status {
			p.problem(s, "got %s", got)
		}
	case "rules":
		p.write(s)
	case "push":
		p.push(s)
	}
	now := p.count()
	got := grown(p.counters, now)
	p.counters = now
	if diff := cmp.Diff(want, got); diff != "" {
		p.problem(s, "counters that have grown (-want +got):\n%s", diff)
	}
}

func (p *play) ask(s *step) {
	p.t.Helper()
	request := new(ratelimitv3.RateLimitRequest)
	if s.verb == "ask" {
		request = parseRequest(p.t, s.text)
	} else if err := prototext.Unmarshal([]byte(s.text+"\n"+strings.Join(s.block, "\n")), request); err != nil {
		p.t.Fatalf("line %d: %v", s.line, err)
	}
	begun := time.Now()
	answer, err := p.running.ask(p.t, request)
	ended := time.Now()
	switch {
	case err != nil:
		p.compare(s, s.fault, status.Convert(err).Proto(), begun, ended)
	case len(s.answer) == 0:
		p.problem(s, "no error: %v", answer)
	default:
		p.compare(s, s.answer, answer, begun, ended)
	}
}

func (p *play) page(s *step) {
	p.t.Helper()
	words := strings.SplitN(s.text, " ", 4)
	words = append(words, "", "", "")
	begun := time.Now()
	answer, body := p.fetch(p.t, words[0], words[1], words[2], words[3]+strings.Join(s.block, "\n"))
	ended := time.Now()
	got := []string{fmt.Sprintf("%d %s", answer.StatusCode, answer.Header.Get("Content-Type"))}
	if len(s.answer) > 0 {
		m := new(ratelimitv3.RateLimitResponse)
		if err := protojson.Unmarshal([]byte(body), m); err != nil {
			p.problem(s, "%v in %q", err, body)
			return
		}
		p.compare(s, s.answer, m, begun, ended)
	} else if body != "" {
		if p.plane != nil {
			body = strings.ReplaceAll(body, p.plane.Address, "XDS")
		}
		got = append(got, strings.Split(strings.TrimSuffix(body, "\n"), "\n")...)
	}
	if !matchLines(s.page, got) {
		p.problem(s, "(-want +got):\n%s", cmp.Diff(s.page, got))
	}
}

func (p *play) write(s *step) {
	p.t.Helper()
	name := s.text
	if name == "" {
		name = ruleFile
	}
	lay(p.t, p.root, map[string]string{"next": strings.Join(s.block, "\n") + "\n"})
	if err := os.Rename(filepath.Join(p.root, "next"), filepath.Join(p.root, "config", name)); err != nil {
		p.t.Fatal(err)
	}
	p.await(func() bool { return p.have(s.counters) })
}

// push has the control plane hold other configurations, and waits for the program's reply to them:
// the program counts a load before it changes its health, and replies after both.
func (p *play) push(s *step) {
	p.t.Helper()
	var all []*configv3.RateLimitConfig
	for text := range strings.SplitSeq(strings.Join(s.block, "\n"), "---\n") {
		c := new(configv3.RateLimitConfig)
		if err := prototext.Unmarshal([]byte(text), c); err != nil {
			p.t.Fatalf("line %d: %v", s.line, err)
		}
		all = append(all, c)
	}
	p.pushes++
	replies := p.replies()
	if err := p.plane.Set("default", strconv.Itoa(p.pushes), all...); err != nil {
		p.t.Fatal(err)
	}
	p.await(func() bool { return p.replies() > replies && p.have(s.counters) })
}

func (p *play) replies() (n int) {
	for _, r := range p.plane.Requests() {
		if r.Nonce != "" {
			n++
		}
	}
	return n
}

// have reports whether the counters have grown by these numbers, and no other counter has.
func (p *play) have(want map[string]uint64) bool {
	p.t.Helper()
	return maps.Equal(want, grown(p.counters, p.count()))
}

// await waits until done returns true, and gives up after `within`: the caller looks again and
// reports the difference.
func (p *play) await(done func() bool) {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); !done() && time.Now().Before(deadline); <-tick.C {
		continue
	}
}

func (p *play) exit(s *step, environment []string) {
	var log, out bytes.Buffer
	code := report(&out, run(p.t.Context(), environment, &log))
	got := []string{fmt.Sprintf("%d", code)}
	got = append(got, strings.Split(strings.TrimSuffix(strings.ReplaceAll(out.String(), p.root, "ROOT"), "\n"), "\n")...)
	if !matchLines(s.page, got) {
		p.problem(s, "(-want +got):\n%s", cmp.Diff(s.page, got))
	}
}

func (p *play) count() map[string]uint64 {
	p.t.Helper()
	_, text := p.running.page(p.t, http.MethodGet, "debug", "/stats", "")
	all := make(map[string]uint64)
	for line := range strings.Lines(text) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			p.t.Fatalf("a line of /stats: %q", line)
		}
		if strings.HasPrefix(name, "ratelimit.localcache.") { // gauges
			continue
		}
		name = strings.TrimPrefix(strings.TrimPrefix(name, "ratelimit.service."), "ratelimit_server.ShouldRateLimit.")
		all[name] = n
	}
	return all
}

func grown(before, now map[string]uint64) map[string]uint64 {
	all := make(map[string]uint64)
	for name, n := range now {
		if n != before[name] {
			all[name] = n - before[name]
		}
	}
	return all
}

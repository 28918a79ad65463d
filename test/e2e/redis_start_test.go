package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// page returns the code and the text of one of the sidecar's pages.
func (s *sidecar) page(t *testing.T, path string) (int, string) {
	t.Helper()
	return fetch(t, "http://"+s.HTTP+path)
}

// awaitPage waits until a page has that code.
func (s *sidecar) awaitPage(t *testing.T, path string, want int) {
	t.Helper()
	eventually(t, func() string {
		if got, text := s.page(t, path); got != want {
			return fmt.Sprintf("%s: got %d %q, want %d", path, got, text, want)
		}
		return ""
	})
}

// messages returns the messages of log lines.
func messages(lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, parts.ParseLog(line).Message)
	}
	return all
}

func TestWithoutRedisASidecarServesAtOnceSaysSoOnceAndSwitchesWhenRedisAppears(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	r.Kill() // and its port is free
	f := startFleet(t, urlOf(r.Address()))
	traffic := f.begin(t)
	// Each has half of the limit.
	if got := f.admitted(t, 2*few, "window", "alone"); got != few {
		t.Errorf("without Redis %d requests passed at two sidecars, want %d", got, few)
	}
	f.awaitState(t, "open")
	traffic.awaitMore(t, 50)
	marks := make([]int, len(f.sidecars))
	for i, s := range f.sidecars {
		if code, text := s.page(t, "/readyz"); code != http.StatusOK {
			t.Errorf("/readyz: got %d %q, want 200", code, text)
		}
		if lines := s.told(0); len(lines) != 1 {
			t.Errorf("lines of sidecar %d that say that Redis is away: got %d, want one:\n%s", i, len(lines), strings.Join(lines, "\n"))
		}
		marks[i] = s.Mark()
	}

	if err := r.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	for i, s := range f.sidecars {
		// A busy machine may answer too late now and then, with lines that say so.
		if lines := s.told(marks[i]); !slices.Contains(messages(lines), "store is back, its counts rule again") {
			t.Errorf("lines of sidecar %d that say that Redis is there: got\n%s", i, strings.Join(lines, "\n"))
		}
	}
	f.left(t, 0, "window", "alone") // Redis has learned of the hits
	f.holds(t)
	f.finish(t)
}

func TestReadinessFollowsRedisOnlyWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := &fleet{}
	strict := f.start(t, fleetRules, urlOf(r.Address()), "--ready-requires-store")
	lax := f.start(t, fleetRules, urlOf(r.Address()))
	strict.awaitPage(t, "/readyz", http.StatusOK)

	r.Kill()
	f.begin(t)
	f.awaitState(t, "open")
	strict.awaitPage(t, "/readyz", http.StatusServiceUnavailable)
	if _, text := strict.page(t, "/readyz"); !strings.HasPrefix(text, "the store is away since ") {
		t.Errorf("/readyz: got %q, want it to say why", text)
	}
	if code, text := strict.page(t, "/livez"); code != http.StatusOK {
		t.Errorf("/livez without Redis: got %d %q, want 200", code, text)
	}
	if code, text := lax.page(t, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz without Redis and --ready-requires-store: got %d %q, want 200", code, text)
	}
	if err := r.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	strict.awaitPage(t, "/readyz", http.StatusOK)
	f.awaitQuiet(t)
	f.finish(t)
}

func TestARedisThatRefusesIsNamedOnceAndServedWithout(t *testing.T) {
	t.Parallel()
	certificates, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	others, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	plain := startRedis(t, parts.RedisOptions{Password: "right", Users: []string{"reader on >right ~weir:* +@read +@connection +info"}})
	secure := startRedis(t, parts.RedisOptions{TLS: certificates})
	for _, test := range []struct {
		name, url string
		args      []string
		want      string // in the error that is logged
	}{
		{"no password", urlOf(plain.Address()), nil, "NOAUTH"},
		{"wrong password", urlOf(":31415926@" + plain.Address()), nil, "WRONGPASS"},
		{"a user that may only read", urlOf("reader:right@" + plain.Address()), nil, "NOPERM"},
		{"TLS where there is none", "rediss://:right@" + plain.Address(), nil, "TLS with " + plain.Address()},
		{"another authority", "rediss://" + secure.Address(), []string{"--redis-tls-ca=" + others.CA}, "certificate"},
		{"no certificate", "rediss://" + secure.Address(), []string{"--redis-tls-ca=" + certificates.CA}, secure.Address()},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fleet{}
			s := f.start(t, fleetRules, test.url, test.args...)
			if got := f.admitted(t, 2*few, "window", "alone"); got != few {
				t.Errorf("%d requests passed, want %d", got, few)
			}
			f.awaitState(t, "open")
			var warnings []string
			eventually(t, func() string { // once an attempt to connect has ended
				warnings = slices.DeleteFunc(s.told(0), func(line string) bool { return parts.ParseLog(line).Level == "INFO" })
				if len(warnings) == 0 {
					return "no warning yet"
				}
				return ""
			})
			if len(warnings) != 1 || !strings.Contains(warnings[0], test.want) {
				t.Errorf("warnings about Redis: got\n%s\nwant one with %q", strings.Join(warnings, "\n"), test.want)
			}
			if strings.Contains(strings.Join(s.Lines(), "\n"), "31415926") {
				t.Errorf("the log shows the password")
			}
			f.end(t)
		})
	}
}

func TestARedisThatCanNeverDoEndsTheStartWithExitCode1(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	info, err := r.Info(deadline(t), "server")
	if err != nil {
		t.Fatal(err)
	}
	version := cmp.Or(info["valkey_version"], info["redis_version"])
	older := "6" + version[1:]
	proxy := startOlder(t, r, version, older)
	for _, test := range []struct{ name, url, want string }{
		{"too old", urlOf(proxy), older + " at " + proxy + ": Weir needs "},
		{"no cluster", "redis-cluster://" + r.Address(), "no cluster at " + r.Address()},
	} {
		t.Run(test.name, func(t *testing.T) {
			rules := filepath.Join(t.TempDir(), "rules.yaml")
			writeFile(t, rules, fleetRules)
			s, err := parts.Start("sidecar", os.Getenv(sidecarVariable), "serve", "--rules="+rules, "--store=redis", "--redis-url="+test.url,
				"--grpc-address=127.0.0.1:0", "--http-address=", "--admin-address=")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Kill)
			code, err := s.Wait(deadline(t))
			if err != nil {
				t.Fatal(err)
			}
			if last := s.Tail(1); code != 1 || !strings.Contains(last, test.want) {
				t.Errorf("got exit code %d and %q, want 1 and %q", code, last, test.want)
			}
			if log := strings.Join(s.Lines(), "\n"); strings.Contains(log, "listening") {
				t.Errorf("it has listened:\n%s", log)
			}
		})
	}
}

// startOlder passes everything on to a Redis but that one word of its answers, its version, is
// another of the same length.
func startOlder(t *testing.T, r *parts.Redis, version, older string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		r.Kill() // and with it all connections
		running.Wait()
	})
	running.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", r.Address())
			if err != nil {
				from.Close()
				continue
			}
			running.Go(func() {
				_, _ = io.Copy(to, from)
				to.Close()
			})
			running.Go(func() {
				defer from.Close()
				for buffer := make([]byte, 1<<16); ; {
					n, err := to.Read(buffer)
					if _, broken := from.Write(bytes.ReplaceAll(buffer[:n], []byte(version), []byte(older))); err != nil || broken != nil {
						return
					}
				}
			})
		}
	})
	return listener.Addr().String()
}

func TestARedisWithTLSClientCertificatesAndAUserOfLittlePowerCounts(t *testing.T) {
	t.Parallel()
	certificates, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// The rights that a sidecar needs, and no more.
	const user = "weir on >s3cret/@ ~weir:* resetchannels -@all +@read +@write +@scripting +@connection +time -@dangerous +info"
	r := startRedis(t, parts.RedisOptions{Username: "admin", Password: "admin", TLS: certificates, Users: []string{user}})
	password := t.TempDir() + "/password"
	writeFile(t, password, "weir:s3cret/@\n")
	f := startFleet(t, "rediss://"+r.Address(), "--redis-password-file="+password,
		"--redis-tls-ca="+certificates.CA, "--redis-tls-cert="+certificates.ClientCert, "--redis-tls-key="+certificates.ClientKey)
	f.awaitState(t, "closed")
	for i, s := range f.sidecars {
		// A busy machine may answer too late now and then, with lines that say so.
		if lines := s.told(0); !slices.Contains(messages(lines), "redis connected") {
			t.Errorf("lines of sidecar %d about Redis: got\n%s", i, strings.Join(lines, "\n"))
		}
	}
	f.begin(t)
	f.holds(t)

	before := f.opened(t)
	r.Kill()
	f.awaitOpened(t, before)
	if err := r.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.holds(t)
	f.finish(t)
}

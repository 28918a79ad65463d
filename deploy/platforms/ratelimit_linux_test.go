package platforms

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// password is the one of all servers that the tests of envoyproxy/ratelimit expect.
const password = "password123"

// TestTheOriginalsIntegrationTestsEndAsThePageSays builds the integration tests of
// envoyproxy/ratelimit from a tree of its source, with a runner that starts Weir's `ratelimit`. The
// servers around them are as in the tree's Makefile, on the same ports.
func TestTheOriginalsIntegrationTestsEndAsThePageSays(t *testing.T) {
	const builtVariable = "PLATFORMS_RATELIMIT_BUILT"
	page := cases(t, "envoyproxy/ratelimit")
	built := os.Getenv(builtVariable)
	if built == "" {
		source := tree(t, "PLATFORMS_RATELIMIT")
		if source == "module" {
			source = ratelimitModule(t)
		}
		sameCases(t, page, integrationTests(t, source))
		built = buildIntegrationTests(t, source)
	}
	redis := parts.NeedRedis(t, parts.RootFor(t))
	program, err := parts.Program(t.Context(), parts.RootFor(t), "cmd/ratelimit", false)
	if err != nil {
		t.Fatal(err)
	}
	if !parts.InWorld(t, append(os.Environ(), builtVariable+"="+built, "REDIS_SERVER="+redis)...) {
		return
	}
	startServers(t, built, redis)
	report(t, page, playIntegrationTests(t, built, program, redis, page))
}

// buildIntegrationTests copies the tree, replaces the runner, and compiles integration.test there.
// The result is the copy.
func buildIntegrationTests(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
		t.Fatal(err)
	}
	runner := filepath.Join(dir, "src/service_cmd/runner/runner.go")
	if _, err := os.Stat(runner); err != nil {
		t.Fatal(err)
	}
	parts.Write(t, runner, parts.Read(t, "runner/runner_linux.go"))
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-tags", "integration",
		"-o", "integration.test", "./test/integration")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the integration tests: %v\n%s", err, out)
	}
	return dir
}

// startServers starts the servers that the tests expect to run, see the targets
// bootstrap_redis_tls and tests_with_redis in the Makefile of the tree. One with TLS replaces a
// plain one behind a stunnel.
func startServers(t *testing.T, tree, redis string) {
	t.Helper()
	certificates, err := parts.NewCertificates(tree)
	if err != nil {
		t.Fatal(err)
	}
	// One file has both the certificate of a client and the certificate of the authority.
	parts.Write(t, filepath.Join(tree, "cert.pem"), parts.Read(t, certificates.ClientCert)+parts.Read(t, certificates.CA))
	parts.Write(t, filepath.Join(tree, "key.pem"), parts.Read(t, certificates.ClientKey))
	for port, verify := range map[int]string{16381: "no", 16382: "no", 16361: "yes"} {
		parts.RedisFor(t, parts.RedisOptions{Port: port, Password: password, TLS: certificates, Config: []string{"tls-auth-clients " + verify}})
	}
	for _, set := range []struct {
		primary, replica int
		config           string
		sentinels        []int
	}{
		{6392, 6393, "sentinel.conf", []int{26394, 26395, 26396}},
		{6397, 6398, "sentinel-pre-second.conf", []int{26399, 26400, 26401}},
	} {
		primary := parts.RedisFor(t, parts.RedisOptions{Port: set.primary, Password: password})
		parts.RedisFor(t, parts.RedisOptions{Port: set.replica, Password: password, ReplicaOf: primary.Address()})
		for _, port := range set.sentinels {
			startSentinel(t, redis, parts.Read(t, filepath.Join(tree, "test/integration/conf", set.config)), port)
		}
	}
	for _, first := range []int{6386, 6389} {
		startCluster(t, first)
	}
}

// startSentinel starts a Sentinel with a configuration, which it writes into.
func startSentinel(t *testing.T, redis, config string, port int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	parts.Write(t, file, config)
	sentinel, err := parts.Start("sentinel", redis, file, "--sentinel", "--port", strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sentinel.Kill)
	parts.Eventually(t, func() string { return refusal(port) })
}

// refusal says why nobody listens on a port of this machine, or "".
func refusal(port int) string {
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err.Error()
	}
	_ = conn.Close()
	return ""
}

// startCluster starts a cluster of three nodes on three ports.
func startCluster(t *testing.T, first int) {
	t.Helper()
	const slots, nodes = 16384, 3
	var all []*parts.Redis
	do := func(node *parts.Redis, args ...string) string {
		answer, err := node.Do(t.Context(), args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return answer.String()
	}
	for i := range nodes {
		node := parts.RedisFor(t, parts.RedisOptions{Port: first + i, Password: password, Cluster: true})
		do(node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/nodes), strconv.Itoa((i+1)*slots/nodes-1))
		do(node, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		for _, other := range all {
			do(node, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.Port()))
		}
		all = append(all, node)
	}
	for _, node := range all {
		parts.Eventually(t, func() string {
			info := do(node, "CLUSTER", "INFO")
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3") {
				return ""
			}
			return info
		})
	}
}

// playIntegrationTests runs the tests that the page says can run, and returns their results. The
// tests give a server a second to start, and count per minute whenever that begins. So a test with
// another result than the page's has two more tries.
func playIntegrationTests(t *testing.T, tree, program, redis string, page map[string]row) map[string]outcome {
	t.Helper()
	path := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", redis) // not a link: it may be a script that looks beside itself
	if err := os.WriteFile(filepath.Join(path, "redis-server"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	environ := append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), "PROJECT_DIR="+tree, "WEIR_RATELIMIT="+program,
		"SSL_CERT_FILE="+filepath.Join(tree, "ca.pem"))
	results := unplayed(page)
	const tries = 3
	for range tries {
		left := make(map[string]bool) // test functions
		for name, row := range page {
			if results[name].result != row.result {
				function, _, _ := strings.Cut(name, "/")
				left[function] = true
			}
		}
		if len(left) == 0 {
			break
		}
		maps.Copy(results, playOnce(t, tree, environ, slices.Sorted(maps.Keys(left))))
	}
	return results
}

// playOnce runs test functions, and returns the outcomes of all that ended.
func playOnce(t *testing.T, tree string, environ, functions []string) map[string]outcome {
	t.Helper()
	play := exec.CommandContext(t.Context(), filepath.Join(tree, "integration.test"), "-test.v", "-test.timeout=20m",
		"-test.run=^("+strings.Join(functions, "|")+")$")
	play.Dir, play.Env = filepath.Join(tree, "test/integration"), environ
	play.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	play.Cancel = func() error { return syscall.Kill(-play.Process.Pid, syscall.SIGKILL) }
	out, err := play.CombinedOutput()
	results := make(map[string]outcome)
	for _, m := range regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+) \((\S+)\)`).FindAllStringSubmatch(string(out), -1) {
		took, err := time.ParseDuration(m[3])
		if err != nil {
			t.Fatal(err)
		}
		results[m[2]] = outcome{strings.ToLower(m[1]), took}
	}
	if err != nil {
		t.Logf("%v\n%s", err, out) // says more than the results
	}
	return results
}

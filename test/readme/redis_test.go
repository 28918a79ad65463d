package readme

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// redis starts a redis-server as the command says until the test ends, on a port that is free, and
// lets redis-cli find it.
func (s *stage) redis(t *testing.T, command string) {
	t.Helper()
	binary := parts.NeedRedis(t, repository)
	_, line, found := strings.Cut(strings.TrimSpace(command), "redis-server")
	if !found {
		t.Fatalf("%q starts no redis-server", command)
	}
	port, lines := "6379", []string{}
	for _, arg := range arguments(line) {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if name == "port" {
			port = value
			continue
		}
		lines = append(lines, name+" "+strconv.Quote(value))
	}
	workspace, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	server, err := parts.StartRedis(parts.Soon(t), binary, workspace, parts.RedisOptions{Config: lines})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	s.add(t, port, server.Address())

	cli := filepath.Join(filepath.Dir(binary), strings.Replace(filepath.Base(binary), "-server", "-cli", 1))
	if _, err := os.Stat(cli); err != nil {
		t.Fatalf("there is no redis-cli beside %s: %v", binary, err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' -p %d \"$@\"\n", cli, server.Port())
	wrapper := filepath.Join(workspace, "bin", "redis-cli")
	if err := os.WriteFile(wrapper, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(wrapper, 0o700); err != nil {
		t.Fatal(err)
	}
}

// A topology is real servers, and the arguments with which a document's command reaches them.
type topology struct {
	hosts     []string // in the place of the addresses of the command, in that order
	nodes     []*parts.Redis
	sentinels []*parts.Redis
	socket    string // in the place of namedSocket
}

// startTopology starts the servers that a document calls by that name, until the test ends.
func startTopology(t *testing.T, name, dir string) topology {
	t.Helper()
	binary := parts.NeedRedis(t, repository)
	single := func(o parts.RedisOptions) topology {
		r, err := parts.StartRedis(parts.Soon(t), binary, dir, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Kill)
		return topology{hosts: []string{r.Address()}, nodes: []*parts.Redis{r}, socket: r.Socket()}
	}
	switch name {
	case "single":
		return single(parts.RedisOptions{})
	case "tls":
		certificates, err := parts.NewCertificates(dir)
		if err != nil {
			t.Fatal(err)
		}
		return single(parts.RedisOptions{TLS: certificates})
	case "sentinel":
		s, err := parts.StartSentinels(parts.Soon(t), binary, dir, parts.SentinelOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		return topology{hosts: addresses(s.Sentinels), nodes: s.Data, sentinels: s.Sentinels}
	case "cluster":
		c, err := parts.StartCluster(parts.Soon(t), binary, dir, parts.RedisOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Kill)
		if err := c.DisableFailover(parts.Soon(t)); err != nil {
			t.Fatal(err)
		}
		return topology{hosts: c.Addresses(), nodes: c.Nodes}
	default:
		t.Fatalf("there is no topology %q", name)
		return topology{}
	}
}

// addresses are the host:port of each.
func addresses(nodes []*parts.Redis) (all []string) {
	for _, r := range nodes {
		all = append(all, r.Address())
	}
	return all
}

// allow makes the user of an ACL file known to servers.
func allow(t *testing.T, nodes []*parts.Redis, acl string) {
	t.Helper()
	command := append([]string{"ACL", "SETUSER"}, strings.Fields(acl)[1:]...) // without "user"
	for _, r := range nodes {
		if _, err := r.Do(parts.Soon(t), command...); err != nil {
			t.Fatal(err)
		}
	}
}

// checkNothingWasRefused looks for commands that the ACL forbade.
func checkNothingWasRefused(t *testing.T, nodes []*parts.Redis) {
	t.Helper()
	for _, r := range nodes {
		message, err := r.Do(parts.Soon(t), "ACL", "LOG")
		if err != nil {
			t.Fatal(err)
		}
		entries, err := message.ToArray()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			fields, _ := e.ToArray() // names and values in turns
			for i := 0; i+1 < len(fields); i += 2 {
				name, _ := fields[i].ToString()
				if value, _ := fields[i+1].ToString(); name == "object" {
					t.Errorf("%s refused %s", r.Address(), value)
				}
			}
		}
	}
}

// fileOf returns the file that a document tells the reader to save under that path.
func fileOf(t *testing.T, path string) string {
	t.Helper()
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.kind == "file" && b.words[0] == path {
				return b.text
			}
		}
	}
	t.Fatalf("no document has a file %s", path)
	return ""
}

const rulesOfAll = `domain: all
descriptors:
  - {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: token_bucket, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 2}}
  - {key: sliding_window_log, rate_limit: {algorithm: sliding_window_log, unit: day, requests_per_unit: 2}}
  - {key: sliding_window_counter, rate_limit: {algorithm: sliding_window_counter, unit: day, requests_per_unit: 2}}
  - {key: token_bucket_integer, rate_limit: {algorithm: token_bucket_integer, unit: day, requests_per_unit: 2}}
`

// namedSocket is the socket that documents name.
const namedSocket = "/run/redis/redis.sock"

var (
	internalHost = regexp.MustCompile(`[a-z0-9-]+\.internal:[0-9]+`)
	ofAlgorithm  = regexp.MustCompile(`key: ([a-z_]+),`)
)

// TestTopologiesOfTheDocumentsConnect starts the servers of the documents, and the sidecar with the
// documents' flags and ACLs. The sidecar counts with each algorithm, for all keys of one request in
// one transaction, and Redis refuses no command.
func TestTopologiesOfTheDocumentsConnect(t *testing.T) {
	n := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.kind == "topology" {
				n++
				t.Run(fmt.Sprintf("%s:%d", b.words[0], b.from), func(t *testing.T) { connect(t, b) })
			}
		}
	}
	if n < 5 {
		t.Errorf("got %d topologies, want all that there are", n)
	}
}

// connect starts servers and the sidecar as a block says.
func connect(t *testing.T, b block) {
	t.Helper()
	dir := t.TempDir()
	at := startTopology(t, b.words[0], dir)
	allow(t, at.nodes, fileOf(t, "rules/redis/users.acl"))
	allow(t, at.sentinels, fileOf(t, "rules/redis/sentinel.acl"))
	t.Chdir(dir)
	for name, text := range map[string]string{"rules/redis/all.yaml": rulesOfAll, "login": "weir:change-me\n", "sentinel-login": "weir:change-me-too\n"} {
		writeFile(t, name, text)
	}
	hosts := slices.Clone(at.hosts)
	command := internalHost.ReplaceAllStringFunc(b.text, func(named string) string {
		if len(hosts) == 0 {
			t.Fatalf("there is no server for %s", named)
		}
		first := hosts[0]
		hosts = hosts[1:]
		return first
	})
	command = strings.ReplaceAll(command, "/etc/weir/redis/", dir+"/")
	if strings.Contains(command, namedSocket) && at.socket == "" {
		t.Skipf("the path of a socket in %s would be too long", dir)
	}
	command = strings.ReplaceAll(command, namedSocket, at.socket)
	args := append(serveArgs(t, command), "--redis-timeout=1s", "--http-json-allow=refund", "--grpc-address=", "--http-address=127.0.0.1:0", "--admin-address=")
	sidecar, err := parts.StartSidecar(parts.Soon(t), os.Getenv(sidecarVariable), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sidecar.Kill)
	if err := sidecar.AwaitStore(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}

	request := func(hits string) string {
		var all []string
		for _, m := range ofAlgorithm.FindAllStringSubmatch(rulesOfAll, -1) {
			all = append(all, fmt.Sprintf(`{"entries":[{"key":%q,"value":"x"}]%s}`, m[1], hits))
		}
		return `{"domain":"all","descriptors":[` + strings.Join(all, ",") + `]}`
	}
	url := "http://" + sidecar.HTTP
	for _, step := range []struct {
		hits string
		want int
	}{{"", 200}, {"", 200}, {`,"hitsAddend":1,"isNegativeHits":true`, 200}, {`,"hitsAddend":2`, 429}, {"", 429}} { // of a fixed window, denied hits count too
		if got := post(t, url+"/json", request(step.hits)); got != step.want {
			t.Errorf("a request of all algorithms with %q: got %d, want %d", step.hits, got, step.want)
		}
	}
	page := fetch(t, http.MethodGet, url+"/metrics", "")
	for _, want := range []string{`weir_store_fallback_decisions_total{policy="local"} 0`, "weir_store_up 1", "weir_store_lost_hits_total 0"} {
		if !strings.Contains(page, "\n"+want+"\n") {
			t.Errorf("the metrics do not say %s", want)
		}
	}
	checkNothingWasRefused(t, slices.Concat(at.nodes, at.sentinels))
}

// post sends a body and returns the code of the answer.
func post(t *testing.T, url, body string) int {
	t.Helper()
	answer, _, err := parts.Page(parts.Soon(t), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}

func TestTheACLOfTheDocumentsAllowsWhatTheScriptDoes(t *testing.T) {
	acl := strings.Fields(fileOf(t, "rules/redis/users.acl"))
	pieces, err := filepath.Glob(filepath.Join(repository, "pkg/store/redisstore/script/*.lua"))
	if err != nil {
		t.Fatal(err)
	}
	script := ""
	for _, piece := range pieces {
		text, err := os.ReadFile(piece)
		if err != nil {
			t.Fatal(err)
		}
		script += string(text)
	}
	called := regexp.MustCompile(`redis\.call\('([A-Z]+)'`).FindAllStringSubmatch(script, -1)
	if len(called) < 10 {
		t.Fatalf("got %d calls in the script, want the many that there are", len(called))
	}
	for _, m := range called {
		if !slices.Contains(acl, "+"+strings.ToLower(m[1])) {
			t.Errorf("the ACL does not allow %s", m[1])
		}
	}
}

func TestArgumentsJoinAFlagAndItsValue(t *testing.T) {
	got := arguments(`--save '' --port 7000 --bare --x=1 --url a b`)
	want := []string{"--save=", "--port=7000", "--bare", "--x=1", "--url=a", "b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

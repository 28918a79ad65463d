package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

const asProgram = "RATELIMIT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func program(t *testing.T, environment []string, args ...string) *exec.Cmd {
	t.Helper()
	path := must.Get(os.Executable())(t)
	c := exec.CommandContext(t.Context(), path, args...)
	c.Env = append([]string{asProgram + "=1", "GORACE=atexit_sleep_ms=0"}, environment...)
	return c
}

const unitWords = "must be second, minute, hour, day, week, month or year"

// wrong is rule files that are bad, and every reason: in them DIR is their directory.
func wrong() map[string]struct {
	files map[string]string
	want  []string
} {
	good := rules("good", "k", 1)
	return map[string]struct {
		files map[string]string
		want  []string
	}{
		"mistakes in one of two": {
			map[string]string{"config/good.yaml": good, "config/x.yaml": "domain: x\nmore: 1\ndescriptors:\n" +
				"- {key: '', rate_limit: {unit: eon, requests_per_unit: -1}}\n- {key: k}\n- {key: k}\n"},
			[]string{
				"DIR/x.yaml:2: more: is not a key that is known here, must be one of domain, descriptors, default, defaults",
				"DIR/x.yaml:4: descriptors[0].key: is missing or empty, must be the key of an entry, as Envoy sends it",
				"DIR/x.yaml:4: descriptors[0].rate_limit.requests_per_unit: is -1, must be a whole number from 0 to 4294967295",
				`DIR/x.yaml:4: descriptors[0].rate_limit.unit: "eon" is not a unit, ` + unitWords,
				`DIR/x.yaml:6: descriptors[2]: "k" is given twice, first in line 5: descriptors side by side must differ in key or value`,
			},
		},
		"mistakes in both": {
			map[string]string{"config/a.yaml": "domain: ''\n", "config/b.yaml": "domain: [\n"},
			[]string{
				"DIR/a.yaml:1: domain: is missing or empty, must be the name of the domain, as Envoy sends it",
				`DIR/b.yaml:1: not valid YAML: did not find expected node content: a text that begins with a mark such as : or , stands in quotes, such as "::1/128"`,
			},
		},
		"a domain in two files": {
			map[string]string{"config/a.yaml": good, "config/b.yaml": good},
			[]string{`DIR/b.yaml:1: domain: domain "good" is defined already, at DIR/a.yaml:1: a domain must be one document`},
		},
		"an empty file": {
			map[string]string{"config/a.yaml": ""},
			[]string{"DIR/a.yaml:1: the document is empty, must be a map with a domain and its descriptors"},
		},
		"no file": {
			map[string]string{"config/README.md": ""},
			[]string{"DIR: holds no rule file, must have at least one"},
		},
		"no directory": {
			map[string]string{"other/x.yaml": good},
			[]string{"DIR: no such file or directory"},
		},
	}
}

func TestABadFirstConfigurationInFilesEndsTheProcessAndSaysWhy(t *testing.T) {
	for name, test := range wrong() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			lay(t, root, test.files)
			dir := filepath.Join(root, "config")
			var want strings.Builder
			for _, reason := range test.want {
				want.WriteString("ratelimit: " + strings.ReplaceAll(reason, "DIR", dir) + "\n")
			}
			for _, force := range []string{"false", "true"} {
				missing := name == "no file" || name == "no directory"
				if missing && force == "true" {
					continue // it starts
				}
				var out, said bytes.Buffer
				c := program(t, append(anyPort(), "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root, "FORCE_START_WITHOUT_INITIAL_CONFIG="+force))
				c.Stdout, c.Stderr = &out, &said
				var ended *exec.ExitError
				if err := c.Run(); !errors.As(err, &ended) || ended.ExitCode() != 1 {
					t.Errorf("it ended with %v; want exit code 1", err)
				}
				if diff := cmp.Diff(want.String(), said.String()); diff != "" || out.Len() > 0 {
					t.Errorf("standard output %q, standard error (-want +got):\n%s", out.String(), diff)
				}
			}
		})
	}
}

// Platforms pass arguments that the original does not look at.
func TestTheProgramIgnoresArgumentsAndEndsWithASignal(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": rules("a", "k", 1)})
	log := new(logtest.Log)
	c := program(t, append(anyPort(), "USE_STATSD=false", "RUNTIME_ROOT="+root), "--quotaRateLimitServiceAddr=ai-gateway:18003", "-h", "serve")
	c.Stderr = log
	must.Do(t, c.Start())
	log.Await(t, 0, logtest.Has(`"@message":"ready"`))
	must.Do(t, c.Process.Signal(syscall.SIGTERM))
	if err := c.Wait(); err != nil {
		t.Errorf("it ended with %v; want exit code 0:\n%s", err, log)
	}
}

// A typo in REDIS_URL must not go unseen: each replica then counts for itself.
func TestTheProgramLogsThatItCountsInMemoryAndNamesAVariableWithATypo(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": rules("a", "k", 1)})
	log := new(logtest.Log)
	c := program(t, append(anyPort(), "USE_STATSD=false", "RUNTIME_ROOT="+root, "REDIS_ULR=redis:6379"))
	c.Stderr = log
	must.Do(t, c.Start())
	_, next := log.Await(t, 0, logtest.Has(`"level":"warning","@message":"REDIS_URL is not set, so counts are in memory: each replica has its own`))
	_, next = log.Await(t, next, logtest.Has(`"level":"warning","@message":"a variable is unknown, and has no effect","variable":"REDIS_ULR","meant":"REDIS_URL"`))
	log.Await(t, next, logtest.Has(`"@message":"ready"`))
	must.Do(t, c.Process.Signal(syscall.SIGTERM))
	must.Do(t, c.Wait())
}

func TestMistakesInTheEnvironmentEndTheProcessAtOnceAndAllAreTold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		environment []string
		want        string
	}{
		"values": {
			environ("HOST=]", "PORT=http", "GRPC_PORT=-1", "PROMETHEUS_PATH=/a//b", "USE_DOG_STATSD_MOGRIFIERS=a=b", "BACKEND_TYPE=memcache", "RUNTIME_ROOT=/nowhere", "STATS_FLUSH_INTERVAL=10",
				"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:Bearer hunter2:x"),
			`ratelimit: HOST: "]": must be a name or an address, of IPv6 with or without brackets
ratelimit: PORT: "http": must be a whole number from 0 to 65535
ratelimit: GRPC_PORT: "-1": must be a whole number from 0 to 65535
ratelimit: CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: one of the pairs: must be a key, one ":" and a value, with commas between such pairs
ratelimit: PROMETHEUS_PATH: "/a//b": must be a path that begins with /, without spaces, braces, . and .. and empty parts
ratelimit: STATS_FLUSH_INTERVAL: "10": must be a duration of at least 0s, such as 10s, 250ms or 0
ratelimit: BACKEND_TYPE: "memcache": counts are not kept in memcached: a request could not be one step there, and failures would pass; must be redis, or memory for counts in this process
ratelimit: USE_DOG_STATSD_MOGRIFIERS: "a=b": must have only characters of a variable's name
`,
		},
		"what they mean": {
			environ("GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/nowhere/tls.crt", "GRPC_SERVER_TLS_KEY=/nowhere/tls.key", "REDIS_SOCKET_TYPE=tcp",
				"REDIS_URL=redis:port", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=grpc-x:hunter2",
				"USE_PROMETHEUS=true", "EXTRA_TAGS=domain:x,key-1:a,key_1:b"),
			`ratelimit: GRPC_SERVER_TLS_CERT: open /nowhere/tls.crt: no such file or directory
ratelimit: GRPC_SERVER_TLS_KEY: open /nowhere/tls.key: no such file or directory
ratelimit: REDIS_URL: URL "redis://redis:***": host 1: the port must be a number from 1 to 65535
ratelimit: xds: address: must not be empty
ratelimit: xds: header "grpc-x": must be the name of an HTTP header, and not start with grpc-
ratelimit: EXTRA_TAGS: tag "domain": is the label domain, which another tag or the metric itself has
ratelimit: EXTRA_TAGS: tag "key_1": is the label key_1, which another tag or the metric itself has
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			c := program(t, test.environment)
			c.Stderr = &said
			var ended *exec.ExitError
			if err := c.Run(); !errors.As(err, &ended) || ended.ExitCode() != 1 {
				t.Errorf("it ended with %v; want exit code 1", err)
			}
			must.Match(t, "standard error", test.want, said.String())
		})
	}
}

func TestALoneHelpOrVersionIsAnswered(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--help": "\n  WEIR_ADMIN_ADDRESS=127.0.0.1:8082\n", "-h": "ratelimit is Weir", "help": "\n  REDIS_URL=\n", "--version": "weir ", "version": ", commit ",
	} {
		out, err := program(t, nil, arg).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "no such file") {
			t.Errorf("%s: got %v and %q, want %q and exit code 0", arg, err, out, want)
		}
	}
}

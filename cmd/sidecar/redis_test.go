package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// password is one that no message may show.
const password = "s3cret/Pa:ss"

// secretFile writes a file with a password and returns its path.
func secretFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSettingsOfRedisComeFromEverywhere(t *testing.T) {
	secret, watcher := secretFile(t, "other\n"), secretFile(t, "watcher:other\n")
	file := settingsFile(t, "weir.yaml", `store: redis
redis-url: ["redis-sentinel://s1,s2/main", "redis-sentinel://s3:1/main"]
redis_prefix: "edge:"
redis-hash-tag: domain
redis_sentinel_password_file: `+watcher+"\n")
	t.Setenv("WEIR_REDIS_TIMEOUT", "25ms")
	t.Setenv("WEIR_READY_REQUIRES_STORE", "true")
	got, err := read(t, "--rules=r", "--config", file, "--on-store-error=deny", "--fleet-size=7", "--redis-password-file", secret)
	if err != nil {
		t.Fatal(err)
	}
	want := redisstore.Target{
		URLs:         []string{"redis-sentinel://s1,s2/main", "redis-sentinel://s3:1/main"},
		PasswordFile: secret, SentinelPasswordFile: watcher,
	}
	if diff := cmp.Diff(want, got.Redis.Target); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r := got.Store.Redis
	if r == nil || r.Timeout != 25*time.Millisecond || r.Prefix != "edge:" || string(r.HashTag([]byte("4:edge|more"))) == "4:edge|more" || got.Store.DenyCache != time.Second || got.Store.FleetSize != 7 {
		t.Errorf("options of the store: got %+v", r)
	}
	if !got.ReadyRequiresStore || got.Limiter.OnStoreError != store.OnErrorDeny {
		t.Errorf("ready requires store %t, on store error %v", got.ReadyRequiresStore, got.Limiter.OnStoreError)
	}
}

func TestMistakesInTheSettingsOfRedis(t *testing.T) {
	secret, empty := secretFile(t, password+"\n"), secretFile(t, "")
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no URL", []string{"--store=redis"}, "redis-url: is missing: --store redis needs the address of Redis, such as redis://127.0.0.1:6379"},
		{"Redis without the store", []string{"--redis-url=redis://a", "--redis-timeout=5ms"}, "--redis-timeout, --redis-url: counts are not kept in Redis: name --store redis, or --store memory if that is meant"},
		{"another store", []string{"--store=memcached"}, `--store: "memcached": must be memory or redis`},
		{"two passwords", []string{"--store=redis", "--redis-url=redis://a", "--redis-url=redis://:x@a", "--redis-password-file", secret}, "redis: a password, and a file of the password: set only one of them"},
		{"two passwords of sentinels", []string{"--store=redis", "--redis-url=redis-sentinel://a/main?sentinel_password=x", "--redis-sentinel-password-file", secret}, "redis: a password of Sentinel, and a file of the password of Sentinel: set only one of them"},
		{"no password in the file", []string{"--store=redis", "--redis-url=redis://a", "--redis-password-file", empty}, "redis: file of the password: " + empty + ": is empty, must hold the password"},
		{"a device", []string{"--store=redis", "--redis-url=redis://a", "--redis-password-file", os.DevNull}, "redis: file of the password: open /dev/null: must be a regular file"},
		{"no file", []string{"--store=redis", "--redis-url=redis://a", "--redis-password-file=missing"}, "redis: file of the password: open missing: no such file or directory"},
		{"prefix", []string{"--store=redis", "--redis-url=redis://a", "--redis-prefix={x}"}, `--redis-prefix: "{x}": must not be empty, and have no { and }`},
		{"empty prefix", []string{"--store=redis", "--redis-url=redis://a", "--redis-prefix="}, `--redis-prefix: "": must not be empty, and have no { and }`},
		{"hash tag", []string{"--store=redis", "--redis-url=redis://a", "--redis-hash-tag=key"}, `--redis-hash-tag: "key": must be none or domain`},
		{"timeout", []string{"--store=redis", "--redis-url=redis://a", "--redis-timeout=0"}, `--redis-timeout: "0": must be a duration from 1ms to 10s, such as 1s, 250ms or 1m30s`},
		{"URLs that are none", []string{"--store=redis", "--redis-url=redis://", "--redis-url=http://x"}, `redis: URL "redis://": host 1: no name` + "\n" +
			`redis: URL "http://x": not a URL of Redis: want redis://host:6379/0, rediss:// (TLS), unix:///path, redis-sentinel://host,host/primary or redis-cluster://host,host`},
		{"a certificate without TLS", []string{"--store=redis", "--redis-url=redis://a", "--redis-tls-ca=ca.pem"}, "redis: a CA, a client certificate and a server name are for TLS: write the URL with rediss, rediss-sentinel or rediss-cluster"},
		{"policy", []string{"--store=redis", "--redis-url=redis://a", "--on-store-error=fail"}, `--on-store-error: "fail": must be local, allow or deny`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := read(t, append([]string{"--rules=r"}, tt.args...)...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestURLsMayHaveCommasAndBeSeveral(t *testing.T) {
	want := []string{"redis-cluster://a:1,b:2", "redis-cluster://c,d"}
	got, err := read(t, "--rules=r", "--store=redis", "--redis-url=redis-cluster://a:1,b:2", "--redis-url=redis-cluster://c,d")
	if diff := cmp.Diff(want, got.Redis.Target.URLs); err != nil || diff != "" {
		t.Errorf("of flags: %v (-want +got):\n%s", err, diff)
	}
	t.Setenv("WEIR_STORE", "redis")
	t.Setenv("WEIR_REDIS_URL", "redis-cluster://a:1,b:2, redis-cluster://c,d")
	got, err = read(t, "--rules=r")
	if diff := cmp.Diff(want, got.Redis.Target.URLs); err != nil || diff != "" {
		t.Errorf("of the environment: %v (-want +got):\n%s", err, diff)
	}
	unset(t, "WEIR_REDIS_URL")
	for _, content := range []string{"[redis-cluster://a:1,b:2, redis-cluster://c,d]", "\n- redis-cluster://a:1,b:2\n- redis-cluster://c,d"} {
		got, err = read(t, "--rules=r", "--config", settingsFile(t, "weir.yaml", "redis-url: "+content+"\n"))
		if diff := cmp.Diff(want, got.Redis.Target.URLs); err != nil || diff != "" {
			t.Errorf("of a file with %s: %v (-want +got):\n%s", content, err, diff)
		}
	}
}

// In an incident one word does without Redis, whatever else is set.
func TestTheStoreOfThisProcessMayBeNamedBesideSettingsOfRedis(t *testing.T) {
	file := settingsFile(t, "weir.yaml", "store: redis\nredis-url: redis://a\nredis-prefix: x\n")
	t.Setenv("WEIR_STORE", "memory")
	if got, err := read(t, "--rules=r", "--config", file); err != nil || got.Store.Redis != nil {
		t.Errorf("got Redis %v, %v; want memory", got.Store.Redis, err)
	}
}

func TestNoMessageShowsAPassword(t *testing.T) {
	tests := map[string][]string{
		"beside a file":   {"--store=redis", "--redis-url=redis://:31415926@a", "--redis-password-file", secretFile(t, password)},
		"in a URL":        {"--store=redis", "--redis-url=redis://user:31415926@host:port", "--redis-url=31415926@", "--redis-url=ftp://:31415926@host"},
		"without a store": {"--redis-password-file", secretFile(t, password), "--redis-url=redis://:31415926@a"},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, append([]string{"--rules=r"}, args...)...)
			if err == nil || strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "31415926") {
				t.Errorf("got %v; want a mistake that does not show the password", err)
			}
		})
	}
}

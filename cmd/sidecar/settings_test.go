package main

import (
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/wire/certificates"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// read returns the settings of a command line.
func read(t *testing.T, args ...string) (config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	addSettings(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return readConfig(flags)
}

// settingsFile writes a settings file and returns its path.
func settingsFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaults(t *testing.T) {
	got, err := read(t, "--rules=rules")
	if err != nil {
		t.Fatal(err)
	}
	want := config{
		Config: app.Config{
			DrainTimeout: 10 * time.Second,
			Listeners: app.Listeners{
				GRPC:           app.Endpoint{Address: ":8081"},
				Socket:         app.Endpoint{Mode: 0o660},
				HTTP:           app.Endpoint{Address: ":8080"},
				Admin:          app.Endpoint{Address: "127.0.0.1:8082"},
				Hosts:          []string{},
				MaxConnections: 1000,
				TLS: app.TLS{ClientNames: []string{}, Files: certificates.Files{
					Certificate: certificates.File{Name: "grpc-tls-cert"}, Key: certificates.File{Name: "grpc-tls-key"},
					Authorities: certificates.File{Name: "grpc-tls-client-ca"},
				}},
				AdminAccess: app.Admin{
					TokenFile: certificates.File{Name: "admin-token-file"},
					TLS: app.TLS{ClientNames: []string{}, Files: certificates.Files{
						Certificate: certificates.File{Name: "admin-tls-cert"}, Key: certificates.File{Name: "admin-tls-key"},
						Authorities: certificates.File{Name: "admin-tls-client-ca"},
					}},
				},
			},
			Rules: reload.Options{
				Paths: []string{"rules"}, Options: descriptors.Options{MaxBytes: 20 << 20},
				Hint: "name a file or directory with --rules, or put a list domains into the settings file",
			},
			XDS:         xds.Options{Node: xds.Node{ID: "default"}},
			Store:       app.StoreOptions{MaxKeys: 1_000_000, OnFull: memstore.Allow},
			Limiter:     limiter.Options{DetailedValues: 1000, TopKeys: 1000, OnStoreError: store.OnErrorLocal},
			Record:      app.Record{MaxBytes: 1 << 30, Hash: []string{}},
			Server:      server.Options{MaxRequestBytes: 64 << 10, MaxBytesInFlight: 32 << 20, Reflection: true},
			XDSRequired: true,
		},
		Redis: redisstore.Options{
			Target: redisstore.Target{URLs: []string{}}, Timeout: 10 * time.Millisecond, Prefix: "weir:",
		},
		ResponseHeaders: []string{}, AllowedJSON: []string{},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(config{}), cmpopts.IgnoreFields(redisstore.Options{}, "HashTag")); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestAFlagWinsOverTheEnvironmentThatOverTheFile(t *testing.T) {
	file := settingsFile(t, "weir.yaml", "rules: [file]\nmax-keys: 1\nmax_request_bytes: 1\nlog-level: error\nreflection: false\n")
	t.Setenv("WEIR_MAX_KEYS", "2")
	t.Setenv("WEIR_MAX_REQUEST_BYTES", "2")
	t.Setenv("WEIR_CONFIG", file)
	got, err := read(t, "--max-keys=3")
	if err != nil {
		t.Fatal(err)
	}
	if got.Store.MaxKeys != 3 || got.Server.MaxRequestBytes != 2 || got.LogLevel != slog.LevelError || got.Server.Reflection || !cmp.Equal(got.Rules.Paths, []string{"file"}) {
		t.Errorf("settings: got %+v", got)
	}
}

func TestAListIsRepeatedOrSeparatedByCommas(t *testing.T) {
	got, err := read(t, "--rules=a,b", "--rules", "c", "--response-headers=ietf, retry-after")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, got.Rules.Paths); diff != "" {
		t.Errorf("rules of flags (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ietf", "retry-after"}, got.ResponseHeaders); diff != "" {
		t.Errorf("response headers (-want +got):\n%s", diff)
	}
	t.Setenv("WEIR_RULES", "d,e,")
	if got, err = read(t); err != nil || !cmp.Equal(got.Rules.Paths, []string{"d", "e"}) {
		t.Errorf("rules of the environment: got %q, %v; want d and e", got.Rules.Paths, err)
	}
	file := settingsFile(t, "weir.yaml", "rules:\n- with, comma\n- f\n")
	unset(t, "WEIR_RULES")
	if got, err = read(t, "--config", file); err != nil || !cmp.Equal(got.Rules.Paths, []string{"with, comma", "f"}) {
		t.Errorf("rules of a file: got %q, %v", got.Rules.Paths, err)
	}
}

func TestAnEmptyAddressIsOff(t *testing.T) {
	t.Setenv("WEIR_HTTP_ADDRESS", "")
	got, err := read(t, "--rules=r", "--admin-address=")
	if err != nil || got.HTTP.Address != "" || got.Admin.Address != "" || got.GRPC.Address == "" {
		t.Errorf("addresses: got %+v, %v; want HTTP and admin off", got, err)
	}
}

func TestAFileMeansTheSameInEveryFormat(t *testing.T) {
	files := map[string]string{
		"weir.yaml": "rules: [a, b]\nmax-keys: 5000\ngrpc_socket_mode: \"0600\"\ndrain-timeout: 1s\npprof: true\ndomains: []\n",
		"weir.yml":  "RULES: a,b\nmax_keys: '5000'\ngrpc-socket-mode: '0600'\ndrain_timeout: 1s\npprof: 'true'\n",
		"weir.toml": "rules = ['a', 'b']\nmax-keys = 5_000\ngrpc-socket-mode = '0o600'\ndrain-timeout = '1s'\npprof = true\n[[domains]]\ndomain = 'x'\n",
		"weir.json": `{"rules": ["a", "b"], "max_keys": 5000, "grpc-socket-mode": "0600", "drain-timeout": "1s", "pprof": true, "domains": []}`,
	}
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			got, err := read(t, "--config", settingsFile(t, name, content))
			if err != nil {
				t.Fatal(err)
			}
			if !cmp.Equal(got.Rules.Paths, []string{"a", "b"}) || got.Store.MaxKeys != 5000 || got.Socket.Mode != fs.FileMode(0o600) ||
				got.DrainTimeout != time.Second || !got.Pages.Pprof {
				t.Errorf("settings: got %+v", got)
			}
		})
	}
}

func TestAModeWithoutQuotesIsRefused(t *testing.T) {
	files := map[string]string{
		"440.yaml":  "grpc-socket-mode: 440\n",
		"660.yaml":  "grpc-socket-mode: 660\n",
		"0660.yaml": "grpc-socket-mode: 0660\n",
		"440.toml":  "grpc-socket-mode = 440\n",
		"440.json":  `{"grpc-socket-mode": 440}`,
	}
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			file := settingsFile(t, name, content)
			got, err := read(t, "--rules=r", "--config", file)
			want := file + `: grpc-socket-mode: must be the permissions of a file in octal, in quotes, such as "0660"`
			if err == nil || err.Error() != want {
				t.Errorf("got mode %v, %v; want %s", got.Socket.Mode, err, want)
			}
		})
	}
}

func TestWhoMayUseJSONIsASetting(t *testing.T) {
	got, err := read(t, "--rules=r", "--http-json=on", "--http-json-allow=refund", "--hosts=a.example,b.example")
	want := server.JSON{From: server.JSONFromAnywhere, Refunds: true}
	if diff := cmp.Diff(want, got.Server.JSON); diff != "" || err != nil || !cmp.Equal(got.Hosts, []string{"a.example", "b.example"}) {
		t.Errorf("got %v (-want +got):\n%s", err, diff)
	}
	for args, want := range map[string]string{
		"--http-json=all":                          `--http-json: "all": must be off, loopback or on`,
		"--http-json-allow=refund,reset":           `--http-json-allow: "reset": must be refund or override`,
		"--hosts=a:8080":                           `--hosts: "a:8080": must be a name without a port, such as weir.example`,
		"--http-json=off --http-json-allow=refund": "--http-json-allow: needs --http-json loopback or on",
		"--http-json=off --http-json-allow=none":   `--http-json-allow: "none": must be refund or override`,
	} {
		if _, err := read(t, append(strings.Fields(args), "--rules=r")...); err == nil || err.Error() != want {
			t.Errorf("%s: got %v; want %s", args, err, want)
		}
	}
}

func TestEveryMistakeIsToldAtOnce(t *testing.T) {
	file := settingsFile(t, "weir.yaml", `max-kyes: 1
drain_timeout: 5
on-full: block
pprof:
log-level: info
log_level: debug
grpc:
  address: :1
`)
	t.Setenv("WEIR_MAX_CONNECTIONS", "many")
	t.Setenv("WEIR_GRPC_ADRRESS", ":9")
	t.Setenv("WEIR_SOMETHING_ELSE", "1")
	_, err := read(t, "--config", file, "--max-keys=-1", "--grpc-address=8081", "--grpc-socket-mode=999", "--response-headers=ietf,old,older",
		"--redis-timeout=1ns")
	want := []string{
		"WEIR_GRPC_ADRRESS: is not a setting, did you mean WEIR_GRPC_ADDRESS?",
		"WEIR_SOMETHING_ELSE: is not a setting",
		file + ": grpc.address: is not a setting, did you mean grpc-address?",
		file + ": log_level: is given twice, with '-' and with '_'",
		file + ": max-kyes: is not a setting, did you mean max-keys?",
		file + ": pprof: has no value",
		`--grpc-address: "8081": must be host:port, such as :8081, 127.0.0.1:8081 or [::]:8081, or "" for off`,
		`--grpc-socket-mode: "999": must be the permissions of a file in octal, such as 0660`,
		`--redis-timeout: "1ns": must be a duration from 1ms to 10s, such as 1s, 250ms or 1m30s`,
		`--max-keys: "-1": must be a whole number from 1 to 2147483647`,
		file + `: on-full: "block": must be allow or deny`,
		`WEIR_MAX_CONNECTIONS: "many": must be a whole number from 1 to 2147483647`,
		`--response-headers: "old": must be ratelimit, ietf or retry-after`,
		`--response-headers: "older": must be ratelimit, ietf or retry-after`,
		file + ": drain-timeout: 5: must be a duration from 0s to 1h0m0s, such as 1s, 250ms or 1m30s",
	}
	if err == nil {
		t.Fatal("settings full of mistakes are accepted")
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}

func TestSettingsThatDoNotGoTogetherAreRefused(t *testing.T) {
	_, err := read(t, "--grpc-address=", "--http-address=")
	if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "rules: no source is set") ||
		!strings.Contains(err.Error(), "all are off") {
		t.Errorf("got %v; want two mistakes", err)
	}
}

func TestASettingsFileThatCannotBeReadIsRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe.yaml")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	endless := filepath.Join(filepath.Dir(pipe), "endless.yaml")
	must.Do(t, os.Symlink("/dev/zero", endless))
	tests := []struct{ name, file, want string }{
		{"missing", "missing.yaml", "no such file or directory"},
		{"syntax", settingsFile(t, "a.yaml", "max-keys: [\n"), "a.yaml: yaml: line"},
		{"twice", settingsFile(t, "b.yaml", "max-keys: 1\nmax-keys: 2\n"), "already defined"},
		{"toml", settingsFile(t, "c.toml", "max-keys\n"), "c.toml: "},
		{"json", settingsFile(t, "d.json", "{"), "d.json: "},
		{"format", "weir.ini", `--config: "weir.ini": must be a file whose name ends in .yaml, .yml, .toml or .json`},
		{"a pipe", pipe, "pipe.yaml: must be a regular file"},
		{"a device", endless, "endless.yaml: must be a regular file"},
		{"itself", settingsFile(t, "e.yaml", "config: other.yaml\n"), "config: is not a setting"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := read(t, "--config", test.file, "--rules=r"); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want %q", err, test.want)
			}
		})
	}
}

func TestVariablesOfKubernetesServicesAreNotOurs(t *testing.T) {
	for name, content := range map[string]string{
		"WEIR_SERVICE_HOST": "10.0.0.1", "WEIR_SERVICE_PORT": "8081", "WEIR_SERVICE_PORT_GRPC": "8081", "WEIR_PORT": "tcp://10.0.0.1:8081",
		"WEIR_PORT_8081_TCP": "tcp://10.0.0.1:8081", "WEIR_PORT_8081_TCP_PROTO": "tcp", "WEIR_PORT_8081_TCP_ADDR": "10.0.0.1",
		"WEIR_ADMIN_SERVICE_HOST": "10.0.0.1", "WEIR_ADMIN_PORT": "tcp://10.0.0.1:8082", "WEIR_ADMIN_PORT_8082_TCP_PORT": "8082",
	} {
		t.Setenv(name, content)
	}
	if _, err := read(t, "--rules=r"); err != nil {
		t.Errorf("got %v", err)
	}
	t.Setenv("WEIR_GRPC_PORT", "8081") // somebody meant something
	if _, err := read(t, "--rules=r"); err == nil {
		t.Error("WEIR_GRPC_PORT=8081 is accepted")
	}
}

func TestNoSettingLooksLikeAVariableOfKubernetes(t *testing.T) {
	for _, s := range table(new(config)) {
		if notOurs(s.variable(), "://") {
			t.Errorf("%s would not be checked for typing errors", s.variable())
		}
	}
}

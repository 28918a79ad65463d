package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/test/parts"
)

func TestSettingsOfXDS(t *testing.T) {
	tests := map[string]struct {
		args []string
		want xds.Options // besides the defaults
	}{
		"an address": {[]string{"--xds-address=envoy-gateway:18001"}, xds.Options{Address: "envoy-gateway:18001"}},
		"a socket":   {[]string{"--xds-address=unix:///run/xds.sock"}, xds.Options{Address: "unix:///run/xds.sock"}},
		"metadata by name": {
			[]string{"--xds-address=[::1]:1", "--xds-node-metadata=a=1, b = x=y,"},
			xds.Options{Address: "[::1]:1", Node: xds.Node{Metadata: map[string]any{"a": "1", "b ": " x=y"}}},
		},
		"metadata in JSON": {
			[]string{"--xds-address=dns:///a:1", `--xds-node-metadata={"a": {"b": [1, true]}, "c": "d,e"}`},
			xds.Options{Address: "dns:///a:1", Node: xds.Node{Metadata: map[string]any{"a": map[string]any{"b": []any{1.0, true}}, "c": "d,e"}}},
		},
		"headers": {
			[]string{"--xds-address=a:1", "--xds-header=authorization=Bearer a=b", "--xds-header=x-a=1,x-b="},
			xds.Options{Address: "a:1", Headers: []xds.Header{{Name: "authorization", Value: "Bearer a=b"}, {Name: "x-a", Value: "1"}, {Name: "x-b"}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := read(t, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			test.want.Node.ID = "default"
			if diff := cmp.Diff(test.want, got.XDS); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSettingsOfXDSThatAreRefused(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.pem")
	const address = `must be host:port, such as 127.0.0.1:18000, or unix:///path, or "" for off`
	tests := map[string]struct {
		args []string
		want string
	}{
		"a host alone":            {[]string{"--xds-address=xds"}, `--xds-address: "xds": ` + address},
		"a port alone":            {[]string{"--xds-address=:18000"}, `--xds-address: ":18000": ` + address},
		"a URL":                   {[]string{"--xds-address=http://xds:18000"}, `--xds-address: "http://xds:18000": ` + address},
		"metadata without a name": {[]string{"--xds-address=a:1", "--xds-node-metadata=a"}, `--xds-node-metadata: "a": must be key=value`},
		"metadata that is no JSON": {
			[]string{"--xds-address=a:1", "--xds-node-metadata={a}"},
			"--xds-node-metadata: must be a JSON object, or key=value,key=value: invalid character 'a' looking for beginning of object key string",
		},
		"a header without a value": {[]string{"--xds-address=a:1", "--xds-header=secret"}, "--xds-header: header 1: must be name=value"},
		"a header of no name": {
			[]string{"--xds-address=a:1", "--xds-header=a b=secret"},
			`--xds-header: "a b": must be the name of an HTTP header, and not start with grpc-`,
		},
		"no address": {
			[]string{"--rules=r", "--xds-delta", "--xds-tls-ca=ca.pem"},
			"--xds-delta, --xds-tls-ca: rules do not come by xDS: name the server with --xds-address",
		},
		"no file": {
			[]string{"--xds-address=a:1", "--xds-tls-ca=" + none, "--xds-tls-key=k"},
			"xds: tls ca: open " + none + ": no such file or directory\nxds: tls cert, tls key: must both be given, or neither",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := read(t, test.args...); err == nil || err.Error() != test.want {
				t.Errorf("settings: got %v, want %s", err, test.want)
			}
		})
	}
}

func TestTLSToXDSIsAskedForByAnyOfItsSettings(t *testing.T) {
	for arg, want := range map[string]bool{"--xds-tls": true, "--xds-tls-server-name=a": true, "--xds-delta": false} {
		c, err := read(t, "--xds-address=a:1", arg)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.XDS.TLS != nil; got != want {
			t.Errorf("%s: TLS %t, want %t", arg, got, want)
		}
	}
}

// controlPlane serves rules for the node "default".
func controlPlane(t *testing.T, options ...grpc.ServerOption) *parts.ControlPlane {
	t.Helper()
	p, err := parts.StartControlPlane(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// serves makes resources all that a control plane has: "domain requests" each, requests of 0 for a
// bad one.
func serves(t *testing.T, p *parts.ControlPlane, version string, requests map[string]uint32) {
	t.Helper()
	var all []*ratelimitv3.RateLimitConfig
	for domain, n := range requests {
		policy := &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: n}
		if n == 0 {
			policy.Unit = ratelimitv3.RateLimitUnit_UNKNOWN
		}
		all = append(all, &ratelimitv3.RateLimitConfig{
			Name: "of-" + domain, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{Key: "user", RateLimit: policy}},
		})
	}
	if err := p.Set("default", version, all...); err != nil {
		t.Fatal(err)
	}
}

// awaitPage waits until a page has that code and a text in it.
func (r *running) awaitPage(t *testing.T, path string, code int, part string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		got, body := r.get(t, path)
		if got == code && strings.Contains(body, part) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %d %q; want %d and %q", path, got, body, code, part)
		}
	}
}

func TestRulesComeByXDSBesideFiles(t *testing.T) {
	p := controlPlane(t)
	s := start(t, "--rules", rulesFile(t, rulesOf("5")), "--xds-address="+p.Address, "--xds-delta")
	s.awaitPage(t, "/readyz", http.StatusServiceUnavailable, "no configuration from xds server "+p.Address+" yet")
	serves(t, p, "1", map[string]uint32{"test": 6, "other": 7})
	s.awaitPage(t, "/readyz", http.StatusOK, "OK")
	s.awaitPage(t, "/rules", http.StatusOK, `"xds:of-test: domain: domain \"test\" is defined already, at `)
	s.awaitPage(t, "/rules", http.StatusOK, `"file": "xds:of-other"`)
	s.awaitPage(t, "/rules", http.StatusOK, fmt.Sprintf("%q", "xds:"+p.Address))
	if got := limitFor(t, s.dial(t, s.address["grpc tcp"])); got != 5 {
		t.Errorf("limit of a domain that a file has too: got %d, want 5, that of the file", got)
	}
	s.awaitPage(t, "/metrics", http.StatusOK, "weir_xds_resources_bad 1\n")
	s.awaitPage(t, "/metrics", http.StatusOK, "weir_config_last_reload_successful 0\n")
}

func TestRulesThatTheControlPlaneDoesNotConfirmSaySo(t *testing.T) {
	p := controlPlane(t)
	serves(t, p, "1", map[string]uint32{"test": 6})
	s := start(t, "--xds-address="+p.Address)
	s.awaitPage(t, "/readyz", http.StatusOK, "OK")
	s.awaitPage(t, "/rules", http.StatusOK, `"unconfirmed_since": null`)
	s.awaitPage(t, "/metrics", http.StatusOK, "weir_xds_unconfirmed_seconds 0\n")
	p.Stop()
	s.awaitPage(t, "/rules", http.StatusOK, `"unconfirmed_since": "20`)
	if _, page := s.get(t, "/metrics"); strings.Contains(page, "weir_xds_unconfirmed_seconds 0\n") {
		t.Error("metrics: unconfirmed for 0 seconds without a control plane")
	}
}

func TestABadFirstConfigurationByXDSIsNotReadyAndSaysWhy(t *testing.T) {
	p := controlPlane(t)
	serves(t, p, "1", map[string]uint32{"test": 0})
	s := start(t, "--xds-address="+p.Address)
	const reason = `xds:of-test: descriptors[0].rate_limit.unit: "UNKNOWN" is not a unit`
	s.awaitPage(t, "/readyz", http.StatusServiceUnavailable, "the configuration from xds server "+p.Address+" was refused: "+reason)
	s.awaitPage(t, "/livez", http.StatusOK, "OK")
	s.read = 0 // the line may come before or after "ready"
	if line := s.await(t, "rules refused"); len(line.Errors) == 0 || !strings.HasPrefix(line.Errors[0], reason) {
		t.Errorf("log: got %q", line.Errors)
	}
	serves(t, p, "2", map[string]uint32{"test": 3})
	s.awaitPage(t, "/readyz", http.StatusOK, "OK")
}

func TestRulesOfXDSNeedNotBeWaitedFor(t *testing.T) {
	s := start(t, "--xds-address=127.0.0.1:1", "--xds-required=false")
	s.awaitPage(t, "/readyz", http.StatusOK, "OK")
}

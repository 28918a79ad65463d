package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	servicev3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirproxy/weir/test/parts"
)

// moduleDirectory returns the directory of a module that crds uses.
func moduleDirectory(t *testing.T, module string) string {
	t.Helper()
	for _, args := range [][]string{{"mod", "download", module}, {"list", "-m", "-f", "{{.Dir}}", module}} {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir = "crds"
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
		if args[0] == "list" {
			return strings.TrimSpace(string(out))
		}
	}
	return ""
}

// rulesOf reads the rules that Envoy Gateway's own tests expect.
func rulesOf(t *testing.T, file string) []*ratelimitv3.RateLimitConfig {
	t.Helper()
	var all []*ratelimitv3.RateLimitConfig
	for _, document := range readAll(t, file) {
		text, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		// Units that are newer than the type here have numbers. Fields that only files have are written
		// too, all of them false.
		for unit, number := range map[string]string{"MONTH": "5", "YEAR": "6", "WEEK": "7"} {
			text = bytes.ReplaceAll(text, []byte(`"unit":"`+unit+`"`), []byte(`"unit":`+number))
		}
		config := new(ratelimitv3.RateLimitConfig)
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, config); err != nil {
			t.Fatal(err)
		}
		all = append(all, config)
	}
	return all
}

// entriesOf returns the entries that Envoy makes of the actions of a route, for a client at
// 192.168.3.4 that sends a header of that text.
func entriesOf(t *testing.T, actions list, header string) []string {
	t.Helper()
	var entries []string
	for _, action := range actions {
		for kind, specifier := range as[table](t, action, "ActionSpecifier") {
			key := as[string](t, specifier, "descriptor_key")
			value, _ := as[table](t, specifier)["descriptor_value"].(string)
			switch {
			case kind == "RequestHeaders":
				value = header
			case value == "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%":
				value = "192.168.3.4"
			case value == "":
				t.Fatalf("%s: nothing says what value it has", kind)
			}
			entries = append(entries, key+"="+value)
		}
	}
	return entries
}

// limitOf returns the descriptor that entries lead to, as the words of the format have it: by key
// and value, else by key alone.
func limitOf(all []*ratelimitv3.RateLimitDescriptor, entries []string) *ratelimitv3.RateLimitDescriptor {
	key, value, _ := strings.Cut(entries[0], "=")
	var found *ratelimitv3.RateLimitDescriptor
	for _, d := range all {
		if d.GetKey() == key && (d.GetValue() == value || d.GetValue() == "" && found == nil) {
			found = d
		}
	}
	if found == nil || len(entries) == 1 {
		return found
	}
	return limitOf(found.GetDescriptors(), entries[1:])
}

// TestEnvoyGatewaysOwnCasesAreAnswered sends every case of Envoy Gateway's tests over xDS, and
// sends the requests of its Envoys. Each limit is found, and equals the rules. Header values
// contain characters of patterns and separators.
func TestEnvoyGatewaysOwnCasesAreAnswered(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob(filepath.Join(moduleDirectory(t, "github.com/envoyproxy/gateway"), "internal/xds/translator/testdata/out/ratelimit-config/*.routes.yaml"))
	if err != nil || len(cases) < 20 {
		t.Fatalf("got %d cases and %v, want the many that there are", len(cases), err)
	}
	m := buildManifests(t, "ai-gateway") // which takes its rules over plain xDS
	limits := 0
	for _, routes := range cases {
		name := strings.TrimSuffix(filepath.Base(routes), ".routes.yaml")
		t.Run(name, func(t *testing.T) {
			configs := rulesOf(t, strings.TrimSuffix(routes, ".routes.yaml")+".yaml")
			plane := parts.ControlPlaneFor(t)
			if err := plane.Set("envoy-ai-gateway-ratelimit", "1", configs...); err != nil {
				t.Fatal(err)
			}
			s := startService(t, m, surroundings{with: map[string]string{"CONFIG_GRPC_XDS_SERVER_URL": plane.Address, "BACKEND_TYPE": "memory"}})
			awaitPage(t, "http://"+s.HTTP+"/readyz", http.StatusOK, "OK")
			asked := 0
			for _, route := range readAll(t, routes) {
				for domain, all := range as[table](t, route, "rateLimitsByDomain") {
					for i, rateLimit := range as[list](t, all) {
						entries := entriesOf(t, as[list](t, rateLimit, "actions"), fmt.Sprintf("_%d*=/:|", i))
						var found *ratelimitv3.RateLimitDescriptor
						for _, config := range configs {
							if config.GetDomain() == domain {
								found = limitOf(config.GetDescriptors(), entries)
							}
						}
						if found.GetRateLimit() == nil {
							t.Fatalf("%s: the rules have no limit for %v", domain, entries)
						}
						policy := found.GetRateLimit()
						unit := servicev3.RateLimitResponse_RateLimit_Unit(policy.GetUnit())
						limit := fmt.Sprintf("%d/%s", policy.GetRequestsPerUnit(), strings.ToLower(unit.String()))
						want := "OVER_LIMIT | OVER_LIMIT " + limit + " left 0"
						if found.GetShadowMode() || policy.GetRequestsPerUnit() == math.MaxUint32 {
							want = "OK | OK " + limit + " left 0"
						}
						// Mostly more than ever fit, so that nothing depends on the time.
						s.ask(t, insecure.NewCredentials(), domain, []question{{strings.Join(entries, " ") + " +" + strconv.Itoa(math.MaxUint32), want}})
						asked++
					}
				}
			}
			if asked == 0 {
				t.Error("nothing was asked")
			}
			limits += asked
		})
	}
	if limits < 40 {
		t.Errorf("got %d limits, want the many that there are", limits)
	}
}

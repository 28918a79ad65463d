package deploy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// startRoutes runs the Envoy of llm-routes with quotas of these sizes, and returns the codes of its
// backends, which a test may change.
func startRoutes(t *testing.T, pt, tenant, od int) (e *envoy, code map[string]*atomic.Int64) {
	t.Helper()
	text, err := os.ReadFile("llm-routes/rules/routes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := t.TempDir()
	sized := strings.NewReplacer("unit: hour", "unit: year", "requests_per_unit: 1000}", fmt.Sprintf("requests_per_unit: %d}", pt),
		"requests_per_unit: 100}", fmt.Sprintf("requests_per_unit: %d}", tenant), "requests_per_unit: 5000}", fmt.Sprintf("requests_per_unit: %d}", od))
	if err := os.WriteFile(filepath.Join(rules, "routes.yaml"), []byte(sized.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := parts.StartSidecar(parts.Soon(t), program(t, "sidecar"), "--rules="+rules,
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	bootstrap := as[table](t, readYAML(t, "llm-routes/envoy.yaml"))
	loopback := table{"socket_address": table{"address": "127.0.0.1", "port_value": 0}}
	as[table](t, bootstrap, "admin")["address"] = loopback
	as[table](t, bootstrap, "static_resources", "listeners", 0)["address"] = loopback
	code = map[string]*atomic.Int64{}
	for i, name := range []string{"rls", "pt", "od"} {
		address := s.GRPC
		if i > 0 {
			of := new(atomic.Int64)
			of.Store(http.StatusOK)
			code[name] = of
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("x-served-by", name)
				w.WriteHeader(int(of.Load()))
			}))
			t.Cleanup(backend.Close)
			address = backend.Listener.Addr().String()
		}
		endpoint := as[table](t, bootstrap, "static_resources", "clusters", i, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint")
		endpoint["address"] = socket(t, address)
	}
	return startEnvoy(t, bootstrap), code
}

// served sends requests of a tenant, "" for none, and returns who served them; the code of one that
// nobody did.
func (e *envoy) served(t *testing.T, tenant string, n int) (all []string) {
	t.Helper()
	c := call{}
	if tenant != "" {
		c.headers = []string{"x-tenant: " + tenant}
	}
	asked := func() int64 {
		n, err := e.Stat(parts.Soon(t), "cluster.rls.upstream_rq_completed")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range n {
		before := asked()
		answer := e.send(t, c)
		if answer.Header.Get("x-served-by") != "" { // the end comes behind the answer
			parts.Eventually(t, func() string {
				if asked() < before+2 {
					return "the end of a request has not come"
				}
				return ""
			})
		}
		by := answer.Header.Get("x-served-by")
		if answer.StatusCode != http.StatusOK {
			by = fmt.Sprint(answer.StatusCode)
		}
		all = append(all, by)
	}
	return all
}

func TestRequestsGoWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		pt, tenant, od int
		of             string
		broken         bool
		want           []string
	}{
		{"three to pt then five to od then 429", 3, 100, 5, "", false, slices.Concat(slices.Repeat([]string{"pt"}, 3), slices.Repeat([]string{"od"}, 5), []string{"429", "429"})},
		{"a spent tenant goes to od", 2, 1, 5, "red", false, []string{"pt", "od", "od"}},
		{"od is charged when pt is broken", 3, 100, 2, "", true, []string{"od", "od", "503"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, code := startRoutes(t, test.pt, test.tenant, test.od)
			if test.broken {
				code["pt"].Store(http.StatusServiceUnavailable)
			}
			if got := e.served(t, test.of, len(test.want)); !slices.Equal(got, test.want) {
				t.Errorf("served by %v, want %v", got, test.want)
			}
		})
	}
}

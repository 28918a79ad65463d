package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// startDeployed runs Envoy with a bootstrap of deploy/ before a backend, and asks the rate limit
// service at host:port. The replacements are pairs of an old text and a new one.
func startDeployed(t *testing.T, file string, backend *parts.Backend, service string, replacements ...string) *envoy {
	t.Helper()
	_, port, err := net.SplitHostPort(service)
	if err != nil {
		t.Fatal(err)
	}
	return startEnvoyOn(t, withPorts(t, backend.Address(), file, append(replacements, "port_value: 8081", "port_value: "+port)...))
}

// withoutValues returns calls without the values of entries.
func withoutValues(calls []string) []string {
	var all []string
	for _, call := range calls {
		all = append(all, regexp.MustCompile(`=[^,; ]+`).ReplaceAllString(call, ""))
	}
	return all
}

// think asks Anthropic's messages for a streamed answer that costs so many tokens, at an estimate
// of 10 to 9999.
func (e *envoy) think(t *testing.T, cost, estimate int, query, user string, headers ...string) *flight {
	t.Helper()
	const bytes = 9 // of the body, each four of them
	body := fmt.Sprintf(`{"stream": true, "max_tokens": %d}`, estimate-bytes)
	path := fmt.Sprintf("/v1/messages?input=%d&output=%d&%s", cost/3, cost-cost/3, query)
	return e.flyWith(t, path, strings.NewReader(body), append(headers, "x-user: "+user, "x-team: team")...)
}

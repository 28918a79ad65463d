package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
)

const (
	askMinute    = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}]}]}`
	refundMinute = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}], "hitsAddend": "2", "isNegativeHits": true}]}`
	raiseMinute  = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}], "limit": {"requestsPerUnit": 9, "unit": "MINUTE"}}]}`
)

func TestJSONTakesRequestsOfThisMachineOnly(t *testing.T) {
	tests := []struct {
		name string
		json JSON
		from string
		set  map[string]string // headers; Host too
		code int
		text string // part of the answer
	}{
		{"usual", JSON{}, "127.0.0.1:1", nil, 200, "overallCode"},
		{"loopback_of_version_6", JSON{}, "[::1]:1", nil, 200, ""},
		{"version_4_in_version_6", JSON{}, "[::ffff:127.0.0.1]:1", nil, 200, ""},
		{"another_machine", JSON{}, "192.0.2.1:1", nil, 403, "from loopback addresses only, not from 192.0.2.1:1"},
		{"no_address", JSON{}, "@", nil, 403, "loopback"},
		{"another_machine_allowed", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", nil, 200, ""},
		{"forwarded", JSON{}, "127.0.0.1:1", map[string]string{"X-Forwarded-For": "192.0.2.1"}, 403, "X-Forwarded-For"},
		{"forwarded_by_Envoy", JSON{}, "127.0.0.6:1", map[string]string{"X-Forwarded-Proto": "http"}, 403, "X-Forwarded-Proto"},
		{"forwarded_by_Envoy_to_its_own_address", JSON{}, "127.0.0.1:1", map[string]string{"X-Envoy-Internal": "true"}, 403, "X-Envoy-Internal"},
		{"forwarded_by_the_standard", JSON{}, "127.0.0.1:1", map[string]string{"Forwarded": "for=192.0.2.1"}, 403, "Forwarded"},
		{"via", JSON{}, "127.0.0.1:1", map[string]string{"Via": "1.1 proxy"}, 403, "Via"},
		{"forwarded_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Via": "1.1 proxy"}, 200, ""},
		{"off", JSON{From: JSONOff}, "127.0.0.1:1", nil, 404, ""},

		{"type_with_parameters", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "Application/JSON; charset=utf-8"}, 200, ""},
		{"no_type", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": ""}, 415, "must be application/json"},
		{"text", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "text/plain"}, 415, "text/plain"},
		{"form", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415, ""},
		{"two_types", JSON{}, "127.0.0.1:1", map[string]string{"Content-Type": "text/plain, application/json"}, 415, ""},
		{"text_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Content-Type": "text/plain"}, 415, ""},

		{"its_own_page", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "http://localhost:8080"}, 200, ""},
		{"a_foreign_page", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "https://evil.example"}, 403, "other sites"},
		{"another_port", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "http://localhost:3000"}, 403, ""},
		{"a_page_of_nowhere", JSON{}, "127.0.0.1:1", map[string]string{"Origin": "null"}, 403, ""},
		{"a_browser_says_so", JSON{}, "127.0.0.1:1", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, ""},
		{"a_foreign_page_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Origin": "https://evil.example"}, 403, ""},

		{"localhost_without_port", JSON{}, "127.0.0.1:1", map[string]string{"Host": "LOCALHOST."}, 200, ""},
		{"an_address", JSON{}, "127.0.0.1:1", map[string]string{"Host": "127.0.0.1:8080"}, 200, ""},
		{"an_address_of_version_6", JSON{}, "[::1]:1", map[string]string{"Host": "[::1]:8080"}, 200, ""},
		{"version_6_without_port", JSON{}, "[::1]:1", map[string]string{"Host": "[::1]"}, 200, ""},
		{"a_name_that_turned", JSON{}, "127.0.0.1:1", map[string]string{"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}, 421, "evil.example"},
		{"no_host", JSON{}, "127.0.0.1:1", map[string]string{"Host": ""}, 421, ""},
		{"a_longer_name", JSON{}, "127.0.0.1:1", map[string]string{"Host": "localhost.evil.example"}, 421, ""},
		{"a_listed_name", JSON{Hosts: []string{"Weir.Example"}}, "127.0.0.1:1", map[string]string{"Host": "weir.example.:8080"}, 200, ""},
		{"an_unlisted_name_where_all_may", JSON{From: JSONFromAnywhere}, "192.0.2.1:1", map[string]string{"Host": "evil.example"}, 421, ""},

		{
			"as_the_original",
			JSON{From: JSONFromAnywhere, AnyClient: true},
			"192.0.2.1:1",
			map[string]string{"Host": "evil.example", "Origin": "https://evil.example", "Content-Type": "text/plain"},
			200, "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.JSON = test.json })
				for name, pages := range map[string]http.Handler{"with zeros": f.json, "without": jsonOf(f.server, false)} {
					r, w := fromHere(t, "POST", "/json", askMinute), httptest.NewRecorder()
					r.RemoteAddr = test.from
					for header, value := range test.set {
						if header == "Host" {
							r.Host = value
							continue
						}
						r.Header.Set(header, value)
					}
					pages.ServeHTTP(w, r)
					if w.Code != test.code || !strings.Contains(w.Body.String(), test.text) {
						t.Errorf("%s: got %d %q; want %d with %q", name, w.Code, w.Body, test.code, test.text)
					}
				}
			})
		})
	}
}

// A refund of a key that is exhausted would let its client go on, and an override would raise its
// limit.
func TestJSONRefundsAndOverridesWhereAllowedOnly(t *testing.T) {
	for _, test := range []struct {
		name  string
		json  JSON
		body  string
		code  int // of the body, when the key is exhausted
		text  string
		after int // of a request of one hit behind it
	}{
		{"refund", JSON{}, refundMinute, 403, "descriptors[0].is_negative_hits: /json does not take refunds here", 429},
		{"refund_where_overrides_are", JSON{Overrides: true}, refundMinute, 403, "", 429},
		{"refund_allowed", JSON{Refunds: true}, refundMinute, 200, "", 200},
		{"override", JSON{}, raiseMinute, 403, "descriptors[0].limit: /json does not take overrides here", 429},
		{"override_where_refunds_are", JSON{Refunds: true}, raiseMinute, 403, "", 429},
		{"override_allowed", JSON{Overrides: true}, raiseMinute, 200, "", 429},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.JSON = test.json })
				for i, want := range []int{200, 200, 429} {
					if got := f.fetch(t, "POST", "/json", askMinute).Code; got != want {
						t.Fatalf("request %d: got %d, want %d", i+1, got, want)
					}
				}
				got := f.fetch(t, "POST", "/json", test.body)
				if got.Code != test.code || !strings.Contains(got.Body.String(), test.text) {
					t.Errorf("got %d %q; want %d with %q", got.Code, got.Body, test.code, test.text)
				}
				if got := f.fetch(t, "POST", "/json", askMinute).Code; got != test.after {
					t.Errorf("one hit behind it: got %d, want %d", got, test.after)
				}
			})
		})
	}
}

func TestNewRefusesAnUnknownSetOfClientsOfJSON(t *testing.T) {
	_, err := New(Options{JSON: JSON{From: 3}})
	if err == nil || !strings.Contains(err.Error(), "json: from 3: must be JSONFromLoopback") {
		t.Errorf("New: got %v; want a mistake in it", err)
	}
}

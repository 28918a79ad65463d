package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/test/parts"
)

// A wire is one API of language models, of JSON or of events.
type wire struct {
	name string
	path string // with the query of the API
	body string // of a request, with %d for the client's maximum
}

// wires are the APIs of deploy/llm.
func wires() []wire {
	const gemini = `{"contents": [{"parts": [{"text": "Why is the sky blue?"}]}], "generationConfig": {"maxOutputTokens": %d}}`
	return []wire{
		{"OpenAI chat completions", "/v1/chat/completions?", `{"model": "m", "messages": [], "max_completion_tokens": %d}`},
		{
			"OpenAI chat completions, streamed", "/v1/chat/completions?",
			`{"model": "m", "messages": [], "max_tokens": %d, "stream": true, "stream_options": {"include_usage": true}}`,
		},
		{"OpenAI responses", "/v1/responses?", `{"model": "m", "input": "Why is the sky blue?", "max_output_tokens": %d}`},
		{"OpenAI responses, streamed", "/v1/responses?", `{"model": "m", "input": "Why?", "max_output_tokens": %d, "stream": true}`},
		{"Anthropic messages", "/v1/messages?", `{"model": "m", "messages": [], "max_tokens": %d}`},
		{"Anthropic messages, streamed", "/v1/messages?", `{"model": "m", "messages": [], "max_tokens": %d, "stream": true}`},
		{"Gemini generateContent", "/v1beta/models/m:generateContent?", gemini},
		{"Gemini generateContent, streamed", "/v1beta/models/m:streamGenerateContent?alt=sse&", gemini},
	}
}

// ask returns the path and the body of a request for an answer with a usage. The estimate is a
// token for each four bytes, and the client's maximum.
func (w wire) ask(most int, usage parts.Usage) (path, body string, estimate int) {
	body = fmt.Sprintf(w.body, most)
	return w.path + usage.Query(), body, (len(body)+3)/4 + most
}

// passing answers each call of Envoy with OK.
func passing(context.Context, string) (ratelimitv3.RateLimitResponse_Code, error) {
	return ratelimitv3.RateLimitResponse_OK, nil
}

func TestEachAPIBeginsWithItsEstimateAndEndsWithItsTokens(t *testing.T) {
	t.Parallel()
	r := startRecorder(t, passing)
	e := startDeployed(t, "llm/envoy.yaml", parts.BackendFor(t), r.address)
	usages := []parts.Usage{
		{Input: 40, Output: 2},
		{Input: 100, Cached: 64, Written: 5, Output: 23, Reasoning: 20},
		{Input: 200, Cached: 90, Tools: 30, Output: 77, Reasoning: 77},
		{Input: 1, Output: 200_000},
		{},
	}
	for _, w := range wires() {
		for i, usage := range usages {
			user := fmt.Sprintf("%s-%d", regexp.MustCompile(`\W`).ReplaceAllString(w.name, "-"), i)
			path, body, estimate := w.ask(50, usage)
			a, err := e.send(parts.Soon(t), http.DefaultClient, path, strings.NewReader(body), "x-user: "+user, "x-team: team")
			if err != nil || a.code != http.StatusOK {
				t.Fatalf("%s: got %d (%v), want 200", w.name, a.code, err)
			}
			awaitCalls(t, r, user, estimate, usage.Input+usage.Output)
			if strings.HasPrefix(w.name, "Gemini") {
				usage.Written = 0 // which its answers do not have
			}
			want := fmt.Sprintf("usage=%d/%d/%d/%d/m", usage.Input, usage.Cached, usage.Written, usage.Output)
			if calls := r.of(user); len(calls) < 2 || strings.Count(calls[1], want+",") != 2 {
				t.Errorf("%s: got the calls %v, want the end with %s", w.name, calls, want)
			}
		}
	}
}

// awaitCalls waits for the begin and the end of one request, and reports whether both are right.
func awaitCalls(t *testing.T, r *recorder, user string, begin, end int) bool {
	t.Helper()
	parts.Eventually(t, func() string {
		if got := len(r.of(user)); got < 2 {
			return fmt.Sprintf("%s: Envoy has asked %d times, want twice", user, got)
		}
		return ""
	})
	want := []string{
		fmt.Sprintf("user,usage,request +%d; team,usage,request +%[1]d", begin),
		fmt.Sprintf("user,usage,request_done +%d; team,usage,request_done +%[1]d", end),
	}
	calls := r.of(user)
	for i, hits := range []int{begin, end} {
		for _, found := range regexp.MustCompile(`,usage=([^,; ]*),`).FindAllStringSubmatch(calls[i], -1) {
			u, err := descriptors.ParseUsage(found[1])
			if err != nil || int(u.Input+u.Output) != hits { // both count all tokens
				t.Errorf("%s: the usage %s (%v) is not %d tokens", user, found[1], err, hits)
			}
		}
	}
	diff := cmp.Diff(want, withoutValues(calls))
	if diff != "" {
		t.Errorf("%s: what Envoy asks (-want +got):\n%s", user, diff)
	}
	return diff == ""
}

// No request may escape its limit by an estimate that Envoy cannot read: Envoy then leaves the
// descriptor out. The end always comes.
func TestEveryRequestToAModelHasAnEstimateAndAnEnd(t *testing.T) {
	t.Parallel()
	r := startRecorder(t, passing)
	backend := parts.BackendFor(t)
	e := startDeployed(t, "llm/envoy.yaml", backend, r.address)
	const (
		answer  = 1000 // the estimate of an answer without a maximum
		named   = `{"max_tokens": 50}`
		input   = 5 // of this body
		begin   = input + 50
		chat    = "/v1/chat/completions?"
		message = "/v1/messages?"
	)
	tests := []struct {
		name, path, body string
		begin, end       int
	}{
		{"the maximum is text", chat, `{"max_tokens": "1"}`, 5 + answer, 0}, // the model refuses
		{"the maximum is negative", chat, `{"max_tokens": -50}`, 5 + answer, 105},
		{"the maximum is zero", chat, `{"max_tokens": 0}`, 5 + answer, 105},
		{"the maximum is enormous", chat, `{"max_tokens": 1e300}`, 6 + answer, 0},
		{"the maximum is larger than 64 bits", chat, `{"max_tokens": 99999999999999999999}`, 9 + answer, 0},
		{"the maximum is large", chat + "output=1&", `{"max_tokens": 9000000000}`, 7 + 1_000_000, 7 + 1},
		{"the maximum is a list", chat, `{"max_tokens": [1]}`, 5 + answer, 0},
		{"the maximum is null", chat, `{"max_tokens": null}`, 5 + answer, 105},
		{"no maximum", chat, `{}`, 1 + answer, 101},
		{"another API's maximum", message, `{"max_completion_tokens": 50}`, 8 + answer, 8 + 25},
		{"JSON that is no object", chat, `[1, 2]`, 2 + answer, 0},
		{"no usage in a stream", chat, `{"max_tokens": 50, "stream": true}`, 9 + 50, 9 + 50},
		{"a stream that is a list of JSON", "/v1beta/models/m:streamGenerateContent?", `{}`, 1 + answer, 101},
		{"a model that does not answer with JSON", chat + "tokens=0&stream=2&", `{"max_tokens": 50}`, begin, input + 25},
		{"another content type", chat, named, begin, input + 25},
		{"a cost of zero", chat + "input=0&output=0&", named, begin, 0},
		{"a cost that is no number", chat + "output=-3&", named, begin, begin},
		{"a cost that Envoy cannot charge", chat + "output=3000000000&", named, begin, begin},
		{"an error of the model", chat + "status=503&", named, begin, 0},
		{"a timeout of the model", chat + "status=504&", named, begin, begin},
		{"a redirect", chat + "to=/&", named, begin, 0},
		{"the model breaks the connection", chat + "reset=begin&", named, begin, 0},
		{"the model breaks an answer", message + "reset=midway&", named, begin, begin},
		{"the model breaks a stream", message + "reset=midway&", `{"max_tokens": 50, "stream": true}`, 9 + 50, 9 + 50},
	}
	for _, chunked := range []bool{false, true} {
		for i, test := range tests {
			user := fmt.Sprintf("%d-%t", i, chunked)
			var body io.Reader = strings.NewReader(test.body)
			if chunked {
				body = io.MultiReader(body) // the client does not know the length
			}
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			headers := []string{"x-user: " + user, "x-team: team"}
			if test.name == "another content type" {
				headers = append(headers, "content-type: text/plain")
			}
			_, err := e.send(parts.Soon(t), client, test.path, body, headers...)
			if err != nil && !strings.Contains(test.path, "reset=midway") {
				t.Fatalf("%s: %v", test.name, err)
			}
			if !awaitCalls(t, r, user, test.begin, test.end) {
				t.Errorf("that was %q", test.name)
			}
		}
	}
	for _, path := range []string{chat + "gate=before&", message + "midway=in-the-middle&"} {
		gate := regexp.MustCompile(`=(.*)&`).FindStringSubmatch(path)[1]
		ctx, leave := context.WithCancel(parts.Soon(t))
		ended := make(chan error)
		go func() {
			_, err := e.send(ctx, http.DefaultClient, path, strings.NewReader(named), "x-user: "+gate, "x-team: team")
			ended <- err
		}()
		awaitGate(t, backend, gate, 1)
		leave()
		if err := <-ended; err == nil {
			t.Errorf("a client that leaves %s: got no error", gate)
		}
		awaitCalls(t, r, gate, begin, begin)
	}
}

// Other requests must not come to the model: nobody would count the tokens.
func TestNothingComesToAModelUncounted(t *testing.T) {
	t.Parallel()
	r := startRecorder(t, passing)
	e := startDeployed(t, "llm/envoy.yaml", parts.BackendFor(t), r.address)
	for _, test := range []struct {
		path, body string
		code       int
	}{
		{"/v1/chat/completions", "max_tokens", http.StatusBadRequest},
		{"/v1/chat/completions", `{"max_tokens": 1} {}`, http.StatusBadRequest},
		// Envoy holds a request to read it, up to max_request_bytes.
		{"/v1/chat/completions", `{"messages": "` + strings.Repeat("word ", 1<<20) + `"}`, http.StatusRequestEntityTooLarge},
		{"/v1/embeddings", `{}`, http.StatusNotFound},
		{"/v1/messages/", `{}`, http.StatusNotFound},
		{"/v1beta/models/m:countTokens", `{}`, http.StatusNotFound},
		{"//v1/messages", `{}`, http.StatusNotFound},
	} {
		a, err := e.send(parts.Soon(t), http.DefaultClient, test.path, strings.NewReader(test.body), "x-user: alice", "x-team: red")
		if err != nil || a.code != test.code {
			t.Errorf("%s %.20q: got %d (%v), want %d", test.path, test.body, a.code, err, test.code)
		}
	}
	if calls := r.of(""); len(calls) > 0 {
		t.Errorf("got the calls %v, want none", calls)
	}
}

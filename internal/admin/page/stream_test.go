package page

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// service is an admin service whose answers a test gives.
type service struct {
	adminv1.UnimplementedAdminServiceServer

	watch   func(*adminv1.WatchRequest, grpc.ServerStreamingServer[adminv1.WatchResponse]) error
	explain func(*adminv1.ExplainRequest) (*adminv1.ExplainResponse, error)
}

func (s *service) Watch(in *adminv1.WatchRequest, stream grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
	return s.watch(in, stream)
}

func (s *service) Explain(_ context.Context, in *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return s.explain(in)
}

// listen serves the page on a port.
func (f fixture) listen(t *testing.T) (url string) {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(func() { f.Close(); s.CloseClientConnections(); s.Close() })
	f.Begin()
	return s.URL
}

// stream opens a stream, and returns its events without their data.
func openStream(t *testing.T, url string) (answer *http.Response, next func() string) {
	t.Helper()
	answer, err := http.Get(url) //nolint:noctx // the test closes it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return answer, func() string {
		for lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				return name
			}
		}
		return "end"
	}
}

func TestEventsBeginWithTheHistoryAndTheState(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Service = new(counters) })
	answer, next := openStream(t, f.listen(t)+"/events")
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("got %d, %v", answer.StatusCode, answer.Header)
	}
	if first, second := next(), next(); first != "history" || second != "state" {
		t.Errorf("events %s, %s; want history, state", first, second)
	}
	f.Close()
	for event := next(); event != "end"; event = next() {
		if event != "state" {
			t.Errorf("event %s after Close", event)
		}
	}
}

func TestOpenPagesAreBounded(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Service = new(counters) })
	url := f.listen(t)
	var opened, refused int
	var leave func()
	for range 40 {
		answer, next := openStream(t, url+"/events")
		switch answer.StatusCode {
		case http.StatusOK:
			opened++
			next()
			leave = func() { _ = answer.Body.Close() }
		case http.StatusServiceUnavailable:
			refused++
			if body := text(t, answer); !strings.Contains(body, "16 pages are open already") {
				t.Errorf("refusal: %q", body)
			}
		}
	}
	if opened != maxStreams || refused != 40-maxStreams {
		t.Errorf("%d opened, %d refused; want %d and the others", opened, refused, maxStreams)
	}
	leave()
	for { // the server notices the end when it writes next
		answer, _ := openStream(t, url+"/events")
		if answer.StatusCode == http.StatusOK {
			break
		}
	}
}

func TestTheTailPassesWatchOn(t *testing.T) {
	var asked *adminv1.WatchRequest
	f := newPage(t, func(o *Options) {
		o.Service = &service{watch: func(in *adminv1.WatchRequest, stream grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
			asked = in
			if err := stream.SendHeader(metadata.MD{}); err != nil {
				return err
			}
			if err := stream.Send(&adminv1.WatchResponse{LeftOut: 7}); err != nil {
				return err
			}
			<-stream.Context().Done()
			return stream.Context().Err()
		}}
	})
	answer, next := openStream(t, f.listen(t)+"/tail?domain=d&rule=r&entry=a%3Db%3Dc&entry=e&outcome=over_limit&max=7")
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s", answer.StatusCode, text(t, answer))
	}
	for event := next(); event != "requests"; event = next() {
		if event != "begun" {
			t.Fatalf("event %s", event)
		}
	}
	if asked.GetDomain() != "d" || asked.GetRule() != "r" || len(asked.GetEntries()) != 2 || asked.GetEntries()[0].GetValue() != "b=c" ||
		asked.GetOutcomes()[0] != adminv1.Outcome_OUTCOME_OVER_LIMIT || asked.GetMaxPerSecond() != 7 {
		t.Errorf("asked %v", asked)
	}
}

func TestATailThatIsRefusedSaysWhy(t *testing.T) {
	f := newPage(t, func(o *Options) {
		o.Service = &service{watch: func(*adminv1.WatchRequest, grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
			return status.Error(codes.ResourceExhausted, "32 clients watch already")
		}}
	})
	url := f.listen(t)
	for path, want := range map[string]int{"/tail": http.StatusTooManyRequests, "/tail?outcome=wrong": http.StatusBadRequest, "/tail?max=0": http.StatusBadRequest, "/tail?outcome=unspecified": http.StatusBadRequest} {
		answer, _ := openStream(t, url+path)
		if answer.StatusCode != want {
			t.Errorf("%s: got %d, want %d", path, answer.StatusCode, want)
		}
	}
}

func TestStreamsOfOtherSitesAreRefused(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Service = new(counters) })
	for _, path := range []string{"/events", "/tail"} {
		for _, site := range []string{"cross-site", "same-site"} {
			if got := f.ask("GET", path, "", "Sec-Fetch-Site: "+site); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s from %s: got %d, want 403", path, site, got.StatusCode)
			}
		}
	}
}

func TestCallsAreJSONOfThisPageAlone(t *testing.T) {
	f := newPage(t, func(o *Options) {
		o.Service = &service{explain: func(in *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
			if in.GetDomain() == "" {
				return nil, status.Error(codes.InvalidArgument, "domain must not be empty")
			}
			return &adminv1.ExplainResponse{KnownDomains: []string{in.GetDomain()}}, nil
		}}
	})
	const kind = "Content-Type: application/json"
	tests := []struct {
		name, path, body string
		headers          []string
		want             int
		text             string
	}{
		{"a call", "/api/Explain", `{"domain": "d"}`, []string{kind}, 200, `"d"`},
		{"the error of a call", "/api/Explain", `{}`, []string{kind}, 400, "domain must not be empty"},
		{"no JSON", "/api/Explain", `domain=d`, []string{kind}, 400, "syntax error"},
		{"an unknown field", "/api/Explain", `{"nothing": 1}`, []string{kind}, 400, "nothing"},
		{"a form", "/api/Explain", `{"domain": "d"}`, []string{"Content-Type: application/x-www-form-urlencoded"}, 415, "application/json"},
		{"a plain text, which forms can send", "/api/Explain", `{"domain": "d"}`, []string{"Content-Type: text/plain"}, 415, "application/json"},
		{"another site", "/api/Explain", `{"domain": "d"}`, []string{kind, "Origin: http://evil.example"}, 403, "other sites"},
		{"a method that is not there", "/api/Reset", `{}`, []string{kind}, 501, "Reset"},
		{"a method that the page does not call", "/api/Watch", `{}`, []string{kind}, 404, "Watch"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := f.ask("POST", test.path, test.body, test.headers...)
			if body := text(t, got); got.StatusCode != test.want || !strings.Contains(body, test.text) {
				t.Errorf("got %d %q, want %d with %q", got.StatusCode, body, test.want, test.text)
			}
		})
	}
	if got := f.ask("GET", "/api/Explain", "", kind); got.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: got %d, want 405", got.StatusCode)
	}
}

// Nobody may hold a place of a tail for good.
func TestAViewerWhoLeavesFreesThePlace(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	f := newPage(t, func(o *Options) {
		o.Service = &service{watch: func(_ *adminv1.WatchRequest, stream grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
			_ = stream.SendHeader(metadata.MD{})
			close(begun)
			for {
				if err := stream.Send(new(adminv1.WatchResponse)); err != nil {
					ended <- err
					return err
				}
			}
		}}
	})
	answer, next := openStream(t, f.listen(t)+"/tail")
	<-begun
	next()
	_ = answer.Body.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
		t.Errorf("Watch ended with %v", err)
	}
}

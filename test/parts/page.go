package parts

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Page makes one request of HTTP, with a body of JSON unless body is empty, and returns the answer
// and its body. Page has read and closed the answer's body.
func Page(ctx context.Context, method, url, body string) (answer *http.Response, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Accept-Encoding", "identity") // compression costs more than the loopback
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err = http.DefaultClient.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, "", fmt.Errorf("reading %s: %w", url, err)
	}
	return answer, string(all), nil
}

// Nowhere returns an address of this machine, host:port, that nobody listens on.
func Nowhere(tb testing.TB) string {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	return l.Addr().String()
}

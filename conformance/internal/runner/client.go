package runner

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/forms"
)

// longest bounds a call without a deadline of its own.
const longest = 5 * time.Second

// A client is a connection to a target.
type client struct {
	conn    *grpc.ClientConn
	service ratelimitv3.RateLimitServiceClient
	skew    time.Duration // between the clocks of runner and target, at most
}

func dial(address string) (*client, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, service: ratelimitv3.NewRateLimitServiceClient(conn)}, nil
}

// Close closes the connection.
func (c *client) Close() { _ = c.conn.Close() }

// A reply is the answer to one request, with the instants around it.
type reply struct {
	response       *ratelimitv3.RateLimitResponse
	err            error
	sent, received time.Time
}

func (c *client) ask(ctx context.Context, r cases.Request) reply {
	timeout := r.Timeout
	if timeout == 0 {
		timeout = longest
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a := reply{sent: time.Now()}
	a.response, a.err = c.service.ShouldRateLimit(ctx, r.Message)
	a.received = time.Now()
	return a
}

// expect sends the request of a text and compares the answer with another one.
func (c *client) expect(ctx context.Context, ask, is string) error {
	request, err := cases.ParseRequest(ask, "", "")
	if err != nil {
		return err
	}
	answer, err := cases.ParseAnswer(is)
	if err != nil {
		return err
	}
	return c.check(answer, c.ask(ctx, request))
}

// outcome is the word of an answer: OK, OVER, or the name of a gRPC code.
func (a reply) outcome() string {
	if a.err != nil {
		return status.Code(a.err).String()
	}
	switch a.response.GetOverallCode() {
	case ratelimitv3.RateLimitResponse_OK:
		return "OK"
	case ratelimitv3.RateLimitResponse_OVER_LIMIT:
		return "OVER"
	case ratelimitv3.RateLimitResponse_UNKNOWN:
		return "UNKNOWN as overall code"
	default:
		return "overall code " + a.response.GetOverallCode().String()
	}
}

// isWord reports whether an outcome is the word of an expected answer.
func (a reply) isWord(word string) bool {
	switch word {
	case "OK", "OVER":
		return a.err == nil && a.outcome() == word
	case "ERROR":
		return a.err != nil && !lost(a.err) && status.Code(a.err) != codes.DeadlineExceeded
	default:
		var code codes.Code
		return code.UnmarshalJSON([]byte(`"`+word+`"`)) == nil && a.err != nil && status.Code(a.err) == code
	}
}

// lost reports whether a call ended because its connection did.
func lost(err error) bool {
	if status.Code(err) != codes.Unavailable {
		return false
	}
	text := err.Error()
	for _, part := range []string{"EOF", "connection refused", "connection reset", "broken pipe", "transport is closing", "error reading"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// check compares an answer with the expected one.
func (c *client) check(want cases.Answer, got reply) error {
	matched := false
	for _, word := range want.OneOf {
		matched = matched || got.isWord(word)
	}
	if !matched {
		if got.err != nil {
			return fmt.Errorf("want %s, got %w", strings.Join(want.OneOf, " or "), got.err)
		}
		return fmt.Errorf("want %s, got %s with statuses %s", strings.Join(want.OneOf, " or "), got.outcome(), show(got.response))
	}
	if got.err != nil || want.Statuses == nil {
		return nil
	}
	statuses := got.response.GetStatuses()
	if len(statuses) != len(want.Statuses) {
		return fmt.Errorf("want %d statuses, got %d", len(want.Statuses), len(statuses))
	}
	var failed []error
	for i, s := range want.Statuses {
		if err := c.checkStatus(s, statuses[i], got); err != nil {
			failed = append(failed, fmt.Errorf("status %d of %s: %w", i, show(got.response), err))
		}
	}
	return errors.Join(failed...)
}

func (c *client) checkStatus(want cases.Status, got *ratelimitv3.RateLimitResponse_DescriptorStatus, a reply) error {
	code := map[ratelimitv3.RateLimitResponse_Code]string{
		ratelimitv3.RateLimitResponse_OK: "OK", ratelimitv3.RateLimitResponse_OVER_LIMIT: "OVER",
	}[got.GetCode()]
	if want.Code != "" && code != want.Code {
		return fmt.Errorf("want code %s, got %s", want.Code, got.GetCode())
	}
	if r := want.Remaining; r != nil {
		if n := uint64(got.GetLimitRemaining()); n < r[0] || n > r[1] {
			return fmt.Errorf("want limit_remaining %d..%d, got %d", r[0], r[1], n)
		}
	}
	l := got.GetCurrentLimit()
	if want.Unlimited && l != nil {
		return fmt.Errorf("want no current_limit, got %v", l)
	}
	if want.Limit != "" {
		if text := fmt.Sprintf("%d/%s", l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String())); l == nil || text != want.Limit {
			return fmt.Errorf("want current_limit %s, got %s", want.Limit, text)
		}
	}
	if want.Name != nil && l.GetName() != *want.Name {
		return fmt.Errorf("want the limit's name %q, got %q", *want.Name, l.GetName())
	}
	if !want.HasReset {
		return nil
	}
	d := got.GetDurationUntilReset()
	if d == nil {
		return errors.New("want duration_until_reset, got none")
	}
	if d.GetNanos() != 0 {
		return fmt.Errorf("want whole seconds until the reset, got %v", d.AsDuration())
	}
	return c.checkReset(want.Reset, d.GetSeconds(), a)
}

// checkReset compares seconds until a reset with "from..to", or with the end of the window of a
// unit.
func (c *client) checkReset(want string, got int64, a reply) error {
	number, unit, several := strings.Cut(want, "*")
	if !several {
		number, unit = "1", want
	}
	if seconds, known := forms.Seconds(unit); known {
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return err
		}
		seconds *= n
		first, last := a.sent.Add(-c.skew).Unix(), a.received.Add(c.skew).Unix()
		for now := first; now <= last; now++ {
			if got == seconds-now%seconds {
				return nil
			}
		}
		return fmt.Errorf("want %d s until the %s ends, got %d s", seconds-last%seconds, want, got)
	}
	from, to, err := cases.Bounds(want)
	if err != nil {
		return err
	}
	if got < int64(from) || got > int64(to) {
		return fmt.Errorf("want %d..%d s until the reset, got %d s", from, to, got)
	}
	return nil
}

// show is a short text of the statuses of an answer.
func show(r *ratelimitv3.RateLimitResponse) string {
	var all []string
	for i, s := range r.GetStatuses() {
		if i == 4 {
			all = append(all, "…")
			break
		}
		text := fmt.Sprintf("%s %d", s.GetCode(), s.GetLimitRemaining())
		if l := s.GetCurrentLimit(); l != nil {
			text += fmt.Sprintf(" of %d/%s", l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String()))
		}
		all = append(all, text)
	}
	return "[" + strings.Join(all, "; ") + "]"
}

// checkHeaders compares headers that Envoy would add to the response.
func (c *client) checkHeaders(want map[string]string, a reply) error {
	headers := make(map[string]string)
	for _, h := range a.response.GetResponseHeadersToAdd() {
		headers[strings.ToLower(h.GetKey())] = h.GetValue() + string(h.GetRawValue())
	}
	var failed []error
	for name, value := range want {
		text, found := headers[strings.ToLower(name)]
		if unit, isReset := strings.CutPrefix(value, "until "); isReset && found {
			seconds, err := strconv.ParseInt(text, 10, 64)
			if err == nil {
				err = c.checkReset(unit, seconds, a)
			}
			failed = append(failed, err)
			continue
		}
		if !found || (value != "" && text != value) {
			failed = append(failed, fmt.Errorf("want header %s: %s, got %q in %v", name, value, text, headers))
		}
	}
	return errors.Join(failed...)
}

// checkData compares values of the dynamic metadata.
func checkData(want map[string]string, got *structpb.Struct) error {
	var failed []error
	for path, value := range want {
		if text := lookUp(got, strings.Split(path, ".")); text != value {
			failed = append(failed, fmt.Errorf("want %s = %q in the dynamic metadata, got %q in %v", path, value, text, got))
		}
	}
	return errors.Join(failed...)
}

func lookUp(s *structpb.Struct, path []string) string {
	v, found := s.GetFields()[path[0]]
	if !found {
		return ""
	}
	if len(path) > 1 {
		return lookUp(v.GetStructValue(), path[1:])
	}
	return strings.Trim(fmt.Sprint(v.AsInterface()), "[]")
}

package render

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// The numbers of an outage are the sidecar's own, and its waits have odd digits.
func TestAStateSaysItsSource(t *testing.T) {
	wait := durationpb.New(59*time.Second + 123_456_001*time.Nanosecond)
	for source, want := range map[string][2]string{
		"":                    {"allowed, 4 left after that, idle after 59.124s", "denied, 4 left, the same hits pass in 59.124s, idle after 59.124s"},
		"memory":              {"allowed, 4 left after that, idle after 59.124s", "denied, 4 left, the same hits pass in 59.124s, idle after 59.124s"},
		"redis":               {"allowed, 4 left after that, idle after 59.124s", "denied, 4 left, the same hits pass in 59.124s, idle after 59.124s"},
		"without redis":       {"allowed, 4 left after that, idle after 59.124s, without redis", "denied, 4 left, the same hits pass in 59.124s, idle after 59.124s, without redis"},
		"lease":               {"allowed, 4 left after that, idle after 59.124s, by lease", "denied, 4 left, the same hits pass in 59.124s, idle after 59.124s, by lease"},
		"something\u202e new": {"allowed, 4 left after that, idle after 59.124s, by something\\u202e new", "denied, 4 left, the same hits pass in 59.124s, idle after 59.124s, by something\\u202e new"},
	} {
		l := &adminv1.LimitExplanation{Allowed: true, Remaining: 4, RetryAfter: wait, ResetAfter: wait, Source: source}
		if got := stateText(l); got != want[0] {
			t.Errorf("%q, allowed: got %q, want %q", source, got, want[0])
		}
		l.Allowed = false
		if got := stateText(l); got != want[1] {
			t.Errorf("%q, denied: got %q, want %q", source, got, want[1])
		}
	}
	if got := waitText(1); got != "1ms" {
		t.Errorf("a nanosecond: got %q, want 1ms", got)
	}
}

package xds

import (
	"fmt"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// A restarted control plane does not know which refused resources this client has received, and
// cannot remove them.
func TestARefusedResourceThatIsGoneByTheNextStreamIsForgotten(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), config("r2", "b", 2), config("bad", "c", 0))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 1, "b": 2})
			p.awaitRequest(t, 0, "a refusal", func(r parts.XDSRequest) bool { return r.Refused })
			p.Stop()
			p.set("2", config("r1", "a", 3), config("r2", "b", 2))
			p.restart()
			s.await(t, map[string]uint32{"a": 3, "b": 2})
			eventually(t, func() string {
				if got := s.Status(); got.Bad != 0 || got.Resources != 2 || got.Reason != "" {
					return fmt.Sprintf("status: got %+v, want 2 resources and none bad", got)
				}
				return ""
			})
			if errs := s.reloader.Status().Errors; len(errs) > 0 {
				t.Errorf("errors of the limiter: got %q", errs)
			}
		})
	}
}

// Such as with a control plane that was rolled back to the configuration before a bad one.
func TestAResourceRestoredByTheNextStreamIsInForceAgain(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), config("r2", "b", 2))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 1, "b": 2})
			p.awaitRequest(t, 0, "an acceptance", func(r parts.XDSRequest) bool { return r.Nonce == "1" && !r.Refused })
			p.set("2", config("r1", "a", 0), config("r2", "b", 5))
			s.await(t, map[string]uint32{"a": 1, "b": 5})
			p.awaitRequest(t, 0, "a refusal", func(r parts.XDSRequest) bool { return r.Refused })
			p.Stop()
			from := len(p.Requests())
			p.set("1", config("r1", "a", 1), config("r2", "b", 2))
			p.restart()
			first, _ := p.awaitRequest(t, from, "a greeting", func(parts.XDSRequest) bool { return true })
			if first.Version != "" { // the old version would say that all of it is in force
				t.Errorf("version on a new stream: got %q, want none", first.Version)
			}
			s.await(t, map[string]uint32{"a": 1, "b": 2})
			eventually(t, func() string {
				if got := s.Status(); got.Bad != 0 || got.Resources != 2 || got.Reason != "" {
					return fmt.Sprintf("status: got %+v, want 2 resources and none bad", got)
				}
				return ""
			})
			if errs := s.reloader.Status().Errors; len(errs) > 0 {
				t.Errorf("errors of the limiter: got %q", errs)
			}
		})
	}
}

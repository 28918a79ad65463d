package xds

import (
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// Envoy Gateway and AI Gateway number their snapshots from 1 in each process.
func TestRulesOfARestartedPlaneComeIntoForceUnderAnOldVersion(t *testing.T) {
	for name, delta := range kinds() {
		for when, before := range map[string]bool{"set before the client is back": true, "set after the client is back": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				p := startPlane(t)
				p.set("1", config("r1", "a", 2))
				s := startClient(t, p, Options{Delta: delta})
				s.await(t, map[string]uint32{"a": 2})
				p.awaitRequest(t, 0, "an acceptance", func(r parts.XDSRequest) bool { return r.Nonce == "1" })
				p.Stop()
				p.Forget()
				from := len(p.Requests())
				if before {
					p.set("1", config("r1", "a", 4))
				}
				p.restart()
				if !before {
					p.awaitRequest(t, from, "a greeting", func(parts.XDSRequest) bool { return true })
					if s.Status().Unconfirmed.IsZero() {
						t.Error("connected to a plane without rules: the rules in force are confirmed, want not")
					}
					p.set("1", config("r1", "a", 4))
				}
				s.await(t, map[string]uint32{"a": 4})
				eventually(t, func() string {
					if at := s.Status().Unconfirmed; !at.IsZero() {
						return "the rules are not confirmed since " + at.String()
					}
					return ""
				})
			})
		}
	}
}

// A plane that was restarted without rules removes all of them.
func TestARestartedPlaneWithAnEmptySetUnderAnOldVersionRemovesRules(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 2))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 2})
			p.awaitRequest(t, 0, "an acceptance", func(r parts.XDSRequest) bool { return r.Nonce == "1" })
			p.Stop()
			p.Forget()
			p.set("1")
			p.restart()
			s.await(t, map[string]uint32{})
		})
	}
}

package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// keeper is Grants that gives one grant, or fails.
type keeper struct{ err error }

func (k keeper) Grant(_ context.Context, g limiter.Grant) (given, replaced *limiter.Grant, err error) {
	g.ID, g.Given = "id", time.Now()
	return &g, nil, k.err
}

func (k keeper) Revoke(context.Context, string, string) (g *limiter.Grant, notKept string, err error) {
	return nil, "", k.err
}
func (k keeper) List() []*limiter.Grant             { return nil }
func (k keeper) Kept() (where string, durable bool) { return "in a test", true }

// grantFor asks for 5 requests for the entries of one descriptor, for an hour.
func grantFor(limit string, pairs ...string) *adminv1.GrantRequest {
	g := &adminv1.Grant{
		Domain: "edge", Limit: limit, Gives: &adminv1.Grant_RequestsPerUnit{RequestsPerUnit: 5},
		Until: timestamppb.New(time.Now().Add(time.Hour)), Reason: "a test",
	}
	for i := 0; i < len(pairs); i += 2 {
		g.Entries = append(g.Entries, &adminv1.Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &adminv1.GrantRequest{Grant: g}
}

// The operator gets the text of a store that has not confirmed a grant in its time.
func TestAGrantThatTheStoreHasNotConfirmedIsUnavailableWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, func(o *Options) {
			o.Grants = keeper{fmt.Errorf("redis has not confirmed the change: %w", context.DeadlineExceeded)}
		})
		client := f.service(t)
		_, err := client.Grant(t.Context(), grantFor("", "path", "/about"))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "redis has not confirmed the change") {
			t.Errorf("Grant: got %v, want Unavailable with the reason", err)
		}
		_, err = client.Revoke(t.Context(), &adminv1.RevokeRequest{Id: "id"})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "redis has not confirmed the change") {
			t.Errorf("Revoke: got %v, want Unavailable with the reason", err)
		}
	})
}

// An operator sees which limit a grant changes: a typo in a key leads to the default limit, and
// succeeds.
func TestTheAnswerToAGrantNamesTheRuleAndTheLimitBeforeAndAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, func(o *Options) { o.Grants = keeper{} })
		client := f.service(t)
		f.ask(t, hits(1, "path", "/about", "user", "u"))
		got, err := client.Grant(t.Context(), grantFor("fixed_window/1d", "path", "/about", "user", "u"))
		must.Do(t, err)
		if r := got.GetRule(); r.GetPath() != "path=/a*,user" || r.GetFile() != "rules.yaml" || r.GetLine() != 7 || got.GetDefault() || got.GetNoHits() {
			t.Errorf("got rule %v, default %t, no hits %t", r, got.GetDefault(), got.GetNoHits())
		}
		if l := got.GetLimits(); len(l) != 1 || l[0].GetName() != "fixed_window/1d" || l[0].GetBefore().GetRequestsPerUnit() != 100 ||
			l[0].GetAfter().GetRequestsPerUnit() != 5 || !strings.HasSuffix(l[0].GetKey(), "#fixed_window/1d") {
			t.Errorf("got limits %v", l)
		}
		got, err = client.Grant(t.Context(), grantFor("", "pth", "/about", "user", "u"))
		must.Do(t, err)
		if !got.GetDefault() || !got.GetNoHits() || !strings.Contains(got.GetNearestMiss().GetWhy(), "path") {
			t.Errorf("with a typo: got default %t, no hits %t, nearest %v", got.GetDefault(), got.GetNoHits(), got.GetNearestMiss())
		}
		text := render.GivenText(got)
		for _, line := range []string{
			"rule    the domain's default (rules.yaml:2)", "before  9 per 1m, fixed_window", "after   5 per 1m, fixed_window",
			"warning no rule but the default matches these entries: ", "warning the key has no hits now: ",
		} {
			if !strings.Contains(text, "\n"+line) {
				t.Errorf("the text has no line %q:\n%s", line, text)
			}
		}
		unlimited := grantFor("", "path", "/about", "user", "u")
		unlimited.Grant.Gives = &adminv1.Grant_Unlimited{Unlimited: true}
		got, err = client.Grant(t.Context(), unlimited)
		must.Do(t, err)
		for _, line := range []string{
			"before  5 per 1s, token_bucket, burst 7 (--limit token_bucket/1s)", "before  100 per 1d, fixed_window, denied hits count too (--limit fixed_window/1d)",
			"after   everything passes",
		} {
			if text := render.GivenText(got); !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("the text has no line %q:\n%s", line, text)
			}
		}
	})
}

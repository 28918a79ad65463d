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

package admin

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Grants keeps the grants of a limiter for operators. All methods are safe for concurrent use. The
// errors wrap the errors of package limiter about grants. Any other error says why a change could
// not be kept.
type Grants interface {
	// Grant sets ID, Given and Rule of a grant, keeps the grant and puts it in force. replaced is the
	// earlier grant for the same key and limit, or nil.
	Grant(ctx context.Context, g limiter.Grant) (given, replaced *limiter.Grant, err error)
	// Revoke ends a grant. by is the person or program who ends it. notKept is "", or says why a
	// restart may bring the grant back.
	Revoke(ctx context.Context, id, by string) (g *limiter.Grant, notKept string, err error)
	// List returns the grants in force, the next one to end first.
	List() []*limiter.Grant
	// Kept says in words where grants are kept, and whether they outlive the process.
	Kept() (where string, durable bool)
}

// defaultGrants is the length of a list of grants of a request that does not say the length.
const defaultGrants = 1000

// errNoGrants is the answer of a server that keeps no grants.
func errNoGrants() error {
	return status.Error(codes.Unimplemented, "this server keeps no grants")
}

// Grant implements the AdminService.
func (a *service) Grant(ctx context.Context, in *adminv1.GrantRequest) (*adminv1.GrantResponse, error) {
	if a.options.Grants == nil {
		return nil, errNoGrants()
	}
	given, replaced, err := a.options.Grants.Grant(ctx, render.FromGrant(in.GetGrant()))
	if err != nil {
		return nil, a.grantError(err)
	}
	out := &adminv1.GrantResponse{Grant: render.Grant(a.options.Limiter, given), Replaced: render.Grant(nil, replaced)}
	out.Kept, out.Durable = a.options.Grants.Kept()
	return out, nil
}

// ListGrants implements the AdminService.
func (a *service) ListGrants(_ context.Context, in *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	if a.options.Grants == nil {
		return nil, errNoGrants()
	}
	all := a.options.Grants.List()
	out := &adminv1.ListGrantsResponse{Number: uint64(len(all))}
	out.Kept, out.Durable = a.options.Grants.Kept()
	most := int(cmp.Or(in.GetMost(), defaultGrants))
	for _, g := range all {
		if len(out.Grants) >= most {
			break
		}
		if in.GetDomain() == "" || in.GetDomain() == g.Domain {
			out.Grants = append(out.Grants, render.Grant(a.options.Limiter, g))
		}
	}
	return out, nil
}

// Revoke implements the AdminService.
func (a *service) Revoke(ctx context.Context, in *adminv1.RevokeRequest) (*adminv1.RevokeResponse, error) {
	if a.options.Grants == nil {
		return nil, errNoGrants()
	}
	if len(in.GetBy()) > limiter.MaxGrantBy {
		return nil, status.Errorf(codes.InvalidArgument, "by: %d bytes, must be at most %d", len(in.GetBy()), limiter.MaxGrantBy)
	}
	g, notKept, err := a.options.Grants.Revoke(ctx, in.GetId(), in.GetBy())
	if err != nil {
		return nil, a.grantError(err)
	}
	return &adminv1.RevokeResponse{Grant: render.Grant(a.options.Limiter, g), NotKept: notKept}, nil
}

// grantError returns the status of an error of Grants. The operator gets the reason of each
// failure, also of the store's.
func (a *service) grantError(err error) error {
	switch {
	case errors.Is(err, limiter.ErrInvalidGrant):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, limiter.ErrNotGrantable), errors.Is(err, limiter.ErrUnknownGrant):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, limiter.ErrTooManyGrants):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return a.options.Service.Status(err)
	default:
		return status.Error(codes.Unavailable, err.Error())
	}
}

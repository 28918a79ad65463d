package admin

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/admin/watch"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

type service struct {
	adminv1.UnimplementedAdminServiceServer
	*Server
}

// Explain implements the AdminService.
func (a *service) Explain(ctx context.Context, in *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	out, err := render.Explain(ctx, a.options.Limiter, in)
	if err != nil {
		return nil, a.options.Service.Status(err)
	}
	return out, nil
}

// Reset implements the AdminService.
func (a *service) Reset(ctx context.Context, in *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	keys, forgotten, err := a.options.Limiter.Reset(ctx, render.Request(in.GetDomain(), in.GetDescriptors()))
	if err != nil {
		return nil, a.options.Service.Status(err)
	}
	return &adminv1.ResetResponse{Keys: keys, Forgotten: uint32(min(forgotten, math.MaxUint32))}, nil
}

// ListRules implements the AdminService.
func (a *service) ListRules(context.Context, *adminv1.ListRulesRequest) (*adminv1.ListRulesResponse, error) {
	now := a.options.loads()
	return &adminv1.ListRulesResponse{
		Domains:  render.Domains(a.options.Limiter.Rules()),
		Hash:     now.GetHash(),
		LoadedAt: now.GetLoadedAt(),
		Sources:  now.GetSources(),
		Errors:   now.GetErrors(),
		Warnings: now.GetWarnings(),
	}, nil
}

// ListTopKeys implements the AdminService.
func (a *service) ListTopKeys(ctx context.Context, in *adminv1.ListTopKeysRequest) (*adminv1.ListTopKeysResponse, error) {
	out, err := render.TopKeys(ctx, a.options.Limiter, in)
	switch {
	case errors.Is(err, limiter.ErrNoTopKeys):
		return nil, status.Error(codes.Unimplemented, err.Error())
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return out, nil
}

// ListQuotas implements the AdminService.
func (a *service) ListQuotas(_ context.Context, in *adminv1.ListQuotasRequest) (*adminv1.ListQuotasResponse, error) {
	p := a.options.Service.Quotas()
	if p.Off != "" {
		return nil, status.Error(codes.Unimplemented, p.Off)
	}
	out, err := render.Quotas(&p, in)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return out, nil
}

// ListUsage implements the AdminService.
func (a *service) ListUsage(ctx context.Context, in *adminv1.ListUsageRequest) (*adminv1.ListUsageResponse, error) {
	out, err := render.Usage(ctx, a.options.Limiter, in)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return out, nil
}

// Status implements the AdminService.
func (a *service) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	r := a.options.Limiter.Requests()
	out := &adminv1.StatusResponse{
		Requests: &adminv1.RequestsStatus{
			Passed: r.OK, Denied: r.OverLimit, Failed: r.Failed + a.options.Service.Lost(), Unmatched: r.NoMatch, NoDomain: r.DomainNotFound,
			Latency: render.Latency(a.options.Service.Spent()),
		},
		Store: &adminv1.StoreStatus{Kind: "memory"},
		Loads: a.options.loads(),
		Rules: uint32(a.options.Limiter.Rules().Count()),
	}
	if code, answer := a.ready(); code != http.StatusOK {
		out.NotReady = answer
	}
	if a.options.Store != nil {
		out.Store = a.options.Store()
	}
	if a.options.Memory != nil {
		m := a.options.Memory()
		out.Store.Keys, out.Store.Places, out.Store.MaxPlaces, out.Store.Evicted = uint32(m.Keys), uint32(m.Places), uint32(m.MaxKeys), m.Evicted
	}
	return out, nil
}

// Reload implements the AdminService.
func (a *service) Reload(ctx context.Context, _ *adminv1.ReloadRequest) (*adminv1.ReloadResponse, error) {
	if a.options.Reload == nil {
		return nil, status.Error(codes.Unimplemented, "the rules of this server do not come from anywhere that could be read again")
	}
	err := a.options.Reload(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil, a.options.Service.Status(err)
	}
	out := &adminv1.ReloadResponse{Loaded: err == nil, Errors: reasons(err), Rules: uint32(a.options.Limiter.Rules().Count())}
	if out.Loaded {
		out.Warnings = a.options.loads().GetWarnings()
	}
	return out, nil
}

// reasons returns the errors that an error is made of, one text each; none for nil.
func reasons(err error) []string {
	if err == nil {
		return nil
	}
	var many interface{ Unwrap() []error }
	if !errors.As(err, &many) || len(many.Unwrap()) == 0 {
		return []string{err.Error()}
	}
	var all []string
	for _, e := range many.Unwrap() {
		all = append(all, reasons(e)...)
	}
	return all
}

// Bounds of ListHolders.
const (
	defaultHolders = 100
	maxHolders     = 10_000
)

// ListHolders implements the AdminService.
func (a *service) ListHolders(ctx context.Context, in *adminv1.ListHoldersRequest) (*adminv1.ListHoldersResponse, error) {
	most := int(min(in.GetMost(), maxHolders))
	if most == 0 {
		most = defaultHolders
	}
	rule, limits, err := a.options.Limiter.Holders(ctx, in.GetDomain(), render.Entries(in.GetEntries()), most)
	if err != nil {
		return nil, a.holderError(err)
	}
	out := &adminv1.ListHoldersResponse{Rule: render.Rule(rule)}
	for i := range limits {
		out.Limits = append(out.Limits, render.Holders(&limits[i]))
	}
	return out, nil
}

// ReleaseHolder implements the AdminService.
func (a *service) ReleaseHolder(ctx context.Context, in *adminv1.ReleaseHolderRequest) (*adminv1.ReleaseHolderResponse, error) {
	var holder store.Holder
	switch id, err := hex.DecodeString(in.GetId()); {
	case in.GetName() != "":
		holder = store.HolderOf([]byte(in.GetName()))
	case in.GetId() == "":
		return nil, status.Error(codes.InvalidArgument, "the holder is missing: must be its name, not empty, or its id")
	case err != nil || len(id) != len(holder):
		return nil, status.Errorf(codes.InvalidArgument, "the id of the holder is %.40q, must be %d hexadecimal digits",
			in.GetId(), 2*len(holder))
	default:
		holder = store.Holder(id)
	}
	entries := render.Entries(in.GetEntries())
	limits, err := a.options.Limiter.Release(ctx, in.GetDomain(), entries, holder)
	if err != nil {
		return nil, a.holderError(err)
	}
	out := new(adminv1.ReleaseHolderResponse)
	for i := range limits {
		l := render.Release(&limits[i])
		out.Limits = append(out.Limits, l)
		a.options.Logger.LogAttrs(ctx, slog.LevelWarn, "an operator released a holder", slog.String("key", l.GetKey()),
			slog.String("holder", l.GetHolder().GetId()), slog.String("was", render.HolderStatus(l.GetStatus())),
			slog.Uint64("hits", uint64(l.GetHolder().GetHits())))
	}
	return out, nil
}

// holderError returns the status of an error of [limiter.Limiter.Holders] or
// [limiter.Limiter.Release].
func (a *service) holderError(err error) error {
	if errors.Is(err, limiter.ErrNoHolders) {
		return status.Error(codes.NotFound, err.Error())
	}
	return a.options.Service.Status(err)
}

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

func errNoGrants() error {
	return status.Error(codes.Unimplemented, "this server keeps no grants")
}

// Grant implements the AdminService.
func (a *service) Grant(ctx context.Context, in *adminv1.GrantRequest) (*adminv1.GrantResponse, error) {
	if a.options.Grants == nil {
		return nil, errNoGrants()
	}
	g := render.FromGrant(in.GetGrant())
	idle := a.idle(ctx, &g)
	given, replaced, err := a.options.Grants.Grant(ctx, g)
	if err != nil {
		return nil, a.grantError(ctx, err)
	}
	out := render.Given(a.options.Limiter, given)
	out.Replaced, out.NoHits = render.Grant(nil, replaced), idle
	out.Kept, out.Durable = a.options.Grants.Kept()
	return out, nil
}

// idle reports whether the key of a grant has no hits now. False if the store does not say.
func (a *service) idle(ctx context.Context, g *limiter.Grant) bool {
	request := &limiter.Request{Domain: g.Domain}
	d := request.Add()
	d.Entries, d.Probe = g.Entries, true
	all, err := a.options.Limiter.Explain(ctx, request)
	if err != nil || len(all[0].Limits) == 0 {
		return false
	}
	return !slices.ContainsFunc(all[0].Limits, func(l limiter.LimitState) bool {
		return l.Limit.Requests == 0 || l.Decision.Remaining != l.Limit.Capacity()
	})
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
		return nil, a.grantError(ctx, err)
	}
	return &adminv1.RevokeResponse{Grant: render.Grant(a.options.Limiter, g), NotKept: notKept}, nil
}

// grantError returns the status of an error of Grants. The operator gets the reason of each
// failure, also of the store's.
func (a *service) grantError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, limiter.ErrInvalidGrant):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, limiter.ErrNotGrantable), errors.Is(err, limiter.ErrUnknownGrant):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, limiter.ErrTooManyGrants):
		return status.Error(codes.ResourceExhausted, err.Error())
	case ctx.Err() != nil:
		return a.options.Service.Status(ctx.Err())
	default: // also when the store's own time was over
		return status.Error(codes.Unavailable, err.Error())
	}
}

// Watch implements the AdminService. The headers go out when the watch has begun. While the client
// does not read, Send waits, and the watcher loses requests.
func (a *service) Watch(in *adminv1.WatchRequest, stream grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
	w, err := a.hub.Subscribe(in)
	if err != nil {
		if _, ok := errors.AsType[*watch.InvalidError](err); ok {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	defer w.Close()
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for {
		m, err := w.Next(stream.Context())
		if err != nil {
			return a.options.Service.Status(err)
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

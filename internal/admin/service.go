package admin

import (
	"context"
	"errors"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/admin/watch"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// service is the AdminService.
type service struct {
	adminv1.UnimplementedAdminServiceServer

	options *Options
	hub     *watch.Hub
	denials *denials
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
		Hash:     now.Hash,
		LoadedAt: timestamp(now.LoadedAt),
		Sources:  a.options.Sources,
		Errors:   now.Errors,
		Warnings: now.Warnings,
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

// Reload implements the AdminService.
func (a *service) Reload(ctx context.Context, _ *adminv1.ReloadRequest) (*adminv1.ReloadResponse, error) {
	if a.options.Reload == nil {
		return nil, status.Error(codes.Unimplemented, "the rules of this server do not come from anywhere that could be read again")
	}
	err := a.options.Reload(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil, a.options.Service.Status(err)
	}
	now := a.options.loads()
	out := &adminv1.ReloadResponse{Loaded: err == nil, Errors: reasons(err), Rules: uint32(a.options.Limiter.Rules().Count())}
	if out.Loaded {
		out.Warnings = now.Warnings
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

package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

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
		return nil, status.Errorf(codes.InvalidArgument, "the id of the holder is %.40q, must be %d hexadecimal digits", in.GetId(), 2*len(holder))
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

package server

import (
	"context"
	"errors"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// admin is the AdminService.
type admin struct {
	adminv1.UnimplementedAdminServiceServer

	options Options
	faults  *faults
}

// Explain implements the AdminService.
func (a *admin) Explain(ctx context.Context, in *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	request := toRequest(in.GetDomain(), in.GetDescriptors())
	all, err := a.options.Limiter.Explain(ctx, request)
	if err != nil {
		return nil, a.faults.status(err)
	}
	domain := a.options.Limiter.Status().Rules.Domain(request.Domain)
	out := new(adminv1.ExplainResponse)
	for i := range all {
		s := &all[i].Status
		d := &adminv1.DescriptorExplanation{Why: why(domain, &request.Descriptors[i], s)}
		if s.Rule != nil {
			d.Matched, d.Rule = true, fromRule(s.Rule)
		}
		for _, l := range all[i].Limits {
			d.Limits = append(d.Limits, &adminv1.LimitExplanation{
				Limit:      fromLimit(&l.Limit),
				Key:        l.Key,
				Allowed:    l.Decision.Allowed,
				Remaining:  l.Decision.Remaining,
				RetryAfter: durationpb.New(l.Decision.RetryAfter),
				ResetAfter: durationpb.New(l.Decision.ResetAfter),
			})
		}
		out.Descriptors = append(out.Descriptors, d)
	}
	return out, nil
}

// Reset implements the AdminService.
func (a *admin) Reset(ctx context.Context, in *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	keys, forgotten, err := a.options.Limiter.Reset(ctx, toRequest(in.GetDomain(), in.GetDescriptors()))
	if err != nil {
		return nil, a.faults.status(err)
	}
	return &adminv1.ResetResponse{Keys: keys, Forgotten: uint32(min(forgotten, math.MaxUint32))}, nil
}

// ListRules implements the AdminService.
func (a *admin) ListRules(context.Context, *adminv1.ListRulesRequest) (*adminv1.ListRulesResponse, error) {
	now := a.options.Limiter.Status()
	out := &adminv1.ListRulesResponse{Sources: a.options.Sources, Errors: now.Errors, Warnings: warningTexts(now.Warnings)}
	if !now.LoadedAt.IsZero() {
		out.LoadedAt = timestamppb.New(now.LoadedAt)
	}
	byName := make(map[string]*adminv1.Domain)
	for _, d := range now.Rules.Domains() {
		byName[d.Name] = &adminv1.Domain{Name: d.Name, File: d.File, Line: uint32(d.Line)}
		out.Domains = append(out.Domains, byName[d.Name])
	}
	for _, r := range now.Rules.All() {
		if d := byName[r.Domain]; d != nil {
			d.Rules = append(d.Rules, fromRule(r))
		}
	}
	return out, nil
}

// Reload implements the AdminService.
func (a *admin) Reload(ctx context.Context, _ *adminv1.ReloadRequest) (*adminv1.ReloadResponse, error) {
	if a.options.Reload == nil {
		return nil, status.Error(codes.Unimplemented, "the rules of this server do not come from anywhere that could be read again")
	}
	err := a.options.Reload(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil, a.faults.status(err)
	}
	now := a.options.Limiter.Status()
	out := &adminv1.ReloadResponse{Loaded: err == nil, Errors: reasons(err), Rules: uint32(now.Rules.Len())}
	if out.Loaded {
		out.Warnings = warningTexts(now.Warnings)
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

// toRequest returns what Envoy would have asked.
func toRequest(domain string, all []*adminv1.Descriptor) *limiter.Request {
	r := &limiter.Request{Domain: domain}
	for _, in := range all {
		d := r.Add()
		for _, e := range in.GetEntries() {
			d.Entries = append(d.Entries, descriptors.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if in != nil && in.Hits != nil {
			d.Hits, d.HasHits = uint64(in.GetHits()), true
		}
		if l := in.GetLimit(); l != nil {
			d.HasOverride = true
			d.Override = limiter.Override{
				Requests:      l.GetRequestsPerUnit(),
				Unit:          int32(l.GetUnit()),
				Multiplier:    l.GetUnitMultiplier(),
				HasMultiplier: l.GetUnitMultiplier() != 0,
			}
		}
	}
	return r
}

func fromRule(r *descriptors.Rule) *adminv1.Rule {
	out := &adminv1.Rule{
		Domain:    r.Domain,
		Path:      r.Path,
		File:      r.File,
		Line:      uint32(r.Line),
		Name:      r.Name,
		Shadow:    r.Shadow,
		Quota:     r.Quota,
		Unlimited: r.Unlimited,
		Replaces:  r.Replaces,
	}
	for i := range r.Limits {
		out.Limits = append(out.Limits, fromLimit(&r.Limits[i]))
	}
	return out
}

func fromLimit(l *descriptors.Limit) *adminv1.Limit {
	return &adminv1.Limit{
		Algorithm:     l.Algorithm.String(),
		Requests:      l.Requests,
		Period:        durationpb.New(l.Period),
		Burst:         l.Capacity(),
		CountRejected: l.CountRejected,
		OnStoreError:  onStoreError(l),
	}
}

// onStoreError returns what is configured for a limit, "" when nothing is.
func onStoreError(l *descriptors.Limit) string {
	if l.OnStoreError == descriptors.OnStoreErrorUnset {
		return ""
	}
	return l.OnStoreError.String()
}

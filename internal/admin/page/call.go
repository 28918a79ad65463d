package page

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/wire/web"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// call is a method of the admin service that the page may call, with messages as JSON.
type call func(context.Context, []byte) (proto.Message, error)

func calls(s adminv1.AdminServiceServer) map[string]call {
	return map[string]call{
		"Explain":       unary(s.Explain, new(adminv1.ExplainRequest)),
		"Reset":         unary(s.Reset, new(adminv1.ResetRequest)),
		"ListTopKeys":   unary(s.ListTopKeys, new(adminv1.ListTopKeysRequest)),
		"ListQuotas":    unary(s.ListQuotas, new(adminv1.ListQuotasRequest)),
		"ListUsage":     unary(s.ListUsage, new(adminv1.ListUsageRequest)),
		"Grant":         unary(s.Grant, new(adminv1.GrantRequest)),
		"ListGrants":    unary(s.ListGrants, new(adminv1.ListGrantsRequest)),
		"Revoke":        unary(s.Revoke, new(adminv1.RevokeRequest)),
		"Reload":        unary(s.Reload, new(adminv1.ReloadRequest)),
		"ListHolders":   unary(s.ListHolders, new(adminv1.ListHoldersRequest)),
		"ReleaseHolder": unary(s.ReleaseHolder, new(adminv1.ReleaseHolderRequest)),
	}
}

// unary returns a call of a method. like is an empty request.
func unary[Q, A proto.Message](method func(context.Context, Q) (A, error), like Q) call {
	return func(ctx context.Context, body []byte) (proto.Message, error) {
		request, _ := proto.Clone(like).(Q)
		if err := protojson.Unmarshal(body, request); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		return method(ctx, request)
	}
}

// api answers a POST of JSON to /api/METHOD. A web page of another site cannot send this type
// without asking first, and nobody answers that question.
func (p *Page) api(w http.ResponseWriter, r *http.Request) {
	method, ok := p.calls[r.PathValue("method")]
	if !ok {
		failCall(w, status.Errorf(codes.NotFound, "%q: must be a method of the admin service that the page calls", r.PathValue("method")))
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, "Content-Type: must be application/json")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		failCall(w, status.Error(codes.InvalidArgument, err.Error()))
		return
	}
	answer, err := method(r.Context(), body)
	if err != nil {
		failCall(w, err)
		return
	}
	data, err := protojson.Marshal(answer)
	if err != nil {
		failCall(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// failCall answers with the error of a call, as text for people.
func failCall(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	fail(w, web.HTTPCode(s.Code()), strings.ToValidUTF8(s.Message(), "\uFFFD"))
}

package admin

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/wire"
)

// guard admits calls of gRPC. The page asks the same Tokens. Safe for concurrent use.
type guard struct {
	tokens *page.Tokens // nil: everybody
	logger *slog.Logger
	logged loglimit.Limiter
	panics func(value any) error
}

func newGuard(o *Options) *guard {
	g := &guard{logger: o.Logger, panics: o.Service.Panicked}
	if o.Access.Token != nil {
		g.tokens = page.NewTokens(o.Access.Token)
	}
	return g
}

// recovered turns a panic into an error, as a deferred function.
func (g *guard) recovered(err *error) {
	if v := recover(); v != nil {
		*err = g.panics(v)
	}
}

// free reports whether a method needs no token. Health shows no secret, and probes of Kubernetes
// cannot send a token.
func free(method string) bool {
	return strings.HasPrefix(method, "/"+healthgrpc.Health_ServiceDesc.ServiceName+"/")
}

// admit returns an error for a call without the right token. Strangers show no token: a call may
// need none.
func (g *guard) admit(ctx context.Context, method string) (stranger bool, err error) {
	if g.tokens == nil {
		return false, nil
	}
	if free(method) {
		return true, nil
	}
	var client string
	if p, ok := peer.FromContext(ctx); ok {
		client = p.Addr.String()
	}
	var wait time.Duration
	for _, shown := range tokensOf(ctx) {
		right, after := g.tokens.Check(client, shown)
		if right {
			return false, nil
		}
		wait = max(wait, after)
	}
	if missed, due := g.logged.Due(time.Second); due {
		g.logger.LogAttrs(ctx, slog.LevelWarn, "an admin call without the right token was refused",
			slog.String("method", method), slog.Uint64("not_logged", missed), slog.String("client", client))
	}
	if wait > 0 {
		return true, status.Error(codes.ResourceExhausted, page.TooMany(wait))
	}
	return true, status.Error(codes.Unauthenticated,
		"the token is missing or wrong: send it as authorization: Bearer TOKEN (--token-file of the commands)")
}

func tokensOf(ctx context.Context) (shown []string) {
	for _, header := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		shown = append(shown, page.Bearer(header))
	}
	return shown
}

// stream wraps an admitted call with streams.
func (g *guard) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	a := &admitted{ServerStream: stream, guard: g}
	if g.tokens != nil && !free(info.FullMethod) {
		shown := tokensOf(stream.Context())
		i := slices.IndexFunc(shown, g.tokens.Right)
		if i < 0 { // another token is the right one since
			return errOldToken
		}
		a.token = shown[i]
	}
	return handle(service, a)
}

var errOldToken = status.Error(codes.Unauthenticated, "the token is no longer the right one")

// admitted is the stream of an admitted call. The stream ends when another token is the right one.
type admitted struct {
	grpc.ServerStream
	guard *guard
	token string // that the client has shown; "" where it needs none
}

// SendHeader implements [grpc.ServerStream].
func (a *admitted) SendHeader(m metadata.MD) error {
	a.goesOn()
	return a.ServerStream.SendHeader(m)
}

// SendMsg implements [grpc.ServerStream].
func (a *admitted) SendMsg(m any) error {
	if a.token != "" && !a.guard.tokens.Right(a.token) {
		return errOldToken
	}
	err := a.ServerStream.SendMsg(m)
	a.goesOn()
	return err
}

// goesOn notes that an answer goes on: else new connections would take the place of a client that
// watches.
func (a *admitted) goesOn() {
	if a.token != "" || a.guard.tokens == nil {
		wire.CallerOf(a.Context()).Continues()
	}
}

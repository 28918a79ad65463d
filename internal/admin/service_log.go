package admin

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// levelOf returns the level of a name in any case.
func levelOf(name string) (slog.Level, error) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(name, level.String()) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("level: %.40q: must be debug, info, warn or error", name)
}

// SetLogLevel implements the AdminService. A request with a mistake changes nothing. No level
// suppresses the line about a change.
func (a *service) SetLogLevel(ctx context.Context, in *adminv1.SetLogLevelRequest) (*adminv1.SetLogLevelResponse, error) {
	var level *slog.Level
	if in.GetLevel() != "" {
		to, err := levelOf(in.GetLevel())
		switch {
		case err != nil:
			return nil, status.Error(codes.InvalidArgument, err.Error())
		case a.options.LogLevel == nil:
			return nil, status.Error(codes.Unimplemented, "the level of this server's log cannot change")
		}
		level = &to
	}
	if in.DenialsPerSecond != nil {
		rate := in.GetDenialsPerSecond()
		if !validRate(rate) {
			return nil, status.Errorf(codes.InvalidArgument, "denials_per_second: %v: must be a number from 0 to %d", rate, MaxLogDenials)
		}
		if err := a.denials.set(rate); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	if level != nil {
		a.options.LogLevel.Set(*level)
	}
	out := &adminv1.SetLogLevelResponse{DenialsPerSecond: a.denials.rate()}
	if a.options.LogLevel != nil {
		out.Level = strings.ToLower(a.options.LogLevel.Level().String())
	}
	if level != nil || in.DenialsPerSecond != nil {
		a.options.Logger.LogAttrs(ctx, max(slog.LevelWarn, a.level()), "an operator changed the log",
			slog.String("level", out.GetLevel()), slog.Float64("denials_per_second", out.GetDenialsPerSecond()))
	}
	return out, nil
}

// level returns the lowest level in the log, as far as it is known.
func (a *service) level() slog.Level {
	if a.options.LogLevel == nil {
		return slog.LevelInfo
	}
	return a.options.LogLevel.Level()
}

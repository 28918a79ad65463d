package admin

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// logged returns the log lines with a text since the last call, without their times.
func (f *fixture) logged(text string) (all []string) {
	for line := range strings.Lines(f.logs.Take()) {
		if strings.Contains(line, text) {
			all = append(all, regexp.MustCompile(`^time=\S+ |\n$|retry_after=\S+ `).ReplaceAllString(line, ""))
		}
	}
	return all
}

func TestDenialsAreLoggedAtTheirRateAndOnlyWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		c := adminv1.NewAdminServiceClient(dial(t, f.admin.Serve))
		set := func(rate float64) {
			t.Helper()
			out, err := c.SetLogLevel(t.Context(), &adminv1.SetLogLevelRequest{DenialsPerSecond: &rate})
			if err != nil || out.GetDenialsPerSecond() != rate {
				t.Fatalf("got %v, %v; want a rate of %v", out, err, rate)
			}
		}
		second := func(times int) { // of ten requests
			for range 10 * times {
				f.ask(t, descriptor("path", "/cart"))
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
		}
		line := func(missed int) string {
			return `level=WARN msg="a request was denied" domain=edge descriptor="path=/cart" rule="path=/cart" place=rules.yaml:2 hits=1 limit="2 per 1d, fixed_window, denied hits count too" ` +
				fmt.Sprint("not_logged=", missed)
		}
		second(1)
		if got := f.logged("denied"); len(got) != 0 {
			t.Errorf("without the setting: got %q", got)
		}
		set(1)
		second(3)
		if got := f.logged("a request was denied"); len(got) != 3 || got[0] != line(0) || !strings.Contains(got[1], "not_logged=") {
			t.Errorf("1 per second: got\n%s\nwant 3 lines like\n%s", strings.Join(got, "\n"), line(0))
		}
		set(0.1)
		second(20)
		if got := f.logged("a request was denied"); len(got) != 2 {
			t.Errorf("1 in ten seconds: got\n%s\nwant 2 lines", strings.Join(got, "\n"))
		}
		set(1000)
		second(1)
		if got := f.logged("a request was denied"); len(got) != 10 {
			t.Errorf("1000 per second: got\n%s\nwant 10 lines", strings.Join(got, "\n"))
		}
		set(0)
		second(1)
		if got := f.logged("a request was denied"); len(got) != 0 {
			t.Errorf("switched off: got %q", got)
		}
		if n := f.admin.hub.Watchers(); n != 0 {
			t.Errorf("switched off: %d watchers are left", n)
		}
	})
}

// stuck is a log that nobody reads.
type stuck struct{ never chan struct{} }

// Write implements [io.Writer].
func (s stuck) Write([]byte) (int, error) {
	<-s.never
	return 0, io.ErrClosedPipe
}

func TestALogThatNobodyReadsSlowsNoRequest(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	f := start(t, watchedRules, func(o *Options) {
		o.Logger, o.LogDenials = slog.New(slog.NewTextHandler(stuck{never}, nil)), MaxLogDenials
	})
	for range 1000 {
		f.ask(t, descriptor("path", "/cart"))
	}
}

func TestSetLogLevelChangesTheLevelAndSaysSo(t *testing.T) {
	level := new(slog.LevelVar)
	f := start(t, watchedRules, func(o *Options) { o.LogLevel = level })
	client := adminv1.NewAdminServiceClient(dial(t, f.admin.Serve))
	for _, c := range []struct {
		in    *adminv1.SetLogLevelRequest
		level string
		code  codes.Code
	}{
		{&adminv1.SetLogLevelRequest{}, "info", codes.OK},
		{&adminv1.SetLogLevelRequest{Level: "debug"}, "debug", codes.OK},
		{&adminv1.SetLogLevelRequest{Level: "ERROR"}, "error", codes.OK},
		{&adminv1.SetLogLevelRequest{Level: "loud"}, "error", codes.InvalidArgument},
		{&adminv1.SetLogLevelRequest{Level: "info", DenialsPerSecond: new(-1.0)}, "error", codes.InvalidArgument},
		{&adminv1.SetLogLevelRequest{Level: "info", DenialsPerSecond: new(math.NaN())}, "error", codes.InvalidArgument},
		{&adminv1.SetLogLevelRequest{Level: "info", DenialsPerSecond: new(1001.0)}, "error", codes.InvalidArgument},
	} {
		out, err := client.SetLogLevel(t.Context(), c.in)
		if status.Code(err) != c.code || err == nil && out.GetLevel() != c.level || !strings.EqualFold(level.Level().String(), c.level) {
			t.Errorf("%v: got %v, %v, and the level is %v; want %v and %s", c.in, out, err, level.Level(), c.code, c.level)
		}
	}
	if got := f.logged("an operator changed the log"); len(got) != 2 || got[1] != `level=ERROR msg="an operator changed the log" level=error denials_per_second=0` {
		t.Errorf("got %q; want a line for each change", got)
	}
	fixed := start(t, watchedRules, nil)
	client = adminv1.NewAdminServiceClient(dial(t, fixed.admin.Serve))
	if _, err := client.SetLogLevel(t.Context(), &adminv1.SetLogLevelRequest{Level: "debug"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("without a level: got %v; want Unimplemented", err)
	}
	if out, err := client.SetLogLevel(t.Context(), &adminv1.SetLogLevelRequest{DenialsPerSecond: new(2.5)}); err != nil || out.GetDenialsPerSecond() != 2.5 || out.GetLevel() != "" {
		t.Errorf("denials without a level: got %v, %v", out, err)
	}
}

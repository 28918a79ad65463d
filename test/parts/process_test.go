package parts

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/testing/certtest"}, Third: []string{
		"github.com/redis/rueidis", // redis.go
		"github.com/envoyproxy/go-control-plane/envoy/config/core/v3", "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3",
		"github.com/envoyproxy/go-control-plane/pkg/cache/types", "github.com/envoyproxy/go-control-plane/pkg/cache/v3",
		"github.com/envoyproxy/go-control-plane/pkg/resource/v3", "github.com/envoyproxy/go-control-plane/pkg/server/v3",
		"github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3",
		"google.golang.org/grpc", "google.golang.org/grpc/metadata", // control_plane.go
		"golang.org/x/sys/unix", // world_linux.go
	}})
}

// shell starts a script that the test's end kills.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start("script", "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// forever is the end of a script that waits to be ended.
const forever = "\nexec sleep 1000"

// is matches one line.
func is(want string) func(string) bool {
	return func(line string) bool { return line == want }
}

func TestAwaitFindsLinesOfBothOutputsInOrderAndFromAMark(t *testing.T) {
	p := shell(t, `echo one; echo two >&2; echo three; echo two`+forever)
	line, next, err := p.Await(t.Context(), 0, is("two"))
	if err != nil || line != "two" || next != 2 {
		t.Fatalf("got %q, %d, %v; want two, 2", line, next, err)
	}
	if _, next, err = p.Await(t.Context(), next, is("two")); err != nil || next != 4 {
		t.Fatalf("the second two: got %d, %v; want 4", next, err)
	}
	if diff := cmp.Diff([]string{"one", "two", "three", "two"}, p.Lines()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if got, want := p.Mark(), 4; got != want {
		t.Errorf("mark: got %d, want %d", got, want)
	}
}

func TestAwaitSaysThatTheProgramHasEndedAndWhatItSaidLast(t *testing.T) {
	p := shell(t, `echo first; printf "no newline"; exit 3`)
	_, _, err := p.Await(t.Context(), 0, is("never"))
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"script", "exit status 3", "first", "no newline"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	p := shell(t, `echo ready`+forever)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := p.Await(ctx, 0, is("never")); err == nil {
		t.Error("got no error")
	}
}

func TestStopEndsAProgramAndReportsHowItEnded(t *testing.T) {
	for script, wantError := range map[string]bool{
		`trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done`: false,
		`trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done`:           true,
	} {
		p := shell(t, script)
		if _, _, err := p.Await(t.Context(), 0, is("ready")); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(t.Context()); (err != nil) != wantError {
			t.Errorf("%s: got %v, want an error: %t", script, err, wantError)
		}
	}
}

func TestStopKillsWhatDoesNotEndInTime(t *testing.T) {
	p := shell(t, `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	if _, _, err := p.Await(t.Context(), 0, is("ready")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx); err == nil {
		t.Error("got no error")
	}
	select {
	case <-p.Exited():
	default:
		t.Error("it still runs")
	}
}

func TestRequiredReadsAListOfNames(t *testing.T) {
	for value, want := range map[string]bool{"": false, "envoy": true, "redis,envoy": true, "redis envoy": true, "envoyproxy": false} {
		t.Setenv("WEIR_REQUIRE", value)
		if got := Required("envoy"); got != want {
			t.Errorf("WEIR_REQUIRE=%q: got %t, want %t", value, got, want)
		}
	}
}

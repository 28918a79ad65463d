package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestNothingIsAdmittedBeyondTheLimitsByFourSidecars(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const root = "../.."
	noteSources(t, root)
	parts.NeedRedis(t, root)
	for name, args := range map[string][]string{
		"one limit":              {"-n=20000"},
		"two limits per request": {"-n=10000", "-several"},
		"a load that moves":      {"-n=20000", "-load=moving", "-move=50ms", "-algorithm=token_bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(t.Context(), append([]string{"-requests=50", "-timeout=5m"}, args...), &out, io.Discard)
			t.Log("\n" + out.String())
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// noteSources opens the source files of the sidecar, so that `go test` runs this test again when
// one has changed.
func noteSources(t *testing.T, root string) {
	t.Helper()
	for _, dir := range []string{"cmd", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{
		{"-n=0"},
		{"-clients=0"},
		{"-period=1us"},
		{"-topology=ring"},
		{"-topology="},
		{"-algorithm=magic"},
		{"more"},
		{"-nonsense"},
		{"-row=magic"},
		{"-load=magic"},
		{"-fault=magic"},
		{"-rate=-1"},
		{"-move=0s"},
		{"-fault=oom", "-topology=cluster"},
		{"-away=-1s"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}

func TestWhatFollowsTheFlagsGoesToTheSidecars(t *testing.T) {
	o, err := parse([]string{"-topology=single,cluster", "--", "--redis-hash-tag=domain"}, io.Discard)
	if err != nil || len(o.more) != 1 || len(o.topologies) != 2 {
		t.Errorf("parse: got %+v, %v", o, err)
	}
}

func TestARowIsArgumentsThatLaterOnesChange(t *testing.T) {
	for name := range rows() {
		o, err := parse([]string{"-row=" + name, "-sidecars=3", "--", "--fleet-size=3"}, io.Discard)
		if err != nil || o.sidecars != 3 || !o.defaults || len(o.more) != 1 {
			t.Errorf("row %s: got %+v, %v", name, o, err)
		}
	}
	o, err := parse([]string{"-row=stop", "-fault=pause"}, io.Discard)
	if err != nil || o.fault != "pause" || o.limits.requests != 100 {
		t.Errorf("the row stop with another fault: got %+v, %v", o, err)
	}
}

func TestAroundAnOutageNearlyNoHitIsTooManyAndEveryHitIsCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const root = "../.."
	noteSources(t, root)
	parts.NeedRedis(t, root)
	for _, row := range []string{"away", "hung"} {
		for _, sharing := range []string{"exact", "leased"} {
			t.Run(row+", "+sharing, func(t *testing.T) {
				t.Parallel()
				var out strings.Builder
				args := []string{"-row=" + row, "-away=800ms", "-requests=400", "-burst=400", "-clients=8", "-sidecars=2", "-most-over=15", "--", "--sharing=" + sharing, "--fleet-size=2"}
				err := run(t.Context(), args, &out, io.Discard)
				t.Log("\n" + out.String())
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestEachFaultDisturbsTheFleetAndEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const root = "../.."
	noteSources(t, root)
	parts.NeedRedis(t, root)
	for _, name := range faultNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			args := []string{"-row=" + name, "-duration=2s", "-clients=8", "-sidecars=2", "-most-over=1000", "-requests=10", "-burst=10"}
			err := run(t.Context(), args, &out, io.Discard)
			t.Log("\n" + out.String())
			if err != nil {
				t.Error(err)
			}
		})
	}
}

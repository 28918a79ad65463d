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

// noteSources opens the source files of the sidecar, so that `go test` runs this test again when one has changed.
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
		{"-n=0"}, {"-clients=0"}, {"-period=1us"}, {"-topology=ring"}, {"-topology="}, {"-algorithm=magic"}, {"more"}, {"-nonsense"},
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

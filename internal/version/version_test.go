package version

import (
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestTheVersionIsTheLinkersOrTheBuilds(t *testing.T) {
	stamped := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}}
	changed := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}
	tests := []struct {
		name             string
		info             debug.BuildInfo
		linked, revision string
		want             Build
	}{
		{"unknown", debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "", "", Build{"unknown", "unknown"}},
		{"release", debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: stamped}, "", "", Build{"v1.2.3", "abc"}},
		{"changed", debug.BuildInfo{Settings: changed}, "", "", Build{"unknown", "abc with changes"}},
		{"linked", debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: stamped}, "v2", "def", Build{"v2", "def"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			must.Match(t, "result", test.want, of(&test.info, test.linked, test.revision))
		})
	}
}

// Both programs of an image are built without version control, and with the flags of
// deploy/Dockerfile and the Makefile.
func TestTheLinkerSetsTheVersionOfBothPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("builds two programs")
	}
	const path = "github.com/weirproxy/weir/internal/version."
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-X "+path+"linked=v7.8.9 -X "+path+"revision=f00d",
		"-o", dir, "../../cmd/sidecar", "../../cmd/ratelimit")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, command := range [][]string{{"sidecar", "version"}, {"sidecar", "--version"}, {"ratelimit", "version"}, {"ratelimit", "--version"}} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, command[0]), command[1:]...).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "weir v7.8.9, commit f00d, go") {
			t.Errorf("%v: got %q, %v", command, out, err)
		}
	}
}

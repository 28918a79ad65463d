package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const repository = "../.."

// tracked is a file of the repository.
type tracked string

func (f tracked) Path() string { return string(f) }

func (f tracked) Lstat() (os.FileInfo, error) { return os.Lstat(filepath.Join(repository, string(f))) }

func (f tracked) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(repository, string(f))) }

func TestTheRepositoryIsAModuleThatGoInstalls(t *testing.T) {
	t.Parallel()
	publish(t, t.TempDir(), module.Version{Path: "github.com/weirproxy/weir", Version: "v0.98.7"})
	content, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse("go.mod", content, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace)+len(mod.Exclude) > 0 {
		t.Error("go.mod has replace or exclude, so `go install …@version` refuses the module")
	}
}

// The work tree is published as a module in a proxy of files. Both programs are installed from
// there, as a user of the release does. The cache of modules has all that they need. `make release`
// runs the test.
func TestGoInstallMakesProgramsThatPrintTheirVersion(t *testing.T) {
	if os.Getenv("WEIR_INSTALL") == "" {
		t.Skip("builds two programs, in half a minute of CPU; set WEIR_INSTALL")
	}
	t.Parallel()
	weir := module.Version{Path: "github.com/weirproxy/weir", Version: "v0.98.7"}
	proxy, bin := t.TempDir(), t.TempDir()
	publish(t, proxy, weir)
	downloaded, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	// -trimpath takes compiled packages of other modules from the cache.
	install := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "-modcacherw", weir.Path+"/cmd/sidecar@"+weir.Version, weir.Path+"/cmd/ratelimit@"+weir.Version)
	install.Dir = bin // outside of a module
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOMODCACHE="+t.TempDir(), "GOFLAGS=", "GOSUMDB=off", "GOWORK=off", "CGO_ENABLED=0",
		fmt.Sprintf("GOPROXY=file://%s,file://%s/cache/download", proxy, strings.TrimSpace(string(downloaded))))
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	for _, program := range []string{"sidecar", "ratelimit"} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, program), "version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "weir v0.98.7, commit unknown, go") {
			t.Errorf("%s version: got %q, %v", program, out, err)
		}
	}
}

// publish writes the files of the repository as a version of the module, below proxy.
func publish(t *testing.T, proxy string, version module.Version) {
	t.Helper()
	escaped, err := module.EscapePath(version.Path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(proxy, escaped, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, version.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	names, err := exec.CommandContext(t.Context(), "git", "-C", repository, "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	var files []zip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		files = append(files, tracked(name))
	}
	if err := zip.Create(file, version, files); err != nil { // leaves the other modules of the repository out
		t.Fatalf("the repository as a module: %v", err)
	}
	mod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"list": version.Version + "\n", version.Version + ".info": fmt.Sprintf(`{"Version": %q}`, version.Version), version.Version + ".mod": string(mod),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

package readme

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// sidecarVariable is the environment variable that names the sidecar binary under test.
const sidecarVariable = "SIDECAR"

// TestMain builds the sidecar once for all tests, unless SIDECAR names one.
func TestMain(m *testing.M) {
	code, err := runWithSidecar(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// repository is the top folder of the repository, which tests that stand in a workspace cannot
// find.
var repository string

// runWithSidecar runs the tests with $SIDECAR set.
func runWithSidecar(m *testing.M) (int, error) {
	var err error
	if repository, err = parts.Root(); err != nil {
		return 0, err
	}
	if treesDir, err = os.MkdirTemp("", "weir-readme-"); err != nil {
		return 0, fmt.Errorf("preparing workspaces: %w", err)
	}
	defer func() { _ = os.RemoveAll(treesDir) }()
	if os.Getenv(sidecarVariable) != "" {
		return m.Run(), nil
	}
	binary, err := parts.Program(context.Background(), repository, "cmd/sidecar", false)
	if err != nil {
		return 0, err
	}
	if err := os.Setenv(sidecarVariable, binary); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// trackedFiles returns the files of the repository that git tracks, by their paths from the root.
// Documents are tested against these files alone, as a reader's checkout holds also the files that
// a document told the reader to save.
func trackedFiles(t *testing.T) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = repository
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var files []string
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if exists(filepath.Join(repository, name)) { // else deleted, and the deletion is not in the index yet
			files = append(files, name)
		}
	}
	return files
}

// exists reports whether there is a file or directory.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// A tree is a directory of links to the tracked files of a repository. Workspaces share the tree,
// because it has hundreds of links.
type tree struct {
	dir   string
	files int
}

// trees are by repository. runWithSidecar removes them with treesDir.
var (
	trees    = make(map[string]tree)
	treesDir string
)

// linkTree returns the tree of the repository.
func linkTree(t *testing.T) tree {
	t.Helper()
	if known, is := trees[repository]; is {
		return known
	}
	dir, err := os.MkdirTemp(treesDir, "") //nolint:usetesting // other tests use the tree too
	if err != nil {
		t.Fatal(err)
	}
	names, made := trackedFiles(t), make(map[string]bool)
	for _, name := range names {
		if folder := filepath.Join(dir, filepath.Dir(name)); !made[folder] {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			made[folder] = true
		}
		if err := os.Symlink(filepath.Join(repository, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	trees[repository] = tree{dir: dir, files: len(names)}
	return trees[repository]
}

// check fails the test when commands have added or removed files.
func (shared tree) check(t *testing.T) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(shared.dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files++
		}
		return err
	})
	if err != nil || files != shared.files {
		t.Errorf("folders of the repository hold %d files after the commands (error: %v), want %d: save files in a new folder", files, err, shared.files)
	}
}

// enterWorkspace makes a directory that looks like a fresh clone after `make build` the working
// directory of the test. Commands may write new files and new folders there, but not into folders
// of the repository.
func enterWorkspace(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	shared := linkTree(t)
	top, err := os.ReadDir(shared.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range top {
		link(filepath.Join(shared.dir, entry.Name()), entry.Name())
	}
	t.Cleanup(func() { shared.check(t) })
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	link(os.Getenv(sidecarVariable), filepath.Join("bin", "sidecar"))
	// Where its output is no terminal curl would draw a meter.
	if err := os.WriteFile(filepath.Join(dir, ".curlrc"), []byte("no-progress-meter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CURL_HOME", dir)
	t.Setenv("PATH", filepath.Join(dir, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Chdir(dir)
}

// A stage is the programs that commands of a document talk to, and their addresses.
type stage struct {
	ports [][2]string // documented and actual
}

// add notes where a documented port really is.
func (s *stage) add(t *testing.T, documented, address string) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	s.ports = append(s.ports, [2]string{documented, port})
}

// actual returns a command with the actual ports in it.
func (s *stage) actual(command string) string {
	for _, p := range s.ports {
		for _, host := range []string{"localhost", "127.0.0.1"} {
			command = strings.ReplaceAll(command, host+":"+p[0], "127.0.0.1:"+p[1])
		}
	}
	return command
}

// documented returns an output with the documented ports.
func (s *stage) documented(output string) string {
	for _, p := range s.ports {
		output = strings.ReplaceAll(output, ":"+p[1], ":"+p[0])
	}
	return output
}

// serve starts the sidecar with arguments of serve until the test ends, on ports that are free.
func (s *stage) serve(t *testing.T, args []string) {
	t.Helper()
	ports := map[string]string{"--grpc-address": "8081", "--http-address": "8080", "--admin-address": "8082"}
	remote := false
	for i, arg := range args {
		args[i] = s.actual(arg)
		name, value, _ := strings.Cut(arg, "=")
		if _, is := ports[name]; is && value != "" {
			ports[name], args[i] = value[strings.LastIndexByte(value, ':')+1:], name+"=127.0.0.1:0"
		}
		remote = remote || arg == "--store=redis"
	}
	if remote {
		args = append(args, "--redis-timeout=10s") // a busy machine must not look like a fault
	}
	args = append([]string{"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0"}, args...)
	sidecar, err := parts.StartSidecar(parts.Soon(t), os.Getenv(sidecarVariable), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sidecar.Kill()
		if t.Failed() {
			t.Logf("the sidecar's last lines:\n%s", sidecar.Tail(20))
		}
	})
	s.add(t, ports["--grpc-address"], sidecar.GRPC)
	s.add(t, ports["--http-address"], sidecar.HTTP)
	if sidecar.Admin != "" {
		s.add(t, ports["--admin-address"], sidecar.Admin)
	}
	if remote {
		if err := sidecar.AwaitStore(parts.Soon(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// serveArgs returns the arguments of the one sidecar that a command starts: itself, or through
// make.
func serveArgs(t *testing.T, command string) []string {
	t.Helper()
	if target, found := strings.CutPrefix(command, "make "); found {
		out, err := exec.CommandContext(parts.Soon(t), "make", "--no-print-directory", "-n", strings.TrimSpace(target)).Output()
		if err != nil {
			t.Fatalf("make -n %s: %v", target, err)
		}
		command = string(out)
	}
	for line := range strings.Lines(strings.ReplaceAll(command, "\\\n", " ")) {
		if _, args, found := strings.Cut(line, "sidecar serve "); found {
			return arguments(args)
		}
	}
	t.Fatalf("%q starts no sidecar", command)
	return nil
}

// arguments returns the words of a command line, with --name and its value as one, --name=value.
func arguments(line string) (args []string) {
	for word := range strings.FieldsSeq(line) {
		word = strings.Trim(word, `'"`)
		last := len(args) - 1
		if last >= 0 && strings.HasPrefix(args[last], "--") && !strings.Contains(args[last], "=") && !strings.HasPrefix(word, "--") {
			args[last] += "=" + word
			continue
		}
		args = append(args, word)
	}
	return args
}

// demo starts the parts of test/demo, on free ports: the example that the command names.
func (s *stage) demo(t *testing.T, command string) {
	t.Helper()
	binary := parts.NeedEnvoy(t, repository)
	example := "deploy"
	if _, name, found := strings.Cut(command, "-example "); found {
		example = filepath.Join(example, strings.Trim(strings.Fields(name)[0], `'"`))
	}
	s.serve(t, []string{"--rules=" + filepath.Join(example, "rules")})
	s.add(t, "18080", parts.BackendFor(t).Address())

	text := readFile(t, filepath.Join(example, "envoy.yaml"))
	for _, p := range s.ports {
		text = strings.Replace(text, "port_value: "+p[0]+" ", "port_value: "+p[1]+" ", 1)
	}
	replacements := [][2]string{
		{"address: 0.0.0.0, port_value: 10000", "address: 127.0.0.1, port_value: 0"},
		{"port_value: 9901", "port_value: 0"},
	}
	two := filepath.Base(example) == "rlqs"
	if !two {
		replacements = append(replacements, [2]string{"timeout: 0.050s", "timeout: 10s"}) // a busy machine must not look like a fault
	}
	for _, replacement := range replacements {
		if !strings.Contains(text, replacement[0]) {
			t.Fatalf("%s/envoy.yaml has no %q", example, replacement[0])
		}
		text = strings.Replace(text, replacement[0], replacement[1], 1)
	}
	s.envoy(t, binary, text, "10000", "9901")
	if two {
		s.envoy(t, binary, strings.ReplaceAll(text, "edge-1", "edge-2"), "10001", "9902")
	}
}

// envoy starts Envoy with a bootstrap on free ports, and notes the documented ones.
func (s *stage) envoy(t *testing.T, binary, bootstrap, ingress, admin string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	envoy, err := parts.StartEnvoy(parts.Soon(t), binary, config, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	address, err := envoy.Listener(parts.Soon(t), "ingress")
	if err != nil {
		t.Fatal(err)
	}
	s.add(t, ingress, address)
	s.add(t, admin, envoy.Admin)
}

// run runs a command in a shell and returns its output, standard output and standard error
// together, and its exit code.
func (s *stage) run(t *testing.T, command string) (output string, code int) {
	t.Helper()
	shell := exec.CommandContext(parts.Soon(t), "bash", "-c", s.actual(command))
	out, err := shell.CombinedOutput()
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", command, err)
	}
	return s.documented(string(out)), shell.ProcessState.ExitCode()
}

// need skips the test, or fails it in CI, when a command would not start for want of a program.
func need(t *testing.T, command string) {
	t.Helper()
	missing := ""
	if strings.Contains(command, "openssl ") {
		if _, err := exec.LookPath("openssl"); err != nil {
			missing = "openssl"
		}
	}
	for _, program := range []string{"curl", "jq"} {
		if strings.Contains(command, program+" ") {
			if _, err := exec.LookPath(program); err != nil {
				missing = program
			}
		}
	}
	if strings.Contains(command, "go tool -modfile=tools/go.mod grpcurl") {
		if out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "grpcurl", "-version").CombinedOutput(); err != nil {
			missing = fmt.Sprintf("grpcurl (it cannot be built: %s)", strings.TrimSpace(string(out)))
		}
	}
	if missing != "" && os.Getenv("CI") != "" {
		t.Fatalf("%s is missing", missing)
	}
	if missing != "" {
		t.Skipf("%s is missing", missing)
	}
}

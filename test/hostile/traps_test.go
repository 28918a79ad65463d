package hostile

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// A trap lies in the way of the program, or changes under it. Files, other processes and peers that
// Weir connects to are traps. A trap is no load, so nobody honest asks beside it.
type trap struct {
	name  string
	how   string // for SECURITY.md
	bound string
	run   func(t *testing.T)
}

func traps() []trap { return slices.Concat(fileTraps(), peerTraps()) }

// TestNoTrapHurtsTheService is the suite of traps.
func TestNoTrapHurtsTheService(t *testing.T) {
	needLinux(t)
	if os.Getenv("WEIR_GRPC_SERVER") == "grpc" {
		t.Skip("no trap is about the server of gRPC")
	}
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, row := range traps() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			free <- struct{}{}
			defer func() { <-free }()
			row.run(t)
		})
	}
}

// fileTraps are files in the directories that Weir uses.
func fileTraps() []trap {
	return []trap{
		{
			name:  "pipes_as_files",
			how:   "pipes lie in the place of `states.lock`, `requests.lock`, `states` and `grants` at the start, and of the lock of the socket at the stop",
			bound: "only regular files are opened; a stop waits for no lock",
			run:   pipesAsFiles,
		},
		{
			name:  "locks_of_others",
			how:   "another process holds a lock file of mode 0666 in the place of the socket's at the stop",
			bound: "lock files have mode 0600; a stop waits for no lock",
			run:   locksOfOthers,
		},
		{
			name:  "large_grants_file",
			how:   "`grants` in the state directory is a sparse file of 20 GB at the start",
			bound: "1 GiB, not read above; a line has a bound",
			run:   largeGrantsFile,
		},
		{
			name:  "flipped_bits_in_grants",
			how:   "each line of `grants` in the state directory has a flipped bit at the start, but for the first and the last one",
			bound: "a checksum of each line",
			run:   flippedBits,
		},
		{
			name:  "grants_ended_by_the_clock",
			how:   "the clock of the machine is past the end of all grants at the start, as after a boot with a wrong date",
			bound: "a grant stays for a day after its end; a rewritten file leaves a copy",
			run:   endedGrants,
		},
		{
			name:  "directory_made_anew",
			how:   "somebody removes the state directory, and another Weir makes it anew",
			bound: "the lock is compared with its entry before each write",
			run:   directoryMadeAnew,
		},
		{
			name:  "rule_file_cut_off",
			how:   "the rule file is cut off in place, and its first part is valid",
			bound: "a file that loses most of its rules, or a table most of its bytes, is read once more",
			run:   ruleFileCutOff,
		},
	}
}

func pipesAsFiles(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"states.lock", "requests.lock", "states", "grants"} {
		pipe(t, filepath.Join(dir, name))
	}
	s := start(t, "--state-dir="+dir, "--record="+dir)
	answers(t, s)
	lock := s.Socket + ".lock"
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	pipe(t, lock)
	stops(t, s)
}

func locksOfOthers(t *testing.T) {
	t.Helper()
	s := start(t)
	if info, err := os.Stat(s.Socket + ".lock"); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock of the socket: %v, %v, want the mode 0600", info, err)
	}
	if err := os.Remove(s.Socket + ".lock"); err != nil {
		t.Fatal(err)
	}
	held := hold(t, s.Socket+".lock")
	stops(t, s)
	_ = held.Close()
}

func largeGrantsFile(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	grants := filepath.Join(dir, "grants")
	writeFile(t, grants, "", 0o600)
	if err := os.Truncate(grants, 20<<30); err != nil {
		t.Skipf("no sparse file of 20 GB: %v", err)
	}
	s := start(t, "--state-dir="+dir)
	answers(t, s)
	if aside, _ := filepath.Glob(grants + ".refused-*"); len(aside) != 1 {
		t.Errorf("set aside: %q, want one file", aside)
	}
	within200(t, s)
	stops(t, s)
}

func endedGrants(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	ended := time.Now().Add(-time.Hour).UTC()
	line := fmt.Sprintf(`{"slot":"a","grant":{"id":"1","domain":"hostile","entries":[["small","a"]],"requests":9,"until":%q,"given":%q,"reason":"x"}}`+"\n",
		ended.Format(time.RFC3339), ended.Add(-time.Hour).Format(time.RFC3339))
	writeFile(t, filepath.Join(dir, "grants"), line, 0o600)
	s := start(t, "--state-dir="+dir)
	answers(t, s)
	stops(t, s)
	if got := parts.Read(t, filepath.Join(dir, "grants")); !strings.Contains(got, `"id":"1"`) {
		t.Errorf("the grant is gone from the file: %s", got)
	}
	if got := parts.Read(t, filepath.Join(dir, "grants.old")); got != line {
		t.Errorf("the copy of the file is %q", got)
	}
}

func ruleFileCutOff(t *testing.T) {
	t.Helper()
	s := start(t)
	from := s.Mark()
	file := filepath.Join(filepath.Dir(s.Socket), "rules.yaml")
	whole := parts.Read(t, file)
	if err := os.Truncate(file, int64(strings.Index(whole, "  - key: weighted"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	line, _, err := s.Await(ctx, from, func(line string) bool {
		message := parts.ParseLog(line).Message
		return message == "rules removed" || strings.HasPrefix(message, "a rule file became shorter and lost most of its rules")
	})
	if err != nil || parts.ParseLog(line).Message == "rules removed" {
		t.Errorf("got %s, %v; want that the file is read once more before its rules go", line, err)
	}
	if _, err := s.AwaitMessage(ctx, from, "rules removed"); err != nil {
		t.Errorf("the file stays short: %v", err)
	}
}

func pipe(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
}

// hold locks a file as a process of another user would, which may read the file.
func hold(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o666)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// answers asks for a request that must pass.
func answers(t *testing.T, s *target) {
	t.Helper()
	c := connect(s.GRPC)
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if got, err := c.ask(ctx, request(1, entry{"far", "honest"})); err != nil || got != pass {
		t.Errorf("got %v, %v, want that the request passes; the last lines:\n%s", got, err, last(s, 12))
	}
}

// stops ends the program by SIGTERM.
func stops(t *testing.T, s *target) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// within200 compares the largest resident memory with the ceiling.
func within200(t *testing.T, s *target) {
	t.Helper()
	if got := s.peak(); got > ceiling {
		t.Errorf("resident memory: %s; want at most %s", mebibytes(got), mebibytes(ceiling))
	}
}

// command runs a command of the program on a running one.
func command(t *testing.T, s *target, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := exec.CommandContext(ctx, os.Getenv(sidecarVariable), append([]string{name, "--server=" + s.Admin}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

func block(t *testing.T, s *target, value string) {
	t.Helper()
	command(t, s, "grant", "hostile", "small="+value, "--block", "--for=1h", "--reason=a trap")
}

func flippedBits(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	s := start(t, "--state-dir="+dir)
	for i := range 6 {
		block(t, s, fmt.Sprintf("client-%d", i))
	}
	stops(t, s)
	grants := filepath.Join(dir, "grants")
	lines := strings.SplitAfter(strings.TrimSuffix(parts.Read(t, grants), "\n"), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d lines of grants, want 6", len(lines))
	}
	for i := 1; i < len(lines)-1; i++ {
		line := []byte(lines[i])
		line[strings.Index(lines[i], "client-")+len("client-")] ^= 8 // the line is of another client then, and valid
		lines[i] = string(line)
	}
	writeFile(t, grants, strings.Join(lines, "")+"\n", 0o600)
	s = start(t, "--state-dir="+dir)
	answers(t, s)
	if got := command(t, s, "grants", "--output=json"); strings.Count(got, `"id"`) != 2 || !strings.Contains(got, "client-0") || !strings.Contains(got, "client-5") {
		t.Errorf("grants in force: %s; want the first one and the last one", got)
	}
	stops(t, s)
}

func directoryMadeAnew(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	first := start(t, "--state-dir="+dir)
	block(t, first, "first")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	second := start(t, "--state-dir="+dir)
	block(t, second, "second")
	from := first.Mark()
	block(t, first, "late")
	stops(t, first) // saves its counts
	if _, _, err := first.Await(t.Context(), from, func(line string) bool {
		return strings.Contains(line, "the directory was replaced, and another process uses it now")
	}); err != nil {
		t.Errorf("the first process does not say so: %v", err)
	}
	if got := parts.Read(t, filepath.Join(dir, "grants")); !strings.Contains(got, "second") || strings.Contains(got, "late") {
		t.Errorf("the grants of the second process: %s", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "states")); err == nil {
		t.Error("the counts of the first process are in the directory of the second one")
	}
	stops(t, second)
}

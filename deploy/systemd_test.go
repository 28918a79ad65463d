package deploy

import (
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

const unitFile = "systemd/weir.service"

// readUnit returns the settings of a unit of systemd, by section and name. A line that is neither a
// section, a setting nor a comment fails the test.
func readUnit(t *testing.T) map[string]string {
	t.Helper()
	content := parts.Read(t, unitFile)
	settings, section := make(map[string]string), ""
	for line := range strings.Lines(content) {
		line = strings.TrimRight(line, "\n")
		name, value, isSetting := strings.Cut(line, "=")
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = line
		case isSetting && section != "" && settings[section+name] == "":
			settings[section+name] = value
		default:
			t.Fatalf("%s: %q: want a section, a new setting or a comment", unitFile, line)
		}
	}
	return settings
}

func TestSystemdAcceptsTheUnit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip(err)
	}
	content := parts.Read(t, unitFile)
	verify := func(text string) string {
		unit := filepath.Join(t.TempDir(), "weir.service")
		parts.Write(t, unit, text)
		out, err := exec.CommandContext(parts.Soon(t), analyze, "--man=no", "verify", unit).CombinedOutput()
		if err != nil && len(out) == 0 {
			t.Fatal(err)
		}
		return string(out)
	}
	text := strings.ReplaceAll(content, "/usr/local/bin/sidecar", program(t, "sidecar")) // systemd wants the program to be there
	if said := verify(text); said != "" {
		t.Errorf("systemd-analyze says:\n%s", said)
	}
	if said := verify(strings.Replace(text, "RestrictRealtime", "RestrictRealTime", 1)); said == "" {
		t.Error("systemd-analyze accepts an unknown setting: the test shows nothing")
	}
}

// TestTheUnitStartsReloadsAndStopsTheSidecar runs the commands of the unit.
func TestTheUnitStartsReloadsAndStopsTheSidecar(t *testing.T) {
	t.Parallel()
	unit := readUnit(t)
	command := strings.Fields(unit["[Service]ExecStart"])
	if len(command) < 2 || filepath.Base(command[0]) != "sidecar" || command[1] != "serve" {
		t.Fatalf("ExecStart: got %v, want sidecar serve", command)
	}
	rules := t.TempDir()
	file := filepath.Join(rules, "edge.yaml")
	copyFile(t, "rules/edge.yaml", file)
	args := slices.Clone(command[2:])
	for i, arg := range args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--rules":
			args[i] = name + "=" + rules
		case "--grpc-address", "--http-address":
			args[i] = name + "=127.0.0.1:0"
		default:
			t.Errorf("ExecStart: %s: want a flag that this test knows", arg)
		}
	}
	binary := program(t, "sidecar") // before the time of soon begins
	s, err := parts.StartSidecar(parts.Soon(t), binary, append(args, "--admin-address=")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	checkPage(t, "http://"+s.HTTP+"/readyz", http.StatusOK)

	signal := strings.Fields(unit["[Service]ExecReload"])
	if !slices.Equal(signal, []string{"/bin/kill", "-HUP", "$MAINPID"}) {
		t.Fatalf("ExecReload: got %v", signal)
	}
	reload := func(logged string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		mark := s.Mark()
		if err := s.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AwaitMessage(ctx, mark, logged); err != nil {
			t.Fatal(err)
		}
	}
	reload("rules loaded") // the watch does not load unchanged rules
	parts.Write(t, file, "domain: other\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n")
	reload("rules changed")

	stop, err := time.ParseDuration(unit["[Service]TimeoutStopSec"])
	if err != nil || stop <= 10*time.Second {
		t.Fatalf("TimeoutStopSec: got %q, want more than the drain's 10s", unit["[Service]TimeoutStopSec"])
	}
	ctx, cancel := context.WithTimeout(t.Context(), stop)
	defer cancel()
	if err := s.Stop(ctx); err != nil { // by SIGTERM, as systemd does
		t.Error(err)
	}
}

func TestTheUnitMayDoLittle(t *testing.T) {
	t.Parallel()
	unit := readUnit(t)
	for name, want := range map[string]string{
		"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
	} {
		if got := unit["[Service]"+name]; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if value, found := unit["[Service]CapabilityBoundingSet"]; !found || value != "" {
		t.Errorf("CapabilityBoundingSet: got %q, want an empty set", value)
	}
}

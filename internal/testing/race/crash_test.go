package race

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyACrashOfTheRaceDetectorGetsASecondTry(t *testing.T) {
	const crash = "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346\nFAIL\tm/pkg/b\t1.0s\nFAIL\n"
	const fault = "unexpected fault address 0x7fda76900000\nfatal error: fault\n[signal SIGSEGV: segmentation violation code=0x1]\nFAIL\tm/pkg/b\t1.0s\nFAIL\n"
	for _, test := range []struct {
		name          string
		first, second string
		ok            bool
		again         string // the arguments of the second run; "" means one run
	}{
		{"a crash", "ok  \tm/pkg/a\t1.0s\n" + crash, "ok  \tm/pkg/b\t1.0s\n", true, "test -race m/pkg/b"},
		{"a fault", fault, "ok  \tm/pkg/b\t1.0s\n", true, "test -race m/pkg/b"},
		{"two crashes", crash, crash, false, "test -race m/pkg/b"},
		{"a crash beside a failed test", "--- FAIL: TestX (0.00s)\nFAIL\tm/pkg/a\t1.0s\n" + crash, "", false, ""},
		{"a failed test", "--- FAIL: TestX (0.00s)\nFAIL\tm/pkg/a\t1.0s\nFAIL\n", "", false, ""},
		{"a crash after a failed test", "    --- FAIL: TestX/y (0.00s)\n" + crash, "", false, ""},
		{"a data race", "WARNING: DATA RACE\n" + crash, "", false, ""},
		{"a panic", "panic: runtime error: invalid memory address\n[signal SIGSEGV: segmentation violation]\nFAIL\tm/pkg/b\t1.0s\n", "", false, ""},
		{"no crash", "FAIL\tm/pkg/b\t1.0s\nFAIL\n", "", false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"1": test.first, "2": test.second} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			fake := `cd "$0"; if [ -e run ]; then n=2; else n=1; fi; echo "$*" >>run; cat $n; ! grep -q FAIL $n`
			out, err := exec.CommandContext(t.Context(), "../../../scripts/race.sh", "sh", "-c", fake, dir, "test", "-race", "./pkg/a", "m/pkg/b").CombinedOutput()
			if (err == nil) != test.ok {
				t.Errorf("got %v; output:\n%s", err, out)
			}
			runs, err := os.ReadFile(filepath.Join(dir, "run"))
			if err != nil {
				t.Fatal(err)
			}
			_, again, _ := strings.Cut(strings.TrimSpace(string(runs)), "\n")
			if again != test.again {
				t.Errorf("the second run had %q, want %q; output:\n%s", again, test.again, out)
			}
		})
	}
}

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
	const failed, passed, again = "FAIL\tm/pkg/b\t1.0s\nFAIL\n", "ok  \tm/pkg/b\t1.0s\n", "test -race -cpu 1 m/pkg/b"
	const registers = "\ngoroutine 0 gp=0x7cf3e0 m=0 mp=0x7d03e0 [idle]:\n\nrip    0x41d920\ncs     0x33\nfs     0x0\ngs     0x0\n"
	for _, test := range []struct {
		name          string
		first, second string
		ok            bool
		again         string // the arguments of the second run; "" means one run
	}{
		{"a crash", "ok  \tm/pkg/a\t1.0s\n" + crash, "ok  \tm/pkg/b\t1.0s\n", true, "test -race -cpu 1 m/pkg/b"},
		{"a fault", "unexpected fault address 0x7fda76900000\nfatal error: fault\n[signal SIGSEGV: segmentation violation code=0x1]\n" + failed, passed, true, again},
		{"a bus error", "fatal error: unexpected signal during runtime execution\n[signal SIGBUS: bus error code=0x2]\n" + failed, passed, true, again},
		{"a fault of a thread", "SIGSEGV: segmentation violation\nPC=0x41d920 m=0 sigcode=1 addr=0x14\n" + registers + failed, passed, true, again},
		{"a trap", "SIGILL: illegal instruction\nPC=0x41d920 m=3 sigcode=2\ninstruction bytes: 0xf 0xb\n" + registers + failed, passed, true, again},
		{"an abort", "SIGABRT: abort\nPC=0x41d920 m=3 sigcode=18446744073709551610\n" + registers + failed, passed, true, again},
		{
			"a fault in code that is not of Go",
			"runtime: g 18: unexpected return pc for runtime.sigpanic called from 0x7f57ddbfdcc8\n" +
				"fatal error: unsafe.Slice: len out of range\npanic during panic\n" + failed,
			passed, true, again,
		},
		{
			"a stack of the detector",
			"traceback: unexpected SPWRITE function runtime.systemstack\nfatal error: traceback\npanic during panic\n" + failed,
			passed, true, again,
		},
		{"two crashes", crash, crash, false, "test -race -cpu 1 m/pkg/b"},
		{"a crash beside a failed test", "--- FAIL: TestX (0.00s)\nFAIL\tm/pkg/a\t1.0s\n" + crash, "", false, ""},
		{"a failed test", "--- FAIL: TestX (0.00s)\nFAIL\tm/pkg/a\t1.0s\nFAIL\n", "", false, ""},
		{"a crash after a failed test", "    --- FAIL: TestX/y (0.00s)\n" + crash, "", false, ""},
		{"a data race", "WARNING: DATA RACE\n" + crash, "", false, ""},
		{"a panic", "panic: runtime error: invalid memory address\n[signal SIGSEGV: segmentation violation]\nFAIL\tm/pkg/b\t1.0s\n", "", false, ""},
		{"a panic, then a crash", "panic: no\n\nSIGSEGV: segmentation violation\nPC=0x41d920 m=0 sigcode=1\n" + registers + failed, "", false, ""},
		{"too many writers", "fatal error: concurrent map writes\n\ngoroutine 7 [running]:\n" + failed, "", false, ""},
		{"a deadlock", "fatal error: all goroutines are asleep - deadlock!\n" + failed, "", false, ""},
		{"too long", "panic: test timed out after 15m0s\n" + failed, "", false, ""},
		{
			"longer than too long",
			"SIGQUIT: quit\nPC=0x41d920 m=0 sigcode=0\n" + registers + "*** Test killed with quit: ran too long (16m0s).\n" + failed,
			"", false, "",
		},
		{"too many goroutines", "race: limit on 8128 simultaneously alive goroutines is exceeded, dying\n" + failed, "", false, ""},
		{"no memory", "signal: killed\n" + failed, "", false, ""},
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

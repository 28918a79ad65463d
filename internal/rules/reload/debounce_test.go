package reload

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestAChangeWaitsForTheDebounceTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch{Reloader: new(Reloader)}
		start := time.Now() // a debounce time is 100 ms
		for range 20 {
			w.wait(time.Now())
			time.Sleep(90 * time.Millisecond)
		}
		<-w.timer
		if got, want := time.Since(start), 19*90*time.Millisecond+100*time.Millisecond; got != want {
			t.Errorf("a change every 90 ms, read after %v; want %v", got, want)
		}
	})
}

func TestEndlessChangesDoNotHoldAReloadForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch{Reloader: new(Reloader)}
		start := time.Now()
		for {
			w.wait(time.Now())
			select {
			case <-w.timer:
				if got, want := time.Since(start), maxDebounce+debounce; got > want {
					t.Errorf("a change every 10 ms without end, read after %v; want at most %v", got, want)
				}
				return
			case <-time.After(10 * time.Millisecond):
			}
			if time.Since(start) > time.Minute {
				t.Fatal("endless changes keep a reload waiting")
			}
		}
	})
}

func polling(t *testing.T, path string, o descriptors.Options) (*Reloader, *limiter.Limiter) {
	t.Helper()
	w := must.Get(lab.New(nil, memstore.Options{MaxKeys: 10}))(t)
	t.Cleanup(w.Close)
	r := must.Get(New(Options{
		Limiter: w.Limiter, Logger: slog.New(slog.DiscardHandler), Paths: []string{path}, Options: o,
	}))(t)
	return r, w.Limiter
}

// Time is fake here, as file systems do not mind without events.
func TestWithoutEventsSourcesAreLookedAt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	write := func(content string) {
		t.Helper()
		must.Do(t, os.WriteFile(file, []byte(content), 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		r, l := polling(t, file, descriptors.Options{})
		write("domain: a\n")
		must.Do(t, r.Load(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = r.run(ctx, nil) }()

		time.Sleep(29 * time.Second)
		write("domain: b\n")
		time.Sleep(1050 * time.Millisecond) // seen at 30 s, read again at 30.1 s
		write("domain: [")                  // half of something
		time.Sleep(100 * time.Millisecond)  // at 30.1 s it was another one than at 30 s
		write("domain: c\n")
		time.Sleep(100 * time.Millisecond)
		if got := r.Status(); l.Rules().Domain("a") == nil || got.Refusals != 0 {
			t.Errorf("while the file is being written: got %d domains, %d refusals; want those of before", len(l.Rules().Domains()), got.Refusals)
		}
		time.Sleep(3 * time.Second)
		if got := r.Status(); l.Rules().Domain("c") == nil || got.Loads != 2 || got.Refusals != 0 {
			t.Errorf("once it rests: got loads %d, refusals %d, errors %v; want the last content, loaded once", got.Loads, got.Refusals, got.Errors)
		}
		time.Sleep(10 * time.Minute)
		if got := r.Status().Loads; got != 2 {
			t.Errorf("loads after nothing changed: got %d, want 2", got)
		}
	})
}

// rulesUpTo is a document with that many rules.
func rulesUpTo(n int) string {
	var b strings.Builder
	b.WriteString("domain: a\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {key: k%d, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
	}
	return b.String()
}

// A program writes a rule file in place, and pauses for longer than the debounce time. The
// first part of the file is valid.
func TestAFileThatLosesMostOfItsRulesIsReadOnceMore(t *testing.T) {
	const said = "a rule file became shorter and lost most of its rules: it is read once more"
	file := filepath.Join(t.TempDir(), "a.yaml")
	write := func(rules int) {
		t.Helper()
		must.Do(t, os.WriteFile(file, []byte(rulesUpTo(rules)), 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		log := new(logtest.Log)
		r, l := polling(t, file, descriptors.Options{})
		r.options.Logger = slog.New(slog.NewTextHandler(log, nil))
		write(10)
		must.Do(t, r.Load(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = r.run(ctx, nil) }()
		count := func() int { return l.Rules().Count() }

		time.Sleep(29 * time.Second)
		write(4)                            // seen at 30 s, the same at 30.1 s
		time.Sleep(1150 * time.Millisecond) // 30.15 s
		if got := count(); got != 10 || strings.Count(log.String(), said) != 1 {
			t.Errorf("before the second look: %d rules are in force, want 10, and one line that says so\n%s", got, log)
		}
		write(10) // the writer goes on
		time.Sleep(time.Second)
		if got := count(); got != 10 || strings.Contains(log.String(), "rules removed") {
			t.Errorf("once the file is whole: %d rules, want 10, and that it never lost one\n%s", got, log)
		}
		for _, c := range []struct {
			rules int
			said  int
		}{{5, 1}, {2, 2}, {9, 2}} { // half of the rules; less than half, and meant; more rules
			write(c.rules)
			time.Sleep(31 * time.Second)
			if got := count(); got != c.rules || strings.Count(log.String(), said) != c.said {
				t.Errorf("%d rules are in force, want %d, and %d lines so far that a file is read once more\n%s", got, c.rules, c.said, log)
			}
		}
	})
}

// A part of a table, of a file of ranges or of an overlay is valid, too.
func TestATableOrAnOverlayThatLosesMostOfItsBytesIsReadOnceMore(t *testing.T) {
	const said = "a table or an overlay lost most of its bytes: it is read once more"
	const rules = "domain: a\ndescriptors:\n" +
		"- {key: k, rate_limit: {table: t.csv, unit: hour, requests_per_unit: 1}}\n" +
		"- {key: ip, match: {cidr_file: bad.txt}, rate_limit: {unit: hour, requests_per_unit: 0}}\n"
	overlaid := func(n int) string {
		return "overlay:\n" + strings.Repeat("- {for: {unit: day}, set: {algorithm: token_bucket}}\n", n-1) + "- {for: {unit: hour}, set: {algorithm: token_bucket}}\n"
	}
	lines := func(format string, n int) (text string) {
		for i := range n {
			text += fmt.Sprintf(format, i)
		}
		return text
	}
	for name, part := range map[string]func(n int) string{
		"t.csv":        func(n int) string { return lines("x%d,5\n", n) },
		"bad.txt":      func(n int) string { return lines("10.0.0.%d/32\n", n) },
		"overlay.yaml": overlaid,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, content string) {
				t.Helper()
				must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
			}
			synctest.Test(t, func(t *testing.T) {
				log := new(logtest.Log)
				r, _ := polling(t, dir, descriptors.Options{})
				r.options.Logger = slog.New(slog.NewTextHandler(log, nil))
				write("a.yaml", rules)
				write("t.csv", "x0,5\n")
				write("bad.txt", "10.0.0.0/32\n")
				write(name, part(10))
				must.Do(t, r.Load(t.Context()))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = r.run(ctx, nil) }()

				time.Sleep(29 * time.Second)
				write(name, part(4))                // seen at 30 s, the same at 30.1 s
				time.Sleep(1150 * time.Millisecond) // 30.15 s
				if got := r.Status().Loads; got != 1 || strings.Count(log.String(), said) != 1 {
					t.Errorf("before the second look: %d loads, want 1, and one line that says so\n%s", got, log)
				}
				write(name, part(10)) // the writer goes on
				time.Sleep(time.Second)
				if got := r.Status().Loads; got != 1 {
					t.Errorf("once the file is whole: %d loads, want 1\n%s", got, log)
				}
				for i, n := range []int{6, 2, 9} { // more than half; less than half, and meant; more
					write(name, part(n))
					time.Sleep(31 * time.Second)
					if got := r.Status().Loads; got != uint64(i+2) {
						t.Errorf("%d lines: %d loads, want %d\n%s", n, got, i+2, log)
					}
				}
				if got := strings.Count(log.String(), said); got != 2 {
					t.Errorf("%d lines say that the file is read once more, want 2\n%s", got, log)
				}
			})
		})
	}
}

func TestScopeFollowsLinks(t *testing.T) {
	top := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	for _, dir := range []string{"real/rules", "elsewhere"} {
		must.Do(t, os.MkdirAll(filepath.Join(top, dir), 0o700))
	}
	links := [][2]string{
		{"real", "link"}, // link/rules leads to real/rules
		{"../../elsewhere/a.yaml", "real/rules/a.yaml"}, // a file yet to come
		{"loop", "loop"}, // leads nowhere
		{filepath.Join(top, "link", "rules"), "absolute"}, // a link through a link
	}
	for _, l := range links {
		must.Do(t, os.Symlink(l[0], filepath.Join(top, l[1])))
	}
	p := scopeOf([]string{filepath.Join(top, "absolute"), filepath.Join(top, "loop"), filepath.Join(top, "missing", "deep", "x.yaml")}, nil, Files{})
	for _, dir := range []string{"", "real", "real/rules", "elsewhere"} {
		if !p.dirs[filepath.Join(top, dir)] {
			t.Errorf("%q is not watched", dir)
		}
	}
	for name, want := range map[string]bool{
		"absolute": true, "link": true, "real/rules": true, "real/rules/new.yaml": true, "real/rules/a.yaml": true, "elsewhere/a.yaml": true,
		"loop": true, "missing": true, "elsewhere/b.yaml": false, "real/rules/.new.yaml": false, "real/other": false, "x.yaml": false,
	} {
		if got := p.has(filepath.Join(top, name)); got != want {
			t.Errorf("an event on %s matters: got %v, want %v", name, got, want)
		}
	}
}

// Without events, a table is looked at as rule files are, and a bad one is refused once.
func TestWithoutEventsTablesAreLookedAt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		r, _ := polling(t, dir, descriptors.Options{MaxTableBytes: 100})
		write("a.yaml", "domain: a\ndescriptors:\n- {key: k, rate_limit: {table: t.csv, unit: hour, requests_per_unit: 1}}\n")
		write("t.csv", "x,1\n")
		must.Do(t, r.Load(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = r.run(ctx, nil) }()
		for i, c := range []struct {
			table           string
			loads, refusals uint64
		}{
			{"x,1\n", 1, 0},
			{"x,2\n", 2, 0},
			{"x,", 2, 1},
			{strings.Repeat("x", 101), 2, 2},
			{strings.Repeat("x", 101), 2, 2},
			{"x,1\n", 3, 2},
		} {
			write("t.csv", c.table)
			time.Sleep(10 * time.Minute)
			if got := r.Status(); got.Loads != c.loads || got.Refusals != c.refusals {
				t.Errorf("table %d: got %d loads and %d refusals, want %d and %d: %v", i, got.Loads, got.Refusals, c.loads, c.refusals, got.Errors)
			}
		}
	})
}

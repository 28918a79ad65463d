package reload_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// startText returns a limiter and a Reloader of a directory, loaded, and the buffer of its text log
// without times.
func startText(t *testing.T, dir string, o reload.Options) (*limiter.Limiter, *reload.Reloader, *bytes.Buffer) {
	t.Helper()
	w := must.Get(lab.New(nil, memstore.Options{}))(t)
	t.Cleanup(w.Close)
	log := new(bytes.Buffer)
	o.Limiter, o.Paths = w.Limiter, []string{dir}
	o.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "hash" {
			return slog.Attr{}
		}
		return a
	}}))
	r := must.Get(reload.New(o))(t)
	must.Do(t, r.Load(t.Context()))
	return w.Limiter, r, log
}

func TestAReloadLogsWhichRulesChangedByDomain(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1), "b.yaml": document("b", 1), "c.yaml": document("c", 1)})
	_, r, log := startText(t, dir, reload.Options{})
	if got, want := log.String(), "level=INFO msg=\"rules loaded\" files=3 domains=3 rules=3\n"; got != want {
		t.Errorf("log of the first load: got %s, want %s", got, want)
	}
	log.Reset()
	write(t, filepath.Join(dir, "a.yaml"), document("a", 2)+"- key: new\n  rate_limit: {unlimited: true}\n- key: node\n")
	write(t, filepath.Join(dir, "b.yaml"), "# the same rules\n"+document("b", 1))
	must.Do(t, os.Remove(filepath.Join(dir, "c.yaml")))
	must.Do(t, r.Reload(t.Context()))
	want := `level=INFO msg="rules loaded" files=2 domains=2 rules=3
level=INFO msg="rules changed" domain=a added=[new] changed=[user]
level=WARN msg="rules removed" domain=c removed=[user]
`
	must.Match(t, "log", want, log.String())
}

func TestAReloadLogsWhichLimitsKeepTheUsedHits(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1), "b.yaml": document("b", 1)})
	_, r, log := startText(t, dir, reload.Options{})
	log.Reset()
	write(t, filepath.Join(dir, "a.yaml"), strings.Replace(document("a", 1), "unit: ", "algorithm: token_bucket, unit: ", 1))
	write(t, filepath.Join(dir, "b.yaml"), `
domain: b
descriptors:
- key: user
  rate_limit: {algorithm: concurrency, max_in_flight: 3, hold: {begin: begin, end: end, at_most: 1m}}
`)
	must.Do(t, r.Reload(t.Context()))
	want := `level=INFO msg="limits changed" carry_over=1 start_anew="[b user concurrency]"`
	if !strings.Contains(log.String(), want+"\n") {
		t.Errorf("the log lacks %s:\n%s", want, log)
	}
}

func TestAReloadOfVeryManyChangesLogsABoundedNumberOfLines(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	_, r, log := startText(t, dir, reload.Options{})
	many := new(strings.Builder)
	many.WriteString("domain: a\ndescriptors:\n")
	for i := range 50 {
		fmt.Fprintf(many, "- {key: k%02d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	write(t, filepath.Join(dir, "a.yaml"), many.String())
	for i := range 150 {
		write(t, filepath.Join(dir, fmt.Sprintf("d%d.yaml", i)), document(fmt.Sprintf("d%d", i), 1))
	}
	log.Reset()
	must.Do(t, r.Reload(t.Context()))
	lines := strings.Split(log.String(), "\n")
	if len(lines) != 104 || !strings.Contains(lines[1], `k19 and 30 more]"`) || lines[102] != `level=WARN msg="rules changed in more domains" domains=51` {
		t.Errorf("got %d lines, the second %s, the last %s", len(lines), lines[1], lines[len(lines)-2])
	}
}

func TestARefusalLogsEachMistakeOnALineOfItsOwn(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	_, r, log := startText(t, dir, reload.Options{})
	log.Reset()
	file := filepath.Join(dir, "a.yaml")
	write(t, file, "domain: a\ndescriptors: [5, 6]\n")
	if err := r.Reload(t.Context()); err == nil {
		t.Fatal("a bad file was taken")
	}
	want := strings.ReplaceAll(`level=ERROR msg="rule mistake" error="FILE:2: descriptors[0]: is the number 5, must be a map"
level=ERROR msg="rule mistake" error="FILE:2: descriptors[1]: is the number 6, must be a map"
level=ERROR msg="rules refused" errors=2
`, "FILE", file)
	must.Match(t, "log", want, log.String())
}

func TestWarningsRefuseRulesWithStrict(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	doubtful := strings.Replace(document("a", 2), "key: user", "key: user\n  value: 10.0.0.0/8", 1)
	for _, strict := range []bool{false, true} {
		_, r, log := startText(t, dir, reload.Options{Options: descriptors.Options{Strict: strict}})
		write(t, filepath.Join(dir, "a.yaml"), doubtful)
		err := r.Reload(t.Context())
		if (err != nil) != strict || strict && !strings.Contains(err.Error(), "a.yaml:4: descriptors[0].value: is compared as text") {
			t.Errorf("Reload with Strict %t: got %v", strict, err)
		}
		if got := len(r.Status().Warnings); got > 0 == strict {
			t.Errorf("with Strict %t: got %d warnings in force", strict, got)
		}
		if warned := strings.Count(log.String(), `level=WARN msg="rule warning" warning="`+filepath.Join(dir, "a.yaml")+":4: warning: "); warned > 0 == strict {
			t.Errorf("with Strict %t: got the log %s", strict, log)
		}
		write(t, filepath.Join(dir, "a.yaml"), document("a", 1))
	}
}

// A control plane that pushes many documents, all different, does not fill the log.
func TestTheLogOfPushesIsBounded(t *testing.T) {
	for name, requests := range map[string]func(i int) int{
		"good": func(i int) int { return 1 + i }, "bad": func(int) int { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, r, log := startText(t, tree(t, map[string]string{"a.yaml": document("a", 1)}), reload.Options{Pushed: true})
				log.Reset()
				push := func(i int) {
					_ = r.Push(t.Context(), pushed(doc{fmt.Sprint("xds:", i), "pushed", requests(i)}))
				}
				for i := range 1000 {
					push(i)
				}
				if n := strings.Count(log.String(), "\n"); n == 0 || n > 40 {
					t.Errorf("%d lines about 1000 documents, want at most 4 about each of 10", n)
				}
				log.Reset()
				time.Sleep(time.Minute)
				push(1000)
				if got := log.String(); !strings.Contains(got, "not_logged=990") {
					t.Errorf("a minute later: got %s, want how many are not in the log", got)
				}
				if s := r.Status(); s.Loads+s.Refusals != 1002 {
					t.Errorf("%d loads and refusals, want 1002", s.Loads+s.Refusals)
				}
			})
		})
	}
}

package reload_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/loglimit", "internal/regular", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store/memstore", "pkg/store", "internal/top"},
		Third: []string{"github.com/fsnotify/fsnotify", "github.com/pelletier/go-toml/v2"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13/viper", "github.com/spf13/cobra"},
	})
}

func document(domain string, requests int) string {
	return "domain: " + domain + "\ndescriptors:\n- key: user\n  rate_limit: {unit: hour, requests_per_unit: " + strconv.Itoa(requests) + "}\n"
}

func requests(l *limiter.Limiter, domain string) int {
	d := l.Rules().Domain(domain)
	if d == nil {
		return -1
	}
	rule := d.Match([]descriptors.Entry{{Key: "user", Value: "x"}})
	return int(rule.Limits[0].Requests)
}

const within = 2 * time.Minute

type messages struct{ lines chan slog.Record }

func (m messages) Enabled(context.Context, slog.Level) bool { return true }
func (m messages) WithAttrs([]slog.Attr) slog.Handler       { return m }
func (m messages) WithGroup(string) slog.Handler            { return m }

func (m messages) Handle(_ context.Context, r slog.Record) error {
	m.lines <- r
	return nil
}

// await returns the next record of that message, and fails when one comes that must not.
func (m messages) await(t *testing.T, message string, never ...string) slog.Record {
	t.Helper()
	deadline := time.After(within)
	for {
		select {
		case r := <-m.lines:
			if r.Message == message {
				return r
			}
			for _, n := range never {
				if r.Message == n {
					t.Fatalf("waiting for %q: got %q", message, r.Message)
				}
			}
		case <-deadline:
			t.Fatalf("no %q within %s", message, within)
		}
	}
}

func prepare(t *testing.T, o reload.Options) (*limiter.Limiter, *reload.Reloader, messages) {
	t.Helper()
	w := must.Get(lab.New(nil, memstore.Options{MaxKeys: 100}))(t)
	t.Cleanup(w.Close)
	log := messages{make(chan slog.Record, 10_000)}
	o.Limiter, o.Logger = w.Limiter, slog.New(log)
	r := must.Get(reload.New(o))(t)
	return w.Limiter, r, log
}

// start returns a limiter with a Reloader that has loaded the paths and, when run is set, watches
// them until the test ends.
func start(t *testing.T, o reload.Options, run bool) (*limiter.Limiter, *reload.Reloader, messages) {
	t.Helper()
	l, r, log := prepare(t, o)
	must.Do(t, r.Load(t.Context()))
	log.await(t, "rules loaded")
	if run {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		log.await(t, "rules unchanged") // Run watches
	}
	return l, r, log
}

// write writes a file in one step, as careful writers do.
func write(t *testing.T, path, content string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next")
	must.Do(t, os.WriteFile(next, []byte(content), 0o600))
	must.Do(t, os.Rename(next, path))
}

func TestFailedReloadKeepsOldRules(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), document("a", 1))
	write(t, filepath.Join(dir, "b.yaml"), document("b", 1))
	l, r, log := start(t, reload.Options{Paths: []string{dir}}, false)

	write(t, filepath.Join(dir, "a.yaml"), document("a", 2))
	write(t, filepath.Join(dir, "b.yaml"), "domain: b\ndescriptors:\n- key: user\n  rate_limit: {unit: fortnight, requests_per_unit: 2}\n- value: x\n")
	err := r.Reload(t.Context())
	var mistakes descriptors.Errors
	if !errors.As(err, &mistakes) || len(mistakes) != 2 {
		t.Fatalf("Reload = %v; want two mistakes", err)
	}
	if got := []int{requests(l, "a"), requests(l, "b")}; !cmp.Equal(got, []int{1, 1}) {
		t.Errorf("requests in force: got %v, want those of before, also of the file that is right", got)
	}
	status := r.Status()
	if len(status.Errors) != 2 || status.Refusals != 1 || status.Loads != 1 {
		t.Errorf("status: got %d errors, %d refusals, %d loads; want 2, 1, 1", len(status.Errors), status.Refusals, status.Loads)
	}
	var logged []string
	log.await(t, "rules refused").Attrs(func(a slog.Attr) bool {
		text, err := json.Marshal(a.Value.Any())
		return err == nil && json.Unmarshal(text, &logged) == nil
	})
	if diff := cmp.Diff(status.Errors, logged); diff != "" {
		t.Errorf("logged reasons (-status +log):\n%s", diff)
	}

	write(t, filepath.Join(dir, "b.yaml"), document("b", 2))
	must.Do(t, r.Reload(t.Context()))
	if got := []int{requests(l, "a"), requests(l, "b")}; !cmp.Equal(got, []int{2, 2}) {
		t.Errorf("requests in force after the mistake: got %v, want [2 2]", got)
	}
	if got := r.Status().Errors; len(got) != 0 {
		t.Errorf("errors after a good load: got %q", got)
	}
}

func TestReloadWithoutAChangeIsALoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	write(t, file, document("a", 1))
	_, r, _ := start(t, reload.Options{Paths: []string{file}}, false)
	if err := r.Reload(t.Context()); err != nil || r.Status().Loads != 2 {
		t.Errorf("Reload: got %v and %d loads; want nil and 2", err, r.Status().Loads)
	}
}

func TestFirstLoadReportsEveryReason(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "bad.yaml"), "domain: a\nrules: 1\n")
	write(t, filepath.Join(dir, "twice.yaml"), "domain: [\n")
	empty := t.TempDir()
	_, r, _ := prepare(t, reload.Options{Paths: []string{dir, empty, filepath.Join(dir, "missing")}})
	err := r.Load(t.Context())
	want := []string{
		empty + ": holds no rule file, must have at least one *.yaml, *.yml or *.json",
		filepath.Join(dir, "missing") + ": no such file or directory",
		filepath.Join(dir, "bad.yaml") + ":2: rules: is a word of another product",
		filepath.Join(dir, "twice.yaml") + ":",
	}
	if err == nil {
		t.Fatal("Load of bad rules succeeded")
	}
	got := strings.Split(err.Error(), "\n")
	if len(got) != len(want) {
		t.Fatalf("Load: got\n%s\nwant %d lines", err, len(want))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("reason %d: got %q, want it to start with %q", i, got[i], want[i])
		}
	}
	if diff := cmp.Diff(got, r.Status().Errors); diff != "" {
		t.Errorf("Status().Errors (-Load +Status):\n%s", diff)
	}
}

func TestNewNamesEveryMissingOption(t *testing.T) {
	_, err := reload.New(reload.Options{})
	if got := strings.Count(err.Error(), "\n") + 1; got != 3 {
		t.Errorf("New: got %v; want 3 reasons", err)
	}
}

// ending is a context that ends once it has been asked whether it has.
type ending struct {
	context.Context
	asked bool
}

func (e *ending) Err() error {
	if e.asked {
		return context.Canceled
	}
	e.asked = true
	return nil
}

func TestAContextThatEndsMeanwhileChangesNothing(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	l, r, _ := start(t, reload.Options{Paths: []string{dir}}, false)
	write(t, filepath.Join(dir, "a.yaml"), document("a", 2))
	_ = r.Reload(&ending{Context: t.Context()})
	if got := requests(l, "a"); got != 1 || r.Status().Loads != 1 || r.Status().Refusals != 0 {
		t.Errorf("got %d requests in force, status %+v; want those of before and no attempt", got, r.Status())
	}
}

func TestAnEndedContextChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	write(t, file, document("a", 1))
	_, r, _ := start(t, reload.Options{Paths: []string{file}}, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Reload(ctx); !errors.Is(err, context.Canceled) || r.Status().Loads != 1 || r.Status().Refusals != 0 {
		t.Errorf("Reload: got %v, status %+v; want context.Canceled and no attempt", err, r.Status())
	}
}

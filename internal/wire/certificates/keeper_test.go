package certificates

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

// open opens the files of a directory in a bubble, and returns the log.
func open(t *testing.T, files Files) (*Keeper, *logtest.Log) {
	t.Helper()
	log := new(logtest.Log)
	k := must.Get(Open(Options{Files: files, Logger: slog.New(slog.NewTextHandler(log, nil))}))(t)
	t.Cleanup(k.Close)
	return k, log
}

// name returns the name of the certificate in force.
func (k *Keeper) name() string { return k.Now().Certificate.Leaf.Subject.CommonName }

// pass lets time pass in a bubble, and returns the messages that were logged meanwhile.
func pass(d time.Duration, log *logtest.Log) []string {
	time.Sleep(d)
	synctest.Wait()
	var messages []string
	for line := range strings.Lines(log.Take()) {
		_, message, _ := strings.Cut(line, "msg=")
		quoted := strings.SplitN(message, `"`, 3)
		messages = append(messages, quoted[1])
	}
	return messages
}

func TestChangedFilesComeInForceAndBadOnesAreRefusedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, ca := t.TempDir(), certtest.New(t, "ca")
		write(t, dir, ca.Issue(t, "first"), ca)
		k, log := open(t, filesIn(dir))
		steps := []struct {
			name, want string
			change     func()
			logged     []string
		}{
			{"nothing", "first", func() {}, []string{"certificates loaded"}},
			{"a new pair", "second", func() { ca.Issue(t, "second").Write(t, dir) }, []string{"certificates loaded"}},
			{"a touch", "second", func() {
				must.Do(t, os.Chtimes(filepath.Join(dir, "tls.crt"), time.Time{}, time.Now().Add(time.Hour)))
			}, nil},
			{"a pair that is none", "second", func() {
				certtest.Write(t, filepath.Join(dir, "tls.crt"), ca.Issue(t, "third").Certificate)
			}, []string{"certificates refused"}},
			{"another that is none", "second", func() {
				certtest.Write(t, filepath.Join(dir, "tls.key"), []byte("secret"))
			}, []string{"certificates refused"}},
			{"no authorities", "second", func() {
				ca.Issue(t, "fourth").Write(t, dir)
				must.Do(t, os.Remove(filepath.Join(dir, "ca.crt")))
			}, []string{"certificates refused"}},
			{"all is well", "fourth", func() { certtest.Write(t, filepath.Join(dir, "ca.crt"), ca.PEM) }, []string{"certificates loaded"}},
		}
		for _, step := range steps {
			step.change()
			logged := pass(10*DefaultEvery, log)
			if got := k.name(); got != step.want {
				t.Errorf("%s: got %s in force, want %s", step.name, got, step.want)
			}
			if diff := cmp.Diff(step.logged, logged); diff != "" {
				t.Errorf("%s: messages (-want +got):\n%s", step.name, diff)
			}
		}
	})
}

func TestACertificateWaitsForItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, ca := t.TempDir(), certtest.New(t, "ca")
		write(t, dir, ca.Issue(t, "first"), ca)
		k, log := open(t, filesIn(dir))
		pass(DefaultEvery/2, log)
		second := ca.Issue(t, "second")
		certtest.Write(t, filepath.Join(dir, "tls.crt"), second.Certificate)
		if logged := pass(DefaultEvery, log); logged != nil {
			t.Errorf("with the certificate alone: logged %q", logged)
		}
		certtest.Write(t, filepath.Join(dir, "tls.key"), second.Key)
		if diff := cmp.Diff([]string{"certificates loaded"}, pass(2*DefaultEvery, log)); diff != "" {
			t.Errorf("with its key (-want +got):\n%s", diff)
		}
		if got := k.name(); got != "second" {
			t.Errorf("in force: got %s", got)
		}
	})
}

func TestATurnedLinkBringsAllFilesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// As Kubernetes mounts a Secret: files -> ..data/files, ..data -> ..a.
		dir, ca := t.TempDir(), certtest.New(t, "ca")
		turn := func(version, name string) {
			to := filepath.Join(dir, version)
			must.Do(t, os.Mkdir(to, 0o700))
			write(t, to, ca.Issue(t, name), ca)
			next := filepath.Join(dir, "..next")
			must.Do(t, os.Symlink(version, next))
			must.Do(t, os.Rename(next, filepath.Join(dir, "..data")))
		}
		turn("..a", "first")
		for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
			must.Do(t, os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)))
		}
		k, log := open(t, filesIn(dir))
		pass(0, log)
		turn("..b", "second")
		must.Do(t, os.RemoveAll(filepath.Join(dir, "..a")))
		if diff := cmp.Diff([]string{"certificates loaded"}, pass(3*DefaultEvery, log)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		if got := k.name(); got != "second" {
			t.Errorf("in force: got %s", got)
		}
	})
}

func TestACertificateWhoseTimeIsOverIsShownAndToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, ca := t.TempDir(), certtest.New(t, "ca")
		write(t, dir, ca.IssueUntil(t, time.Now().Add(time.Minute), "first"), ca)
		k, log := open(t, filesIn(dir))
		if diff := cmp.Diff([]string{"certificates loaded"}, pass(50*time.Second, log)); diff != "" {
			t.Errorf("before (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"certificate has expired"}, pass(time.Hour, log)); diff != "" {
			t.Errorf("after (-want +got):\n%s", diff)
		}
		if got := k.name(); got != "first" {
			t.Errorf("in force: got %s", got)
		}
	})
}

func TestOpenFailsOnFilesThatAreWrong(t *testing.T) {
	if _, err := Open(Options{Files: filesIn(t.TempDir()), Logger: slog.New(slog.DiscardHandler)}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, want three reasons", err)
	}
	if _, err := Open(Options{}); err == nil {
		t.Error("without a logger: got no error")
	}
}

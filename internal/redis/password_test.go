package redis

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// A secret is a folder as Kubernetes mounts a Secret: files are links into a folder, which a
// renewal replaces by one rename.
type secret struct {
	t       *testing.T
	dir     string
	version int
}

func newSecret(t *testing.T, files map[string]string) *secret {
	t.Helper()
	s := &secret{t: t, dir: t.TempDir()}
	s.write(files)
	for name := range files {
		must.Do(t, os.Symlink(filepath.Join("..data", name), s.path(name)))
	}
	return s
}

func (s *secret) path(name string) string { return filepath.Join(s.dir, name) }

// write replaces all files.
func (s *secret) write(files map[string]string) {
	s.t.Helper()
	s.version++
	version := fmt.Sprintf("..%d", s.version)
	err := os.Mkdir(s.path(version), 0o700)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.dir, version, name), []byte(text), 0o600))
	}
	err = errors.Join(err, os.Symlink(version, s.path("..new")), os.Rename(s.path("..new"), s.path("..data")))
	if err != nil {
		s.t.Fatal(err)
	}
}

// do sends a command to servers, as their administrator.
func do(t *testing.T, servers []*parts.Redis, command ...string) {
	t.Helper()
	for _, r := range servers {
		must.Get(r.Do(soon(t), command...))(t)
	}
}

// rotate changes the password of the user weir, and ends all connections of the user.
func rotate(t *testing.T, password string, servers ...*parts.Redis) {
	t.Helper()
	do(t, servers, "ACL", "SETUSER", "weir", "reset", "on", ">"+password, "~*", "&*", "+@all")
	do(t, servers, "CLIENT", "KILL", "USER", "weir")
}

func TestARenewedPasswordNeedsNoRestart(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{Username: "admin", Password: "admin", Users: []string{"weir on >first ~* &* +@all"}})
	files := newSecret(t, map[string]string{"password": "first\n"})
	c, lines := connectedTo(t, Options{URLs: urlOf("redis", "weir:@"+r.Address()), PasswordFile: files.path("password")})
	await(t, "a command", c.works)

	files.write(map[string]string{"password": "second\r\n"})
	if err := c.patiently(); err != nil {
		t.Errorf("a command on the old connection: %v", err)
	}
	rotate(t, "second", r)
	await(t, "a command with the second password", c.works)

	rotate(t, "third", r) // Redis is ahead of the file
	refused := func() error {
		if err := c.works(); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
			return fmt.Errorf("got %w, want WRONGPASS", err)
		}
		return nil
	}
	await(t, "the refusal of the second password", refused)
	files.write(map[string]string{"password": "third"})
	await(t, "a command with the third password", c.works)

	if strings.Contains(lines.String(), "does not say its version") {
		t.Error("the log takes the refusal of a password for a refusal of INFO")
	}
	if n := strings.Count(lines.String(), "was read again"); n != 2 {
		t.Errorf("%d log lines about a renewed password, want 2", n)
	}
	for _, text := range []string{"first", "second", "third"} {
		if strings.Contains(lines.String(), text) {
			t.Errorf("the log shows the password %s", text)
		}
	}
}

func TestTheLastPasswordStaysWhileTheFileCannotBeRead(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{Password: "first"})
	files := newSecret(t, map[string]string{"password": "first"})
	c, lines := connectedTo(t, Options{URLs: urlOf("redis", r.Address()), PasswordFile: files.path("password")})
	again := func() {
		t.Helper()
		id := ""
		await(t, "a command", func() (err error) {
			id, err = c.command(time.Second, "CLIENT", "ID")
			return err
		})
		do(t, []*parts.Redis{r}, "CLIENT", "KILL", "TYPE", "normal")
		await(t, "another connection", func() error {
			if other, err := c.command(time.Second, "CLIENT", "ID"); err != nil || other == id {
				return fmt.Errorf("connection %s, %w", other, err)
			}
			return nil
		})
	}
	const cannot = "cannot be read, so the last password stays"
	for _, step := range []struct {
		files map[string]string
		lines int // WARN
	}{
		{nil, 1}, // no file
		{nil, 1},
		{map[string]string{"password": "\n"}, 2},
		{map[string]string{"password": "\n"}, 2},
		{map[string]string{"password": strings.Repeat("a", maxLogin+1)}, 3},
		{map[string]string{"password": "first"}, 3},
		{nil, 4},
	} {
		files.write(step.files)
		again()
		if n := strings.Count(lines.String(), cannot); n != step.lines {
			t.Errorf("%d log lines after %.20v, want %d", n, step.files, step.lines)
		}
	}
}

func TestRenewedPasswordsOfSentinelAndDataNeedNoRestart(t *testing.T) {
	t.Parallel()
	s := started(t, parts.StartSentinels, parts.SentinelOptions{Data: parts.RedisOptions{Password: "data"}, Password: "sentinel"})
	rotate(t, "first", s.Data...)
	rotate(t, "hidden", s.Sentinels...)
	files := newSecret(t, map[string]string{"data": "weir:first\n", "sentinel": "weir:hidden\n"})
	c, _ := connectedTo(t, Options{
		URLs:         []string{"redis-sentinel://" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName},
		PasswordFile: files.path("data"), SentinelPasswordFile: files.path("sentinel"),
	})
	await(t, "a command", c.works)

	files.write(map[string]string{"data": "weir:second\n", "sentinel": "weir:concealed\n"})
	rotate(t, "second", s.Data...)
	rotate(t, "concealed", s.Sentinels...)
	await(t, "a command with the second password", c.works)

	old := must.Get(s.Primary(soon(t)))(t)
	var asked time.Time
	await(t, "a command to the next primary", func() error {
		if time.Since(asked) > time.Second { // a busy machine makes Sentinels abort a failover
			asked = time.Now()
			if primary, err := s.Primary(soon(t)); err != nil || primary == old {
				_, _ = s.Sentinels[1].Do(soon(t), "SENTINEL", "FAILOVER", parts.SentinelName) // fails during a failover
			}
		}
		client, err := c.Client()
		if err != nil {
			return err
		}
		for address := range client.Nodes() {
			if address == old.Address() {
				return errors.New("still the old primary")
			}
		}
		return c.works()
	})
}

func TestMistakesInPasswordFiles(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	must.Do(t, os.WriteFile(empty, []byte("\n"), 0o600))
	_, err := Options{URLs: urlOf("redis-sentinel", ":x@a/b"), PasswordFile: empty, SentinelPasswordFile: "missing"}.Parse()
	want := "a password, and a file of the password: set only one of them\n" +
		"file of the password: " + empty + ": is empty, must hold the password\n" +
		"file of the password of Sentinel: open missing: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

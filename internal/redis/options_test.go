package redis

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func TestParseReadsEveryForm(t *testing.T) {
	for _, test := range []struct {
		name string
		urls []string
		text string // "" means urls[0]
		want Target
	}{
		{"host", []string{"redis://a"}, "redis://a:6379", Target{topology: "single", network: "tcp", addresses: []string{"a:6379"}}},
		{"port", []string{"redis://a.b-c_d:7"}, "", Target{topology: "single", network: "tcp", addresses: []string{"a.b-c_d:7"}}},
		{"slash", []string{"redis://a:1/"}, "redis://a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}}},
		{"database", []string{"redis://a:1/3"}, "", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, database: 3}},
		{"database_as_parameter", []string{"redis://a:1?db=3"}, "redis://a:1/3", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, database: 3}},
		{"database_twice", []string{"redis://a:1/3?db=3"}, "redis://a:1/3", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, database: 3}},
		{"IPv6", []string{"redis://[::1]"}, "redis://[::1]:6379", Target{topology: "single", network: "tcp", addresses: []string{"[::1]:6379"}}},
		{"IPv6_port_zone", []string{"redis://[fe80::1%25eth0]:1"}, "redis://[fe80::1%eth0]:1", Target{topology: "single", network: "tcp", addresses: []string{"[fe80::1%eth0]:1"}}},
		{"valkey", []string{"valkey://a:1"}, "redis://a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}}},
		{"upper_case", []string{"REDIS://a:1"}, "redis://a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}}},
		{"user_and_password", []string{"redis://me:secret@a:1"}, "redis://me:***@a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, login: login{user: "me", password: "secret"}}},
		{"password_alone", []string{"redis://:secret@a:1"}, "redis://:***@a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, login: login{password: "secret"}}},
		{"user_without_password", []string{"redis://me:@a:1"}, "redis://me:@a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, login: login{user: "me"}}},
		{"encoded", []string{"redis://m%40e:%40%2F%3F%23%25%2C:@a:1"}, "redis://m@e:***@a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, login: login{user: "m@e", password: "@/?#%,:"}}},
		{"twice", []string{"redis://a", "valkey://a:6379"}, "redis://a:6379", Target{topology: "single", network: "tcp", addresses: []string{"a:6379"}}},
		{"TLS", []string{"rediss://a:1"}, "", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, security: &security{}}},
		{"valkeys", []string{"valkeys://a:1"}, "rediss://a:1", Target{topology: "single", network: "tcp", addresses: []string{"a:1"}, security: &security{}}},
		{"socket", []string{"unix:///run/redis.sock"}, "", Target{topology: "single", network: "unix", addresses: []string{"/run/redis.sock"}}},
		{"socket_database", []string{"unix:///run/a%20b?db=2"}, "", Target{topology: "single", network: "unix", addresses: []string{"/run/a b"}, database: 2}},
		{"socket_user", []string{"unix://me:secret@/run/s"}, "unix://me:***@/run/s", Target{topology: "single", network: "unix", addresses: []string{"/run/s"}, login: login{user: "me", password: "secret"}}},
		{"sentinel", []string{"redis-sentinel://a,b:1/main"}, "redis-sentinel://a:26379,b:1/main", Target{topology: "sentinel", network: "tcp", addresses: []string{"a:26379", "b:1"}, primary: "main"}},
		{"sentinel_database", []string{"valkey-sentinel://a:1/main/2"}, "redis-sentinel://a:1/main/2", Target{topology: "sentinel", network: "tcp", addresses: []string{"a:1"}, primary: "main", database: 2}},
		{"sentinel_parameter", []string{"redis-sentinel://a:1/main?db=2"}, "redis-sentinel://a:1/main/2", Target{topology: "sentinel", network: "tcp", addresses: []string{"a:1"}, primary: "main", database: 2}},
		{"sentinel_TLS", []string{"rediss-sentinel://me:secret@a:1,[::1]/m%2Fx"}, "rediss-sentinel://me:***@a:1,[::1]:26379/m%2Fx", Target{topology: "sentinel", network: "tcp", addresses: []string{"a:1", "[::1]:26379"}, primary: "m/x", login: login{user: "me", password: "secret"}, security: &security{}}},
		{"sentinels", []string{"redis-sentinel://a/main", "redis-sentinel://b,a/main"}, "redis-sentinel://a:26379,b:26379/main", Target{topology: "sentinel", network: "tcp", addresses: []string{"a:26379", "b:26379"}, primary: "main"}},
		{"cluster", []string{"redis-cluster://a,b:1,[::1]:2"}, "redis-cluster://a:6379,b:1,[::1]:2", Target{topology: "cluster", network: "tcp", addresses: []string{"a:6379", "b:1", "[::1]:2"}}},
		{"cluster_database_0", []string{"redis-cluster://a:1/0"}, "redis-cluster://a:1", Target{topology: "cluster", network: "tcp", addresses: []string{"a:1"}}},
		{"clusters", []string{"valkeys-cluster://a:1", "rediss-cluster://:secret@b:1"}, "rediss-cluster://:***@a:1,b:1", Target{topology: "cluster", network: "tcp", addresses: []string{"a:1", "b:1"}, login: login{password: "secret"}, security: &security{}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := must.Get(Options{URLs: test.urls}.Parse())(t)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(Target{}, login{}, security{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			want := test.text
			if want == "" {
				want = test.urls[0]
			}
			for _, text := range []string{got.String(), fmt.Sprintf("%v", got), fmt.Sprintf("%+v", got), fmt.Sprintf("%#v", got), slog.AnyValue(got).Resolve().String()} {
				if text != want {
					t.Errorf("got %s, want %s", text, want)
				}
			}
			again, err := Options{URLs: []string{strings.ReplaceAll(got.String(), "***", "secret")}}.Parse()
			if err == nil && again.String() != got.String() {
				t.Errorf("parsed again: %v", again)
			}
		})
	}
}

func TestParseTakesUserAndPasswordFromEither(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, text)
		must.Do(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		return path
	}
	for _, o := range []Options{
		{URLs: []string{"redis://me:secret@a"}},
		{URLs: []string{"redis://me:@a"}, PasswordFile: file("secret")},
		{URLs: []string{"redis://a"}, PasswordFile: file("me:secret")},
		{URLs: []string{"redis://me:@a"}, PasswordFile: file("me:secret")},
		{URLs: []string{"redis://a", "redis://me:secret@a"}},
	} {
		got, err := o.Parse()
		if err != nil {
			t.Errorf("%+v: %v", o, err)
		} else if got.login != (login{"me", "secret", o.PasswordFile}) {
			t.Errorf("%+v: got %+v", o, got.login)
		}
	}
	for _, o := range []Options{
		{URLs: []string{"redis-sentinel://me:secret@a/b?sentinel_username=you&sentinel_password=hid%26den"}},
		{URLs: []string{"redis-sentinel://me:secret@a/b"}, SentinelPasswordFile: file("you:hid&den")},
	} {
		got, err := o.Parse()
		if err != nil || got.sentinelLogin != (login{"you", "hid&den", o.SentinelPasswordFile}) {
			t.Errorf("got %+v, %v", got.sentinelLogin, err)
		}
	}
}

func TestParseNamesEveryMistake(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    []string // parts of lines
	}{
		{"no_URL", Options{}, []string{"no URL of Redis: want redis://host:6379/0, rediss:// (TLS)"}},
		{"no_scheme", Options{URLs: []string{"a:6379"}}, []string{`URL "a:6379": not a URL of Redis`}},
		{"scheme", Options{URLs: []string{"http://a"}}, []string{`URL "http://a": not a URL of Redis: want redis://`}},
		{"socket_cluster", Options{URLs: []string{"unix-cluster:///a"}}, []string{"not a URL of Redis"}},
		{"no_host", Options{URLs: []string{"redis://"}}, []string{"host 1: no name"}},
		{"no_host_but_port", Options{URLs: []string{"redis://:6379"}}, []string{"host 1: no name"}},
		{"host", Options{URLs: []string{"redis://a b"}}, []string{"host 1: invalid character in the name"}},
		{"port", Options{URLs: []string{"redis-cluster://a:0,b:65536,c:x,d:"}}, []string{"host 1: the port must be a number from 1 to 65535", "host 2: the port", "host 3: the port", "host 4: the port"}},
		{"IPv6", Options{URLs: []string{"redis-cluster://::1,[::1,[a],[1.2.3.4]:5,[::1]5"}}, []string{"host 1: write an IPv6 address in brackets", "host 2: want an IPv6 address in brackets", "host 3: want an IPv6", "host 4: want an IPv6", "host 5: want an IPv6"}},
		{"two_hosts", Options{URLs: []string{"redis://a,b"}}, []string{"one server has one host: for several, use Sentinel (redis-sentinel://"}},
		{"two_URLs", Options{URLs: []string{"redis://a", "redis://b"}}, []string{"2 servers, each alone: for several, use Sentinel (redis-sentinel://"}},
		{"two_schemes", Options{URLs: []string{"redis://a", "redis-cluster://b"}}, []string{`URL "redis-cluster://b": the scheme differs from the scheme of "redis://a"`}},
		{"two_securities", Options{URLs: []string{"redis-cluster://a", "rediss-cluster://b"}}, []string{`URL "rediss-cluster://b": the scheme differs`}},
		{"two_primaries", Options{URLs: []string{"redis-sentinel://a/b", "redis-sentinel://a/c"}}, []string{`URL "redis-sentinel://a/c": the primary differs`}},
		{"two_databases", Options{URLs: []string{"redis://a/1", "redis://a/2"}}, []string{`URL "redis://a/2": the database differs`}},
		{"two_databases_in_one", Options{URLs: []string{"redis://a/1?db=2"}}, []string{"more than one database"}},
		{"two_passwords", Options{URLs: []string{"redis://:secret1@a", "redis://:secret2@a"}}, []string{`URL "redis://***@a": the password differs`}},
		{"two_users", Options{URLs: []string{"redis://a:secret@a", "redis://b:secret@a"}}, []string{`URL "redis://***@a": the user name differs`}},
		{"no_primary", Options{URLs: []string{"redis-sentinel://a", "redis-sentinel://a/"}}, []string{`URL "redis-sentinel://a": want the name of the primary`, `URL "redis-sentinel://a/": want the name`}},
		{"database", Options{URLs: []string{"redis://a/x", "redis://a/-1", "redis://a/1/2"}}, []string{"/x\": the database must be a number", "/-1\": the database must be", "/1/2\": the database must be"}},
		{"cluster_database", Options{URLs: []string{"redis-cluster://a/1", "redis-cluster://a?db=1"}}, []string{"a cluster has database 0 only", "a cluster has database 0 only"}},
		{"parameter", Options{URLs: []string{"redis://a?password=secret", "redis://a?db=1&x"}}, []string{`URL "redis://a?***": unknown parameter "password": the parameters are db`, `unknown parameter "x"`}},
		{"query", Options{URLs: []string{"redis://a?%zz"}}, []string{"invalid parameters after the ?"}},
		{"fragment", Options{URLs: []string{"redis://a#b"}}, []string{"unexpected #"}},
		{"user_alone", Options{URLs: []string{"redis://secret@a"}}, []string{`URL "redis://***@a": a user name without a password`}},
		{"slash_in_password", Options{URLs: []string{"redis://:secret/secret@a"}}, []string{`URL "redis://***@a": unexpected @: write one user:password@ before the hosts, and @ / ? # , in a user name or password as %40 %2F`}},
		{"question_in_password", Options{URLs: []string{"redis://:secret?secret@a"}}, []string{"unexpected @"}},
		{"number_sign_in_password", Options{URLs: []string{"redis://:secret#secret@a"}}, []string{"unexpected @"}},
		{"at_in_password", Options{URLs: []string{"redis://:secret@secret@a"}}, []string{`URL "redis://***@a": unexpected @`}},
		{"user_at_every_host", Options{URLs: []string{"redis-cluster://:secret@a,:secret@b"}}, []string{`URL "redis-cluster://***@b": unexpected @`}},
		{"percent_in_password", Options{URLs: []string{"redis://:secret%@a"}}, []string{"an invalid percent-encoding in the user name or password"}},
		{"host_forgotten", Options{URLs: []string{"redis://me:secret/secret"}}, []string{`URL "redis://me:***": host 1: the port`, "the database must be"}},
		{"relative_socket", Options{URLs: []string{"unix://run/redis.sock", "unix://", "unix:///"}}, []string{"want the whole path of a socket", "want the whole path", "want the whole path"}},
		{"socket_escape", Options{URLs: []string{"unix:///%zz"}}, []string{`URL "unix:///%zz": an invalid percent-encoding in the path`}},
		{"TLS_file_without_TLS", Options{URLs: []string{"redis://a"}, CA: "x"}, []string{"are for TLS: write the URL with rediss"}},
		{"server_name_without_TLS", Options{URLs: []string{"unix:///a"}, ServerName: "x"}, []string{"are for TLS"}},
		{"any_server_name_without_TLS", Options{URLs: []string{"redis://a"}, ServerName: AnyServerName}, []string{"are for TLS"}},
		{"files", Options{URLs: []string{"rediss://a"}, CA: "no-such-ca", Cert: "no-such-cert", Key: "no-such-key"}, []string{"client certificate: open no-such-cert", "client key: open no-such-key", "CA: open no-such-ca"}},
		{"key_alone", Options{URLs: []string{"rediss://a"}, Key: "x"}, []string{"client certificate, client key: must both be given, or neither"}},
		{"sentinel_password", Options{URLs: []string{"redis-cluster://a?sentinel_password=secret"}}, []string{"are for redis-sentinel://"}},
		{"all_at_once", Options{URLs: []string{"redis://a:x", "http://a"}, Cert: "x"}, []string{"host 1: the port", "not a URL of Redis"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.options.Parse()
			if err == nil {
				t.Fatal("no error")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.want) {
				t.Errorf("got %d lines, want %d:\n%v", len(lines), len(test.want), err)
			}
			for i, want := range test.want {
				if i < len(lines) && !strings.Contains(lines[i], want) {
					t.Errorf("line %d:\n got %s\nwant %s", i+1, lines[i], want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the password is shown:\n%v", err)
			}
		})
	}
}

func TestFilesOfTLSAreReadAgainForEachConnection(t *testing.T) {
	dir := t.TempDir()
	first := must.Get(parts.NewCertificates(dir))(t)
	target := must.Get(Options{URLs: []string{"rediss://a"}, CA: first.CA, Cert: first.ClientCert, Key: first.ClientKey}.Parse())(t)
	seen := func() (string, string) {
		t.Helper()
		config := must.Get(target.security.config("a:6379"))(t)
		if config.ServerName != "a" {
			t.Errorf("server name %q", config.ServerName)
		}
		pair := must.Get(config.GetClientCertificate(nil))(t)
		return pair.Leaf.SerialNumber.String(), fmt.Sprint(config.RootCAs.Subjects()) //nolint:staticcheck // the pool is not the system's
	}
	serial, _ := seen()
	if again, _ := seen(); again != serial {
		t.Errorf("certificate %s became %s without a new file", serial, again)
	}
	must.Get(parts.NewCertificates(dir))(t)
	if again, _ := seen(); again == serial {
		t.Errorf("still certificate %s", serial)
	}
	must.Do(t, os.WriteFile(first.CA, []byte("nothing"), 0o600))
	if _, err := target.security.config("a:6379"); err == nil || !strings.Contains(err.Error(), "ca.pem: holds no certificate: must be PEM") {
		t.Errorf("got %v", err)
	}
	target.security.name = "b"
	target.security.ca, target.security.cert, target.security.key = "", "", ""
	if config, err := target.security.config("a:6379"); err != nil || config.ServerName != "b" || config.RootCAs != nil || config.GetClientCertificate != nil {
		t.Errorf("got %v, %v", config, err)
	}
}

func TestKeyOfAnotherCertificateIsAMistake(t *testing.T) {
	one := must.Get(parts.NewCertificates(t.TempDir()))(t)
	_, err := Options{URLs: []string{"rediss://a"}, CA: one.CA, Cert: one.ClientCert, Key: one.ServerKey}.Parse()
	if err == nil || !strings.Contains(err.Error(), filepath.Base(one.ServerKey)) {
		t.Errorf("got %v", err)
	}
}

func FuzzOptions(f *testing.F) {
	for _, text := range []string{
		"redis://a", "rediss://me:secret@a:1/2", "unix://me:secret@/run/redis.sock?db=1", "redis-sentinel://:secret@a,b:1/main/2",
		"rediss-cluster://me:@[::1]:2,b", "valkey://:%40%2F@a", "redis://:secret/secret@a", "redis://me:secret", "redis://a?x=secret", "@@://", "::",
	} {
		f.Add(text, "")
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		urls := []string{first, second}
		urls = slices.DeleteFunc(urls, func(text string) bool { return text == "" })
		target, err := Options{URLs: urls}.Parse()
		if err != nil {
			return
		}
		text := target.String()
		if target.login.password != "" {
			other := target
			other.login.password, other.sentinelLogin.password = "another", "another"
			if other.String() != text {
				t.Errorf("%q: %s depends on the password", urls, text)
			}
		}
		again, err := Options{URLs: []string{text}}.Parse()
		if err != nil {
			t.Fatalf("%q: %s is no target: %v", urls, text, err)
		}
		if again.String() != text {
			t.Errorf("%q: %s, parsed again: %s", urls, text, again)
		}
	})
}

func FuzzErrorsShowNoPassword(f *testing.F) {
	for _, password := range []string{"", "/", "?", "#", "@", ":", ",", "%", "%zz", "[", "]", " ", "/1?db=2#x@y:z,[::1]"} {
		f.Add("redis", password, "host:x/")
		f.Add("redis-sentinel", password, "host")
		f.Add("nothing", password, "")
	}
	f.Fuzz(func(t *testing.T, scheme, password, rest string) {
		const word = "Sesame"
		if strings.Contains(scheme+rest, word) || strings.Contains(rest, "@") || strings.ContainsAny(scheme, ":/") {
			t.Skip()
		}
		_, err := Options{URLs: []string{scheme + "://user:" + word + password + word + "@" + rest}}.Parse()
		if err != nil && strings.Contains(err.Error(), word) {
			t.Errorf("%v", err)
		}
	})
}

package certificates

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/regular"}, Third: []string{}})
}

// filesIn names the files of a directory.
func filesIn(dir string) Files {
	return Files{
		Certificate: File{"cert", filepath.Join(dir, "tls.crt")},
		Key:         File{"key", filepath.Join(dir, "tls.key")},
		Authorities: File{"ca", filepath.Join(dir, "ca.crt")},
	}
}

// write writes a pair and the certificate of an authority, as Kubernetes names them.
func write(t *testing.T, dir string, pair certtest.Pair, authority *certtest.Authority) {
	t.Helper()
	pair.Write(t, dir)
	certtest.Write(t, filepath.Join(dir, "ca.crt"), authority.PEM)
}

func TestCheckNamesEverythingThatIsWrongAndNeverTheKey(t *testing.T) {
	ca := certtest.New(t, "ca")
	pair, other := ca.Issue(t, "one"), ca.Issue(t, "other")
	tests := []struct {
		name           string
		cert, key, ca  string // contents; "" for no file, "-" for none named
		want           []string
		wantedByPrefix bool
	}{
		{name: "right", cert: string(pair.Certificate), key: string(pair.Key), ca: string(ca.PEM)},
		{name: "no authorities", cert: string(pair.Certificate), key: string(pair.Key), ca: "-"},
		{name: "authorities alone", cert: "-", key: "-", ca: string(ca.PEM)},
		{name: "several authorities, and what is none", cert: "-", key: "-", ca: "ours\n" + string(ca.PEM) + string(pair.Key) + string(other.Certificate)},
		{name: "nothing is there", want: []string{
			"cert: open DIR/tls.crt: no such file or directory",
			"key: open DIR/tls.key: no such file or directory",
			"ca: open DIR/ca.crt: no such file or directory",
		}},
		{name: "a key that is another's", cert: string(pair.Certificate), key: string(other.Key), ca: "-", want: []string{
			"cert, key: DIR/tls.crt and DIR/tls.key: private key does not match public key",
		}},
		{name: "no PEM", cert: "secret", key: "secret", ca: "secret", want: []string{
			"cert, key: DIR/tls.crt and DIR/tls.key: failed to find any PEM data in certificate input",
			"ca: DIR/ca.crt: holds no certificate: must be PEM",
		}},
		{name: "swapped", cert: string(pair.Key), key: string(pair.Certificate), ca: "-", want: []string{
			"cert, key: DIR/tls.crt and DIR/tls.key: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
		}},
		{name: "an authority that is broken", cert: "-", key: "-", ca: string(ca.PEM) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", want: []string{
			"ca: DIR/ca.crt: certificate 2: malformed certificate",
		}},
		{name: "no key", cert: string(pair.Certificate), key: "-", ca: "-", want: []string{"cert, key: must both be given, or neither"}},
		{name: "no certificate", cert: "-", key: string(pair.Key), ca: "-", want: []string{"cert, key: must both be given, or neither"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			files := filesIn(dir)
			for _, one := range []struct {
				file    *File
				content string
			}{{&files.Certificate, test.cert}, {&files.Key, test.key}, {&files.Authorities, test.ca}} {
				switch one.content {
				case "":
				case "-":
					one.file.Path = ""
				default:
					certtest.Write(t, one.file.Path, []byte(one.content))
				}
			}
			var got []string
			if err := files.Check(); err != nil {
				got = strings.Split(strings.ReplaceAll(err.Error(), dir, "DIR"), "\n")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestABundleMayHoldWhatCannotBeRead(t *testing.T) {
	ca := certtest.New(t, "ca")
	const broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	files := filesIn(t.TempDir())
	files.Certificate, files.Key, files.Bundle = File{}, File{}, true
	certtest.Write(t, files.Authorities.Path, []byte(broken+string(ca.PEM)+broken))
	set, err := files.Read()
	if err != nil || !set.Authorities.Equal(ca.Pool) || set.Certificate != nil {
		t.Errorf("got %+v, %v; want the one authority", set, err)
	}
	certtest.Write(t, files.Authorities.Path, []byte(broken))
	if err := files.Check(); err == nil || err.Error() != "ca: "+files.Authorities.Path+": holds no certificate: must be PEM" {
		t.Errorf("without a right one: got %v", err)
	}
}

func TestWhatIsNoFileIsNotRead(t *testing.T) {
	files := Files{Authorities: File{"ca", os.DevNull}}
	if err := files.Check(); err == nil || err.Error() != "ca: open "+os.DevNull+": must be a regular file" {
		t.Errorf("got %v", err)
	}
}

func TestAClientAsksForTheAuthorityAndTheNameUnlessAnyWillDo(t *testing.T) {
	ca, other := certtest.New(t, "ca"), certtest.New(t, "other")
	between := ca.Below(t, "between")
	through := between.Issue(t, "elsewhere")
	through.Certificate = slices.Concat(through.Certificate, between.PEM)
	expired := ca.IssueUntil(t, time.Now().Add(-time.Hour), "elsewhere")
	tests := []struct {
		name   string
		server certtest.Pair
		any    bool
		want   string // in the client's error, "" for none
	}{
		{"the name", ca.Issue(t, "weir"), false, ""},
		{"another name", ca.Issue(t, "elsewhere"), false, "certificate is valid for elsewhere, not weir"},
		{"the name, of another authority", other.Issue(t, "weir"), false, "signed by unknown authority"},
		{"any name: the name", ca.Issue(t, "weir"), true, ""},
		{"any name: another", ca.Issue(t, "elsewhere"), true, ""},
		{"any name: another, through an authority between", through, true, ""},
		{"any name: through one that is not shown", between.Issue(t, "elsewhere"), true, "signed by unknown authority"},
		{"any name: of another authority", other.Issue(t, "weir"), true, "signed by unknown authority"},
		{"any name: expired", expired, true, "expired"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			client := (&Set{Authorities: ca.Pool}).Client("weir")
			if test.any {
				AnyName(client)
			}
			server := &tls.Config{Certificates: []tls.Certificate{test.server.TLS(t)}}
			state, _, err := handshake(t, server, client)
			// After a handshake that went well the server hangs up.
			if test.want == "" && !state.HandshakeComplete || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if state.ServerName != "weir" && state.HandshakeComplete {
				t.Errorf("asked for %q, want weir", state.ServerName)
			}
		})
	}
}

func TestAClientShowsItsCertificateWhateverAuthorityTheServerNames(t *testing.T) {
	ca, other := certtest.New(t, "ca"), certtest.New(t, "other")
	server := &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, "weir").TLS(t)}, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	ours, theirs := ca.Issue(t, "client").TLS(t), other.Issue(t, "client").TLS(t)
	for _, test := range []struct {
		name   string
		client *tls.Certificate
		want   string // in the server's error, "" for none
	}{
		{"its own", &ours, ""},
		{"another's", &theirs, "signed by unknown authority"},
		{"none", nil, "client didn't provide a certificate"},
	} {
		_, err, _ := handshake(t, server, (&Set{Authorities: ca.Pool, Certificate: test.client}).Client("weir"))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: server: got %v, want %q", test.name, err, test.want)
		}
	}
}

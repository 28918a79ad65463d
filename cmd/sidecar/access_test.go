package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/certtest"
)

const adminToken = "a-token-of-24-characters"

// tokenPath returns a file with a token.
func tokenPath(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// command runs a command, and returns its output and its error.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, strings.NewReader(""), &out, io.Discard)
	return out.String(), err
}

func TestAnAdminAddressForOthersNeedsATokenOrCertificates(t *testing.T) {
	rules := rulesFile(t, rulesOf("5"))
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		err := run(t.Context(), []string{"--rules", rules, "--grpc-address=127.0.0.1:0", "--http-address=", "--admin-address", address}, strings.NewReader(""), io.Discard, io.Discard)
		if err == nil {
			t.Fatalf("%s: the sidecar started", address)
		}
		for _, part := range []string{"admin-address: ", "not loopback", "admin-token-file", "admin-tls-client-ca", "127.0.0.1"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", address, err, part)
			}
		}
	}
	r := start(t, "--rules", rules, "--admin-address=0.0.0.0:0", "--admin-token-file", tokenPath(t, adminToken))
	if log := r.log.String(); !strings.Contains(log, "the admin token crosses the network in clear text") {
		t.Errorf("the log has no warning: %s", log)
	}
}

func TestCommandsShowTheToken(t *testing.T) {
	right := tokenPath(t, adminToken)
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--admin-token-file", right)
	address := r.address["admin tcp"]
	for name, args := range map[string][]string{
		"match": {"match", "--server", address, "test", "user=u"}, "reset": {"reset", "--server", address, "test", "user=u"},
	} {
		for file, want := range map[string]string{"": "Unauthenticated", tokenPath(t, "another-token-of-30-characters"): "Unauthenticated", right: ""} {
			if _, err := command(t, append(args, "--token-file", file)...); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s with the token of %q: got %v, want %q", name, file, err, want)
			}
		}
	}
	if _, err := command(t, "match", "--server", address, "--token-file", "nowhere", "test", "user=u"); err == nil || !strings.Contains(err.Error(), "--token-file: open nowhere") {
		t.Errorf("a token file that is not there: got %v", err)
	}
	for name, text := range map[string]string{"empty": "", "of two lines": adminToken + "\n" + adminToken} {
		_, err := command(t, "match", "--server", address, "--token-file", tokenPath(t, text), "test", "user=u")
		if err == nil || !strings.Contains(err.Error(), "--token-file: ") || !strings.Contains(err.Error(), "16 to 4096 characters of ASCII without spaces") {
			t.Errorf("a token file that is %s: got %v", name, err)
		}
	}
	if log := r.log.String(); strings.Contains(log, adminToken) {
		t.Errorf("the log has the token: %s", log)
	}
}

func TestCommandsShowCertificates(t *testing.T) {
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	certificate, key := ca.Issue(t, "localhost").Write(t, dir)
	authority := certtest.Write(t, filepath.Join(dir, "ca.crt"), ca.PEM)
	own, ownKey := ca.Issue(t, "operator").Write(t, t.TempDir())
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--admin-tls-cert", certificate, "--admin-tls-key", key, "--admin-tls-client-ca", authority,
		"--admin-address=0.0.0.0:0")
	_, port, _ := strings.Cut(r.address["admin tcp"], "]:")
	if port == "" {
		_, port, _ = strings.Cut(r.address["admin tcp"], ":")
	}
	ask := []string{"match", "--server", "localhost:" + port, "test", "user=u", "--tls-ca", authority}
	if _, err := command(t, append(ask, "--tls-cert", own, "--tls-key", ownKey)...); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if _, err := command(t, ask...); err == nil {
		t.Error("without a certificate: got no error")
	}
}

func TestMistakesOfTheAdminAddressAreAllTold(t *testing.T) {
	rules := rulesFile(t, rulesOf("5"))
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	certificate, key := ca.Issue(t, "localhost").Write(t, dir)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a short token":           {[]string{"--admin-token-file", tokenPath(t, "short")}, "the token has 5 bytes, must be from 16 to 4096 characters of ASCII without spaces"},
		"a token with a space":    {[]string{"--admin-token-file", tokenPath(t, "two words and some more")}, "without spaces"},
		"a long token":            {[]string{"--admin-token-file", tokenPath(t, strings.Repeat("x", 5000))}, "must be from 16 to 4096"},
		"no file":                 {[]string{"--admin-token-file", filepath.Join(dir, "missing")}, "admin-token-file: open " + filepath.Join(dir, "missing")},
		"a directory":             {[]string{"--admin-token-file", dir}, "must be a regular file"},
		"authorities alone":       {[]string{"--admin-tls-client-ca", certificate}, "admin-tls-client-ca: needs admin-tls-cert and admin-tls-key"},
		"a certificate alone":     {[]string{"--admin-tls-cert", certificate}, "admin-tls-cert, admin-tls-key: must both be given, or neither"},
		"names without authority": {[]string{"--admin-tls-cert", certificate, "--admin-tls-key", key, "--admin-tls-client-san=me"}, "admin-tls-client-san: no authority signs the names"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), append([]string{"--rules", rules, "--grpc-address=127.0.0.1:0", "--http-address=", "--admin-address=127.0.0.1:0"}, test.args...), strings.NewReader(""), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestAChangedTokenComesInForce(t *testing.T) {
	path := tokenPath(t, adminToken)
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--admin-token-file", path)
	address := r.address["admin tcp"]
	next := tokenPath(t, "the-next-token-of-the-file")
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	old := tokenPath(t, adminToken)
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) { // the file is read again after a second
		_, err := command(t, "match", "--server", address, "--token-file", path, "test", "user=u")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the next token: %v", err)
		}
	}
	if _, err := command(t, "match", "--server", address, "--token-file", old, "test", "user=u"); err == nil {
		t.Error("the previous token still opens")
	}
	if answer, err := http.Get("http://" + address + "/assets/page.css"); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("the style sheet of the login form: %v %v", answer, err)
	} else {
		_ = answer.Body.Close()
	}
}

package certificates

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/certtest"
)

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

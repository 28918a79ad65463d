package redisconn

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestTheCertificateOfRedisIsForItsHostUnlessAnyNameWillDo(t *testing.T) {
	const name = "redis.internal" // not the dialed host
	certificates, err := parts.NewCertificates(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	others, err := parts.NewCertificates(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	r := startRedis(t, parts.RedisOptions{TLS: certificates})
	for _, test := range []struct {
		name string
		more TargetOptions // besides the URL and the client's certificate
		want string        // in the error, "" for none
	}{
		{"the host dialed", TargetOptions{CA: certificates.CA}, "127.0.0.1"},
		{"the name", TargetOptions{CA: certificates.CA, ServerName: name}, ""},
		{"any name", TargetOptions{CA: certificates.CA, AnyServerName: true}, ""},
		{"any name of another authority", TargetOptions{CA: others.CA, AnyServerName: true}, "signed by unknown authority"},
		{"any name that the system vouches for", TargetOptions{AnyServerName: true}, "signed by unknown authority"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := test.more
			o.URLs, o.Cert, o.Key = urlOf("rediss", r.Address()), certificates.ClientCert, certificates.ClientKey
			c, lines, err := attempt(t, o)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(c.patiently(), lines.has("redis connected")); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want ErrUnavailable, with %q", err, test.want)
			}
			if err := c.works(); !errors.Is(err, ErrUnavailable) {
				t.Errorf("a command: got %v; want ErrUnavailable", err)
			}
		})
	}
}

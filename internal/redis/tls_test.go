package redis

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
		more Options // besides the URL and the client's certificate
		want string  // in the error, "" for none
	}{
		{"the host dialed", Options{CA: certificates.CA}, "127.0.0.1"},
		{"the name", Options{CA: certificates.CA, ServerName: name}, ""},
		{"any name", Options{CA: certificates.CA, ServerName: AnyServerName}, ""},
		{"any name of another authority", Options{CA: others.CA, ServerName: AnyServerName}, "signed by unknown authority"},
		{"any name that the system vouches for", Options{ServerName: AnyServerName}, "signed by unknown authority"},
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

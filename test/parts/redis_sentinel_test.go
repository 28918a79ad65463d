package parts

import (
	"strings"
	"testing"

	"github.com/redis/rueidis"
)

// startSentinels starts Sentinels that the test's end kills.
func startSentinels(t *testing.T, options SentinelOptions) *Sentinels {
	t.Helper()
	binary := NeedRedis(t, "../..")
	s, err := StartSentinels(soon(t), binary, t.TempDir(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			for _, r := range append(s.Sentinels, s.Data...) {
				t.Logf("%s's last lines:\n%s", r.Address(), r.Tail(30))
			}
		}
	})
	return s
}

func TestSentinelsMakeAReplicaThePrimaryWhenThatIsKilled(t *testing.T) {
	t.Parallel()
	certificates, err := NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string]SentinelOptions{
		"plain":     {},
		"passwords": {Data: RedisOptions{Password: "data"}, Password: "sentinel"},
		"users and TLS": {
			Data:     RedisOptions{Username: "data-admin", Password: "data", TLS: certificates},
			Username: "sentinel-admin", Password: "sentinel",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSentinels(t, options)
			primary, err := s.Primary(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if primary != s.Data[0] {
				t.Errorf("the primary: got %s, want %s", primary.Address(), s.Data[0].Address())
			}
			do(t, primary, "SET", "key", "value")
			do(t, primary, "WAIT", "2", "5000")
			promoted, err := s.FailOver(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if promoted == primary {
				t.Error("the primary is the killed one")
			}
			if got := do(t, promoted, "GET", "key"); got != "value" {
				t.Errorf("after the failover: got %q, want the value", got)
			}
			do(t, promoted, "SET", "key", "another")
		})
	}
}

func TestAClientFindsThePrimaryThroughSentinelsWithTheirOwnCredentials(t *testing.T) {
	t.Parallel()
	s := startSentinels(t, SentinelOptions{Data: RedisOptions{Password: "data"}, Password: "sentinel"})
	for password, want := range map[string]string{"sentinel": "", "data": "WRONGPASS", "": "NOAUTH"} {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: s.Addresses(), Password: "data", DisableCache: true,
			Sentinel: rueidis.SentinelOption{MasterSet: SentinelName, Password: password},
		})
		if err == nil {
			err = client.Do(soon(t), client.B().Set().Key("key").Value("1").Build()).Error()
			client.Close()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("with the password %q: got %v, want %q", password, err, want)
		}
	}
}

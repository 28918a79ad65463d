package render

import (
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestAGrantSaysWhatItGives(t *testing.T) {
	for text, want := range map[string]string{
		`requests_per_unit: 0`:                                "nothing: the key is blocked",
		`requests_per_unit: 1`:                                "1 request per period",
		`requests_per_unit: 5 burst: 7 limit: "a"`:            "5 requests per period, burst 7, of the limit a",
		`requests_per_unit: 1 key: "1:m|1:k=1:v#concurrency"`: "1 at once",
		`factor: 2.5`:                                         "2.5 times the limit",
		`unlimited: true`:                                     "unlimited",
	} {
		g := new(adminv1.Grant)
		if err := prototext.Unmarshal([]byte(text), g); err != nil {
			t.Fatal(err)
		}
		if got := givesText(g); got != want {
			t.Errorf("%s: got %q; want %q", text, got, want)
		}
	}
}

package xds

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOnlyAResponseThatIsTooLargeForUsIsSaidToBe(t *testing.T) {
	c := &Client{options: Options{MaxMessageBytes: 1000, MaxMessageSetting: "--bytes"}}
	const ours = "a response may have at most 1000 bytes here (--bytes): rpc error: code = ResourceExhausted desc = "
	tests := map[string]struct {
		code    codes.Code
		message string
		want    string
	}{
		"too large":                     {codes.ResourceExhausted, "grpc: received message larger than max (1001 vs. 1000)", ours},
		"too large when it is unpacked": {codes.ResourceExhausted, "grpc: message after decompression larger than max (1001 vs. 1000)", ours},
		"too large to be sent":          {codes.ResourceExhausted, "trying to send message larger than max (1001 vs. 500)", "rpc error: code = ResourceExhausted desc = "},
		"too many clients":              {codes.ResourceExhausted, "too many streams", "rpc error: code = ResourceExhausted desc = "},
		"gone":                          {codes.Unavailable, "grpc: the client connection is closing", "rpc error: code = Unavailable desc = "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := c.explain(status.Error(test.code, test.message))
			if want := test.want + test.message; err.Error() != want || status.Code(err) != test.code {
				t.Errorf("got %v of %v, want %s of %v", err, status.Code(err), want, test.code)
			}
		})
	}
}

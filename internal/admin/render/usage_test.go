package render

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestUsageIsATableAndCSV(t *testing.T) {
	since := timestamppb.New(time.Date(2026, time.November, 27, 8, 0, 0, 0, time.UTC))
	end := timestamppb.New(time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC))
	limit := &adminv1.Limit{RequestsPerUnit: 1000, Burst: 1000, Algorithm: "fixed_window", Period: durationpb.New(time.Hour)}
	use := &adminv1.ListUsageResponse{Since: since, LeftOut: 4, Keys: []*adminv1.KeyUsage{
		{Key: "4:shop|4:user=3:ann#fixed_window/1h", Entries: []*adminv1.Entry{{Key: "user", Value: "ann"}}, Limit: limit, Used: 999, Of: 1000, Until: end, Current: true},
		{Key: "4:shop|4:=cmd#token_bucket/1h", Entries: []*adminv1.Entry{{Key: "-x", Value: "\x1b[2J, \""}}, Limit: limit, Used: 7},
	}}
	for name, test := range map[string]struct{ got, want string }{
		"a table": {UsageText(use), "USED  OF    PART  UNTIL                 DESCRIPTOR AND LIMIT\n" +
			"999   1000  99%   2026-12-01T00:00:00Z  user=ann  1000 per 1h, fixed_window\n" +
			`7?    0     -     -                     -x="\x1b[2J, \""  1000 per 1h, fixed_window` + "\n" +
			"2 of the keys that this Weir has charged since 2026-11-27T08:00:00Z\n" +
			"some keys may be missing: 4 times a key, of any rule, got no account or lost it\n"},
		"CSV": {UsageCSV(use), "descriptor,limit,used,of,until,current\n" +
			"user=ann,fixed_window/1h,999,1000,2026-12-01T00:00:00Z,true\n" +
			`"'-x=""\x1b[2J, \""""",token_bucket/1h,7,0,,false` + "\n"},
		"no keys": {UsageText(&adminv1.ListUsageResponse{Since: since}), "0 of the keys that this Weir has charged since 2026-11-27T08:00:00Z\n"},
	} {
		if test.got != test.want {
			t.Errorf("%s:\ngot\n%s\nwant\n%s", name, test.got, test.want)
		}
	}
}

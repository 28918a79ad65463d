package render

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestTopSaysWhatALimitIs(t *testing.T) {
	r := new(adminv1.ListTopKeysResponse)
	if err := prototext.Unmarshal([]byte(`tracked: 4 covers { seconds: 60 }
		keys { domain: "shop" file: "r.yaml" line: 3 shadow_mode: true hits: 500 denied: 400 used: 1 current: true reset_after { seconds: 2 }
			entries { key: "path" value: "/a,b" } limit { algorithm: "token_bucket" requests_per_unit: 9 burst: 9 period { seconds: 1 } } }
		keys { domain: "shop" hits: 3 used: 0.25 remaining: 3 override { requests_per_unit: 4 }
			entries { key: "user" value: "\033[2J x" } limit { algorithm: "fixed_window" requests_per_unit: 4 burst: 4 period { seconds: 60 } } }
		keys { domain: "my shop" file: "r.yaml" line: 5 hits: 2 denied: 2 current: true reset_after { seconds: 9 }
			entries { key: "ban" value: "x" } limit { algorithm: "fixed_window" period { seconds: 60 } } }`), r); err != nil {
		t.Fatal(err)
	}
	want := `tracked keys: 4; hits in 1m0s
  HITS  DENIED  USED  LEFT  RESET  DOMAIN, DESCRIPTOR AND LIMIT
   500     400  100%     0  in 2s  shop 'path=/a\,b'  9 per 1s, token_bucket, shadow mode (r.yaml:3)
     3       0   25%     3      ?  shop user="\x1b[2J x"  4 per 1m, fixed_window, by override
     2       2     -     0  in 9s  "my shop" ban=x  0 per 1m, fixed_window (r.yaml:5)
`
	if got := TopText(r); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestEntriesAreAnArgumentOfACommand(t *testing.T) {
	entry := func(key, value string) *adminv1.Entry { return &adminv1.Entry{Key: key, Value: value} }
	for want, entries := range map[string][]*adminv1.Entry{
		`path=/search,client=c1`:       {entry("path", "/search"), entry("client", "c1")},
		`'path=/a\,b=c\\d'`:            {entry("path", `/a,b=c\d`)},
		`'a\=b\,c=1'`:                  {entry("a=b,c", "1")},
		`'agent=Mozilla/5.0 (X11)'`:    {entry("agent", "Mozilla/5.0 (X11)")},
		`'q=it'\''s,path=/?a=1&b="2"'`: {entry("q", "it's"), entry("path", `/?a=1&b="2"`)},
		`name=日本語,empty=`:              {entry("name", "日本語"), entry("empty", "")},
		`"\t"=x,"a b"="\x00"`:          {entry("\t", "x"), entry("a b", "\x00")},
		`""=x`:                         {entry("", "x")},
	} {
		if got := EntriesText(entries); got != want {
			t.Errorf("got %s; want %s", got, want)
		}
	}
	long := EntriesText([]*adminv1.Entry{entry("k", strings.Repeat("x", 300))})
	if !strings.HasSuffix(long, `…(100 more bytes)"`) || len(long) > 300 {
		t.Errorf("a long value became %s", long)
	}
}

package records

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

func everything() Record {
	return Record{
		At: 1_795_408_315_123_456_789,
		Request: limiter.Request{Domain: "edge", Hits: 2, Descriptors: []limiter.Descriptor{
			{Entries: []limiter.Entry{{Key: "path", Value: "/cart"}, {Key: "client", Value: `é "quoted" \ and` + "\n"}}, Hits: 3},
			{Entries: []limiter.Entry{{Key: "k", Value: ""}}, Probe: true},
			{Entries: []limiter.Entry{{Key: "k"}}, Hits: algorithms.MaxHits, Refund: true},
			{Override: &limiter.Override{Requests: 10, Unit: descriptors.Minute, Multiplier: 5}},
		}},
		Answer: OverLimit,
	}
}

func TestALineReadsAsItWasWritten(t *testing.T) {
	want := everything()
	line := string(Append(nil, &want))
	if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
		t.Fatalf("%q is not one line", line)
	}
	var got Record
	must.Do(t, parse(strings.TrimSpace(line), &got))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// The usual lines need no package json, and both ways of reading agree.
func TestUsualLinesAreScanned(t *testing.T) {
	for _, line := range []string{
		`{"at":"2026-11-23T04:31:55.123456789Z","domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/cart"}]}]}`,
		`{"at":"2026-11-23T04:31:55Z","domain":"edge","descriptors":[{"entries":[{"key":"a","value":"1"},{"key":"b","value":"ü"}],"hits":3},{"entries":[],"hits":0}],"hits":7,"over_limit":true}`,
		`{"at":"2026-11-23T05:31:55+01:00","domain":"edge","descriptors":[{"entries":[{"key":"a","value":""}],"hits":3,"refund":true}],"over_limit":false}`,
	} {
		var scanned, decoded Record
		if s := (scan{line}); !s.record(&scanned) {
			t.Errorf("%s: is not scanned", line)
		}
		if err := parseDocument(line, &decoded); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if diff := cmp.Diff(decoded, scanned, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
}

func TestAMistakeSaysWhatIsAllowed(t *testing.T) {
	const rest = `,"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/cart"}]}]}`
	const at = `{"at":"2026-11-23T04:31:55Z"`
	for name, c := range map[string]struct{ line, want string }{
		"no JSON":              {`path=/cart`, `is not JSON: invalid character 'p' looking for beginning of value`},
		"no object":            {`[]`, `is a JSON array: must be an object`},
		"two objects":          {at + rest + `{}`, `there is more behind the object`},
		"cut off":              {at + `,"domain":"ed`, `is cut off`},
		"unknown name":         {at + `,"weight":2` + rest, `"weight": is not a name of a record, must be at, domain`},
		"no instant":           {`{` + rest[1:], `at: is missing: must be an instant such as`},
		"instant as a number":  {`{"at":1732336315` + rest, `at: is a JSON number: must be a text`},
		"instant with a comma": {`{"at":"2026-11-23T04:31:55,5Z"` + rest, `at: "2026-11-23T04:31:55,5Z": must be an instant`},
		"instant before 1970":  {`{"at":"1969-12-31T23:59:59Z"` + rest, `must be from 1970 to 2260`},
		"instant after 2260":   {`{"at":"2261-01-01T00:00:00Z"` + rest, `must be from 1970 to 2260`},
		"no domain":            {at + `,"descriptors":[]}`, "domain: must not be empty\ndescriptors: must not be empty"},
		"no key":               {at + `,"domain":"edge","descriptors":[{"entries":[{"value":"/cart"}]}]}`, `descriptors[0].entries[0].key: must not be empty`},
		"no entries":           {at + `,"domain":"edge","descriptors":[{}]}`, `descriptors[0].entries: is missing: must be a list`},
		"negative hits":        {at + `,"hits":-1` + rest, `hits: is a JSON number -1: must be a whole number from 0 to 4294967295`},
		"too many hits":        {at + `,"hits":4294967296` + rest, `hits: is a JSON number 4294967296: must be`},
		"a unit that is none": {
			at + `,"domain":"edge","descriptors":[{"entries":[],"override":{"requests":1,"unit":"fortnight"}}]}`,
			`descriptors[0].override.unit: "fortnight": must be second, minute`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(c.line, new(Record))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.line, err, c.want)
			}
		})
	}
}

// A line that the scanner accepts is the same to package json. A record that was read is written
// and read again alike.
func FuzzBothWaysOfReadingAgree(f *testing.F) {
	r := everything()
	f.Add(strings.TrimSpace(string(Append(nil, &r))))
	f.Add(`{"at":"2026-11-23T04:31:55Z","domain":"edge","descriptors":[{"entries":[{"key":"a","value":"1"}],"hits":03}],"hits":7,"over_limit":true}`)
	f.Add(`{"at":"2026-11-23T04:31:55.1Z","domain":"edge","descriptors":[{"entries":[],"hits":0,"refund":true}],"over_limit":false}`)
	f.Fuzz(func(t *testing.T, line string) {
		var scanned, decoded, again Record
		s := scan{line}
		ok := s.record(&scanned)
		err := parseDocument(line, &decoded)
		if ok {
			if err != nil {
				t.Fatalf("scanned, but: %v", err)
			}
			if diff := cmp.Diff(decoded, scanned, cmpopts.EquateEmpty()); diff != "" {
				t.Fatal(diff)
			}
		}
		if err != nil {
			return
		}
		if err := parse(strings.TrimSpace(string(Append(nil, &decoded))), &again); err != nil {
			t.Fatalf("written and read: %v", err)
		}
		if decoded.Request.Hits == 1 { // 1 and none are the same
			decoded.Request.Hits = 0
		}
		for _, d := range decoded.Request.Descriptors {
			if d.Override != nil && d.Override.Multiplier == 1 {
				d.Override.Multiplier = 0
			}
		}
		if diff := cmp.Diff(decoded, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/lockfile", "internal/metrics", "internal/regular", "internal/top", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store/memstore", "pkg/store",
		},
		Never: []string{"google.golang.org/grpc", "github.com/envoyproxy", "github.com/redis", "github.com/spf13"},
	})
}

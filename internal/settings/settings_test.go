package settings

import (
	"errors"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
)

// values has a variable of each type.
type values struct {
	text     string
	number   int
	fraction float64
	is       bool
	duration time.Duration
	mode     fs.FileMode
	list     []string
	pairs    map[string]string
	anything map[string]any
}

func short(s string) error {
	if len(s) > 3 {
		return errors.New("must have at most 3 letters")
	}
	return nil
}

// kinds returns a Value of each kind, by name.
func (v *values) kinds() map[string]Value {
	return map[string]Value{
		"text":            Text(&v.text, "file", nil),
		"checked text":    Text(&v.text, "file", short),
		"secret":          Secret(&v.text),
		"choice":          Choice(&v.text, "memory", "redis"),
		"one of":          OneOf(&v.number, []string{"low", "mid", "high"}, 1, 2, 3),
		"one of any case": OneOfAnyCase(&v.number, []string{"low", "high"}, 1, 3),
		"number":          Number(&v.number, 1, 10),
		"number from":     Number(&v.number, 1, math.MaxInt),
		"integer":         Integer(&v.number, math.MinInt, math.MaxInt),
		"fraction":        Fraction(&v.fraction, 64),
		"bool":            Bool(&v.is),
		"not":             Not(&v.is),
		"duration":        Duration(&v.duration, time.Second, time.Minute),
		"duration from":   Duration(&v.duration, 0, math.MaxInt64),
		"mode":            Mode(&v.mode),
		"list":            List(&v.list, "a,b", nil),
		"checked list":    List(&v.list, "a,b", short),
		"words":           Words(&v.list),
		"pairs":           Pairs(&v.pairs),
		"secret pairs":    SecretPairs(&v.pairs),
		"equations":       Equations(&v.anything),
		"header":          Text(&v.text, "name", HeaderName),
	}
}

func TestValuesStoreTheirMeaning(t *testing.T) {
	for _, test := range []struct {
		kind string
		raw  any
		want values
	}{
		{"text", "any text", values{text: "any text"}},
		{"text", "", values{}},
		{"checked text", "abc", values{text: "abc"}},
		{"secret", " s3cret,", values{text: " s3cret,"}},
		{"choice", "redis", values{text: "redis"}},
		{"one of", "high", values{number: 3}},
		{"one of any case", "HIGH", values{number: 3}},
		{"number", "10", values{number: 10}},
		{"number", "010", values{number: 10}}, // base 10
		{"number", 1, values{number: 1}},
		{"number", int64(2), values{number: 2}},
		{"number", 3.0, values{number: 3}},
		{"number from", "9223372036854775807", values{number: math.MaxInt}},
		{"integer", "0x1F", values{number: 31}},
		{"integer", "1_000", values{number: 1000}},
		{"integer", "-9223372036854775808", values{number: math.MinInt}},
		{"fraction", "0.8", values{fraction: 0.8}},
		{"fraction", "1e3", values{fraction: 1000}},
		{"bool", "true", values{is: true}},
		{"bool", "1", values{is: true}},
		{"bool", true, values{is: true}},
		{"bool", "F", values{}},
		{"not", "false", values{is: true}},
		{"not", true, values{}},
		{"duration", "1m", values{duration: time.Minute}},
		{"duration", "1000ms", values{duration: time.Second}},
		{"duration from", "0", values{}},
		{"duration from", "1h30m", values{duration: 90 * time.Minute}},
		{"mode", "0660", values{mode: 0o660}},
		{"mode", "0o777", values{mode: 0o777}},
		{"list", " a, ,b c,", values{list: []string{"a", "b c"}}},
		{"list", []any{"a,b", " c ", ""}, values{list: []string{"a,b", "c"}}},
		{"list", "", values{list: []string{}}},
		{"checked list", "abc,d", values{list: []string{"abc", "d"}}},
		{"words", "a, b,", values{list: []string{"a", " b", ""}}},
		{"words", "  ", values{}},
		{"pairs", "a:1,b:", values{pairs: map[string]string{"a": "1", "b": ""}}},
		{"pairs", " ", values{}},
		{"secret pairs", "user:s3cret", values{pairs: map[string]string{"user": "s3cret"}}},
		{"equations", "a=1=2,b=", values{anything: map[string]any{"a": "1=2", "b": ""}}},
		{"header", "x-limit", values{text: "x-limit"}},
	} {
		var got values
		if err := got.kinds()[test.kind].Set(test.raw); err != nil {
			t.Errorf("%s %#v: %v", test.kind, test.raw, err)
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(values{})); diff != "" {
			t.Errorf("%s %#v (-want +got)\n%s", test.kind, test.raw, diff)
		}
	}
}

func TestValuesRefuseBadInput(t *testing.T) {
	const (
		oneToTen = "must be a whole number from 1 to 10"
		lengths  = "must be a duration from 1s to 1m0s, such as 1s, 250ms or 1m30s"
		fraction = "must be a number of at least 0, such as 0.8"
		mode     = "must be the permissions of a file in octal, such as 0660"
	)
	tested := make(map[string]bool)
	for _, test := range []struct {
		kind string
		raw  any
		want string
	}{
		{"text", 5, "5: must be text"},
		{"text", nil, "<nil>: must be text"},
		{"checked text", "abcd", `"abcd": must have at most 3 letters`},
		{"secret", 123456, "must be text: put it in quotes"},
		{"secret", []any{"s3cret"}, "must be text: put it in quotes"},
		{"choice", "disk", `"disk": must be memory or redis`},
		{"choice", "Redis", `"Redis": must be memory or redis`},
		{"choice", true, "true: must be text"},
		{"one of", "", `"": must be low, mid or high`},
		{"one of any case", "mid", `"mid": must be low or high`},
		{"number", "0", `"0": ` + oneToTen},
		{"number", "11", `"11": ` + oneToTen},
		{"number", 11, "11: " + oneToTen},
		{"number", "0x5", `"0x5": ` + oneToTen},
		{"number", "5.0", `"5.0": ` + oneToTen},
		{"number", "", `"": ` + oneToTen},
		{"number", 1.5, "1.5: " + oneToTen},
		{"number", true, "true: " + oneToTen},
		{"number from", "0", `"0": must be a whole number of at least 1`},
		{"integer", "9223372036854775808", `"9223372036854775808": must be a whole number of 64 bits`},
		{"integer", 1e60, "1e+60: must be a whole number of 64 bits"},
		{"fraction", "-1", `"-1": ` + fraction},
		{"fraction", "NaN", `"NaN": ` + fraction},
		{"fraction", "Inf", `"Inf": ` + fraction},
		{"fraction", "1e999", `"1e999": ` + fraction},
		{"bool", "yes", `"yes": must be true or false`},
		{"bool", 1, "1: must be true or false"},
		{"not", "no", `"no": must be true or false`},
		{"duration", "10", `"10": ` + lengths},
		{"duration", "999ms", `"999ms": ` + lengths},
		{"duration", "61s", `"61s": ` + lengths},
		{"duration", 10, "10: " + lengths},
		{"duration from", "-1s", `"-1s": must be a duration of at least 0s, such as 10s, 250ms or 0`},
		{"mode", 432, `must be the permissions of a file in octal, in quotes, such as "0660"`},
		{"mode", "0888", `"0888": ` + mode},
		{"mode", "1777", `"1777": ` + mode},
		{"list", 5, "5: must be a list of texts"},
		{"list", []any{"a", 5}, "5: must be text"},
		{"checked list", "abcd,a,efgh", "must have at most 3 letters\nmust have at most 3 letters"},
		{"words", 5, "5: must be text"},
		{"pairs", "a:1,b,c:2:3", "\"b\": must be a key, one \":\" and a value, with commas between such pairs\n" +
			"\"c:2:3\": must be a key, one \":\" and a value, with commas between such pairs"},
		{"secret pairs", "user=s3cret", `one of the pairs: must be a key, one ":" and a value, with commas between such pairs`},
		{"secret pairs", []any{"user:s3cret"}, "must be text: put it in quotes"},
		{"equations", "a:1", `"a:1": must be a key, one "=" and a value, with commas between such pairs`},
		{"header", "a b", `"a b": must be the name of an HTTP header`},
	} {
		tested[test.kind] = true
		err := new(values).kinds()[test.kind].Set(test.raw)
		if err == nil || err.Error() != test.want {
			t.Errorf("%s %#v: got %v, want %s", test.kind, test.raw, err, test.want)
		}
	}
	for kind := range new(values).kinds() {
		if !tested[kind] {
			t.Errorf("%s: no bad input is tested", kind)
		}
	}
}

func TestErrorsDoNotShowSecrets(t *testing.T) {
	for _, raw := range []any{"user=s3cret", "s3cret", "a:s3cret:b", []any{"s3cret"}, map[string]any{"user": "s3cret"}} {
		for _, kind := range []string{"secret", "secret pairs"} {
			if err := new(values).kinds()[kind].Set(raw); err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: the error shows the secret: %v", kind, err)
			}
		}
	}
}

func TestMistakesNameTheSettingInEachLine(t *testing.T) {
	var got []string
	for _, err := range Mistakes("--list", errors.New("first\nsecond")) {
		got = append(got, err.Error())
	}
	must.Match(t, "result", []string{"--list: first", "--list: second"}, got)
	if got := Mistakes("--list", nil); got != nil {
		t.Errorf("no error: got %v, want no mistakes", got)
	}
}

func TestHelpNamesKinds(t *testing.T) {
	kinds := new(values).kinds()
	for kind, want := range map[string]string{
		"text": "file", "secret": "secret", "choice": "memory|redis", "one of": "low|mid|high", "number": "number", "integer": "number",
		"fraction": "number", "bool": "bool", "not": "bool", "duration": "duration", "mode": "mode", "list": "a,b", "words": "a,b",
		"pairs": "k:v,k:v", "secret pairs": "k:v,k:v", "equations": "k=v,k=v",
	} {
		if got := kinds[kind]; got.Kind != want || got.List != (kind == "list") {
			t.Errorf("%s: got kind %q, list %t; want kind %q", kind, got.Kind, got.List, want)
		}
	}
}

func TestARateIsANumberAndATime(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "0": 0, "1/s": 1, "0.5/s": 0.5, "30/m": 0.5, "36/h": 0.01, "0/s": 0, "1000/s": 1000} {
		var got float64
		if err := Rate(&got, 1000).Set(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"1", "/s", "1/", "1/d", "-1/s", "NaN/s", "Inf/s", "1001/s", "1/s/s", "x/m"} {
		if err := Rate(new(float64), 1000).Set(text); err == nil || !strings.Contains(err.Error(), "must be a number per s, m or h, such as 1/s or 10/m, of at most 1000/s, or 0") {
			t.Errorf("%q: got %v; want an error", text, err)
		}
	}
}

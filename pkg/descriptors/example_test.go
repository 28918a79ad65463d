package descriptors_test

import (
	"errors"
	"fmt"

	"github.com/weirproxy/weir/pkg/descriptors"
)

func Example() {
	const document = `
domain: edge
descriptors:
  - key: path
    value: /search*
    descriptors:
      - key: client_id
        rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 10, burst: 1000}
`
	rules, _, err := descriptors.Load([]descriptors.Source{{Name: "edge.yaml", Data: []byte(document)}}, descriptors.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	entries := []descriptors.Entry{{Key: "path", Value: "/search/all"}, {Key: "client_id", Value: "c1"}}
	rule := rules.Domain("edge").Match(entries)
	fmt.Printf("%s:%d %s\n", rule.File, rule.Line, rule.Path)
	fmt.Printf("%s\n", rule.AppendKey(nil, "edge", entries, &rule.Limits[0]))
	// Output:
	// edge.yaml:7 path=/search*,client_id
	// 4:edge|4:path=11:/search/all|9:client_id=2:c1#token_bucket/1s
}

func ExampleLoad_mistakes() {
	const document = `domain: edge
descriptors:
  - key: path
    rate_limit:
      unit: fortnight
      requests_per_unit: "10"
      brust: 5
`
	_, _, err := descriptors.Load([]descriptors.Source{{Name: "edge.yaml", Data: []byte(document)}}, descriptors.Options{})
	mistakes, _ := errors.AsType[descriptors.Errors](err)
	for _, m := range mistakes {
		fmt.Printf("%s:%d: %s:\n%s\n", m.File, m.Line, m.Path, m.Text)
	}
	// Output:
	// edge.yaml:5: descriptors[0].rate_limit.unit:
	// "fortnight" is not a unit, must be second, minute, hour, day, week, month or year
	// edge.yaml:6: descriptors[0].rate_limit.requests_per_unit:
	// is the text "10", must be a whole number from 0 to 4294967295, without quotes
	// edge.yaml:7: descriptors[0].rate_limit.brust:
	// is not a key that is known here, did you mean burst?
}

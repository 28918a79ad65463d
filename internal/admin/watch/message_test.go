package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/pkg/descriptors"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Clients choose the bytes of domains, keys and values.
func TestTextsOfClientsThatAreNoUTF8CanBeSent(t *testing.T) {
	f := newFixture(t)
	w := f.watch(&adminv1.WatchRequest{})
	f.ask("\xff\xfe", "k\xff=ä\xc3")
	f.ask("edge", "plan=gold", "path=/cart,\xc3=\xc3")
	m := next(t, w)
	if _, err := proto.Marshal(m); err != nil {
		t.Fatal(err)
	}
	r := m.GetRequests()[0]
	if e := r.GetDescriptors()[0].GetEntries()[0]; r.GetDomain() != "\uFFFD" || e.GetKey() != "k\uFFFD" || e.GetValue() != "ä\uFFFD" {
		t.Errorf("got %v; want U+FFFD in place of the wrong bytes", r)
	}
}

func TestTheNearestMissesOfAMessageAreBounded(t *testing.T) {
	f := newFixture(t)
	var rules strings.Builder
	rules.WriteString("domain: edge\ndescriptors:\n")
	for i := range 30 {
		fmt.Fprintf(&rules, "- {key: path, value: %02d%s, rate_limit: {unit: day, requests_per_unit: 1}}\n", i, strings.Repeat("v", 300))
	}
	if _, err := f.limiter.Load(descriptors.Source{Name: "rules.yaml", Data: []byte(rules.String())}); err != nil {
		t.Fatal(err)
	}
	w := f.watch(&adminv1.WatchRequest{})
	f.ask("edge", slices.Repeat([]string{"path=x"}, 1000)...)
	f.ask("edge", "path=x")
	for _, want := range []int{1000, 1} { // the large request comes alone
		m := next(t, w)
		all := m.GetRequests()
		if proto.Size(m) > 3<<19 || len(all) != 1 || len(all[0].GetDescriptors()) != want || len(all[0].GetDescriptors()[0].GetNearestMiss().GetBeside()) != descriptors.MaxBeside {
			t.Errorf("got %d requests in %d bytes; want one of %d descriptors, the first with its nearest miss, in at most 1.5 MiB", len(all), proto.Size(m), want)
		}
	}
}

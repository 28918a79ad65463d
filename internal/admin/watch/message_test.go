package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
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

func TestNoOtherOrderIsAdvisedWhereTheDefaultIsMeant(t *testing.T) {
	f := newFixture(t)
	load := func(text string) {
		t.Helper()
		if _, err := f.limiter.Load(descriptors.Source{Name: "rules.yaml", Data: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	const tree = "descriptors:\n- key: path\n  descriptors:\n  - {key: client, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	w := f.watch(&adminv1.WatchRequest{})
	for rules, want := range map[string]string{
		"domain: edge\n" + tree: `key "client": this level has path; entry 1 would match here, so the entries may have another order than the rules`,
		"domain: edge\ndefault: {unit: day, requests_per_unit: 100}\n" + tree: `key "client": this level has path`,
	} {
		load(rules)
		f.ask("edge", "client=c1,path=/cart")
		if got := next(t, w).GetRequests()[0].GetDescriptors()[0].GetNearestMiss().GetWhy(); got != want {
			t.Errorf("%s: got %q, want %q", rules, got, want)
		}
	}
}

// A limit that came with the request needs no rule.
func TestARequestWithItsOwnLimitHasNoNearestMiss(t *testing.T) {
	f := newFixture(t)
	w := f.watch(&adminv1.WatchRequest{})
	f.override = &limiter.Override{Requests: 5, Unit: descriptors.Hour}
	for _, defaults := range []string{"", "default: {unit: day, requests_per_unit: 100}\n"} {
		rules := "domain: edge\n" + defaults + "descriptors:\n- {key: path, rate_limit: {unit: day, requests_per_unit: 1}}\n"
		if _, err := f.limiter.Load(descriptors.Source{Name: "rules.yaml", Data: []byte(rules)}); err != nil {
			t.Fatal(err)
		}
		f.ask("edge", "client=c1")
		if d := next(t, w).GetRequests()[0].GetDescriptors()[0]; !d.GetOverride() || d.GetNearestMiss() != nil {
			t.Errorf("rules %q: got override %t, nearest miss %v; want none", rules, d.GetOverride(), d.GetNearestMiss())
		}
	}
}

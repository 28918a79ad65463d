package watch

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestFiltersChooseRequestsByOneDescriptor(t *testing.T) {
	f := newFixture(t)
	all := [][]string{
		{"edge", "path=/cart"},
		{"edge", "path=/free"},
		{"edge", "path=/open"},
		{"edge", "path=/test"},
		{"edge", "path=/none,user=a"},
		{"edge", "path=/vip", "plan=gold"},
		{"other", "path=/cart"},
		{"edge"},
		{"edge", "=x"},
		{"edge", "path=/cart"},
		{"edge", "path=/cart"},
	}
	for _, c := range []struct {
		filter string
		want   []int
	}{
		{``, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{`domain: "other"`, []int{6}},
		{`domain: "nonsense"`, nil},
		{`rule: "path=/cart"`, []int{0, 9, 10}},
		{`rule: "plan=gold"`, []int{5}},
		{`entries { key: "path" }`, []int{0, 1, 2, 3, 4, 5, 6, 9, 10}},
		{`entries { key: "path" value: "/none" } entries { key: "user" value: "a" }`, []int{4}},
		{`entries { key: "path" value: "/vip" } entries { key: "plan" }`, nil}, // of one descriptor
		{`outcomes: OUTCOME_OK`, []int{0, 5, 9}},
		{`outcomes: OUTCOME_OVER_LIMIT`, []int{10}},
		{`outcomes: OUTCOME_SHADOWED`, []int{3}},
		{`outcomes: OUTCOME_UNLIMITED`, []int{1}},
		{`outcomes: OUTCOME_REPLACED`, []int{5}},
		{`outcomes: OUTCOME_NOT_LIMITED`, []int{2}},
		{`outcomes: OUTCOME_UNMATCHED outcomes: OUTCOME_NO_DOMAIN`, []int{4, 6}},
		{`outcomes: OUTCOME_FAILED`, []int{7, 8}},
		{`outcomes: OUTCOME_OK rule: "plan=gold"`, nil}, // another descriptor of the request is OK
	} {
		in := new(adminv1.WatchRequest)
		if err := prototext.Unmarshal([]byte(c.filter), in); err != nil {
			t.Fatal(err)
		}
		w := f.watch(in)
		var got []int
		for i, one := range all {
			f.ask(one[0], one[1:]...)
			if taken := w.take(); len(taken) > 0 {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got the requests %v, want %v", c.filter, got, c.want)
		}
		w.Close()
		if _, _, err := f.limiter.Reset(t.Context(), &limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{Entries: []limiter.Entry{{Key: "path", Value: "/cart"}}}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFilterOutOfBoundsIsRefused(t *testing.T) {
	f := newFixture(t)
	many := make([]*adminv1.Entry, maxFilterEntries+1)
	for i := range many {
		many[i] = &adminv1.Entry{Key: "k"}
	}
	for _, c := range []struct {
		in   *adminv1.WatchRequest
		want string
	}{
		{&adminv1.WatchRequest{Entries: []*adminv1.Entry{{Value: "v"}}}, "entries[0].key: must not be empty"},
		{&adminv1.WatchRequest{Entries: many}, "entries: 17 are given, must be at most 16"},
		{&adminv1.WatchRequest{Domain: strings.Repeat("x", 5000)}, "domain: has 5000 bytes, must have at most 4096"},
		{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{0}}, "outcomes[0]: 0: must be an outcome from 1 to 11"},
		{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{-1}}, "outcomes[0]: -1: must be an outcome from 1 to 11"},
		{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{70}}, "outcomes[0]: 70: must be an outcome from 1 to 11"},
		{&adminv1.WatchRequest{MaxPerSecond: 100_001}, "max_per_second: 100001: must be at most 100000"},
	} {
		_, err := f.hub.Subscribe(c.in)
		if invalid := new(InvalidError); !errors.As(err, &invalid) || err.Error() != c.want {
			t.Errorf("got %v; want %s", err, c.want)
		}
	}
}
